"""Plan windows through the proxy (rules W1, W2, W4): read from responses, and kept for people."""

from __future__ import annotations

from collections.abc import Callable
from time import time

from fleetgate.testing.script import Fault
from tests.proxy.proxied import MESSAGES, Proxied

PLANS = '[plans]\nanthropic = { reserve = "20%" }\n[classes]\nnightly = "batch"\n'


def _headers(used: float, resets_in_s: int) -> dict[str, str]:
    name, reset = "anthropic-ratelimit-unified", str(int(time()) + resets_in_s)
    return {f"{name}-status": "allowed", f"{name}-5h-utilization": str(used), f"{name}-5h-reset": reset}


def test_w1_w2_a_response_says_how_full_the_window_is_and_other_work_leaves_the_rest_to_people(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(more=PLANS)
    gate.provider.script(Fault(headers=_headers(0.85, 7_200)))
    assert gate.chat("/anthropic/v1/messages", MESSAGES).status == 200
    (plan,) = gate.get("/v1/plans").json["plans"]
    assert (plan["account"].partition("@")[0], plan["window"], plan["used_percent"]) == ("anthropic", "5h", 85.0)
    assert plan["normal_continues_at"] is not None

    held = gate.chat("/anthropic/v1/messages", MESSAGES)
    assert held.status == 429
    assert 5_000 < int(held.headers["retry-after"]) < 5_500  # until the drain
    batch = gate.chat("/p/nightly/anthropic/v1/messages", MESSAGES)
    assert batch.status == 429
    person = gate.chat("/anthropic/v1/messages", MESSAGES, x_fleetgate_class="interactive")
    assert person.status == 200
    wrong = gate.chat("/anthropic/v1/messages", MESSAGES, x_fleetgate_class="urgent")
    assert wrong.status == 400
    assert "interactive, normal, batch" in wrong.body.decode()

    metrics = gate.get("/metrics").body.decode()
    assert f'fleetgate_plan_used_ratio{{account="{plan["account"]}",window="5h"}} 0.85' in metrics
