"""Real agents on a subscription (rules W1, W7): the windows of their plan, while they run, and their helpers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import CALLERS, KEY, PROMPT
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import Place

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


def headers_of(agent: str) -> dict[str, str]:
    """As the provider of each agent reports its windows."""
    soon = int(time.time()) + 7_200
    if agent == "codex":
        return {
            "x-codex-primary-used-percent": "42.5",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": str(soon),
            "x-codex-secondary-used-percent": "7",
            "x-codex-secondary-window-minutes": "10080",
            "x-codex-secondary-reset-at": str(soon + 86_400),
        }
    name = "anthropic-ratelimit-unified"
    return {
        f"{name}-status": "allowed_warning",
        f"{name}-reset": str(soon),
        f"{name}-representative-claim": "five_hour",
        f"{name}-5h-status": "allowed_warning",
        f"{name}-5h-utilization": "0.93",
        f"{name}-5h-reset": str(soon),
        f"{name}-5h-surpassed-threshold": "0.9",
        f"{name}-7d-status": "allowed",
        f"{name}-7d-utilization": "0.41",
        f"{name}-7d-reset": str(soon + 86_400),
    }


@pytest.mark.parametrize(("agent", "used"), [("codex", {"5h": 42.5, "7d": 7.0}), ("claude", {"5h": 93.0})])
def test_w1_the_windows_of_a_real_agents_plan_are_known_without_the_proxy(
    agent: str, used: dict[str, float], place: Place
) -> None:
    try:
        program = installed(agent)
    except CannotInstall as error:
        pytest.skip(str(error))
    with FakeProvider(headers=headers_of(agent)) as provider:
        call = CALLERS[agent](str(program), provider.url, place.home, PROMPT)
        if agent == "claude":
            del call.env["ANTHROPIC_API_KEY"]
            call.env["CLAUDE_CODE_OAUTH_TOKEN"] = KEY.replace("sk-dummy", "sk-ant-oat01")
        found = place.run(call)
    assert found.exit_code == 0, found.err
    assert {each["window"]: each["used_percent"] for each in place.plans()} == used


def codex_tool_call() -> str:
    """The stream of a response of OpenAI that calls a tool which is not there: Codex says so in a second call."""
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "no_such_tool", "arguments": "{}"}
    usage = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "output": [item], "usage": usage}},
    ]
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)


def test_w1_the_windows_of_real_codex_are_known_while_it_runs(place: Place) -> None:
    try:
        program = installed("codex")
    except CannotInstall as error:
        pytest.skip(str(error))
    headers = {**headers_of("codex"), "Content-Type": "text/event-stream"}
    first = Fault(status=200, body=codex_tool_call(), headers=headers)
    with FakeProvider(faults=[first], chunks=60, chunk_delay_s=1.0) as provider:
        call = CALLERS["codex"](str(program), provider.url, place.home, PROMPT)
        running = place.begin(call)
        plans: list[dict[str, Any]] = []
        until = time.monotonic() + 60
        while not plans and running.poll() is None and time.monotonic() < until:
            time.sleep(1)
            plans = place.plans()
        alive = running.poll() is None
        running.terminate()
        running.communicate(timeout=60)
    assert provider.stats.calls + provider.stats.scripted >= 2, "it did not go on after the first response"
    assert alive, "it had ended before its windows were known"
    assert {each["window"]: each["used_percent"] for each in plans} == {"5h": 42.5, "7d": 7.0}
