"""H3, Q1: refusals speak of fields, as HTTP clients know them, and not of the command line's options."""

from __future__ import annotations

import pytest

from fleetgate.api.errors import refusal
from fleetgate.core.errors import BadRequest, NotFound
from tests.api.served import Served


@pytest.fixture(scope="module")
def both(served: Served) -> Served:
    """With a cap of each kind on one selector."""
    for kind in ("agents", "requests"):
        served.cap("both", 2, kind=kind)
    served.cap("one", 2, kind="agents")
    served.ok("POST", "/v1/caps/reset", {"selector": "one", "kind": "agents"})
    served.cap("one", 2, kind="requests")
    return served


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/v1/pause", {"target": "both"}, "say kind agents or kind requests"),
        ("POST", "/v1/pause", {"target": "one", "kind": "agents"}, "there is one with kind requests"),
        ("DELETE", "/v1/caps?selector=one&kind=agents", None, "there is one with kind requests"),
        ("POST", "/v1/leases", {"models": ["a/b"], "since": "yesterday"}, "since 'yesterday': valid is RFC 3339"),
    ],
)
def test_q1_a_refusal_names_the_field(both: Served, method: str, path: str, body: object, said: str):
    answer = both.request(method, path, body)
    assert answer.status in (400, 404)
    assert said in answer.json["error"]
    assert "--" not in answer.json["error"]


@pytest.mark.parametrize("error", [BadRequest, NotFound])
def test_q1_a_whole_command_in_a_sentence_stays_one(error: type[Exception]):
    _, shape, _ = refusal(error("no --kind here: type `fleetgate cap set x 4 --kind agents` and a--b"))
    assert shape.error == "no kind here: type `fleetgate cap set x 4 --kind agents` and a--b"


def test_a_model_in_the_place_of_a_provider_is_refused(served: Served):
    for method, path, body in (
        ("PUT", "/v1/caps", {"selector": "opus-4-6", "cap": 1}),
        ("PUT", "/v1/cooldown", {"selector": "opus-4-6", "cooldown_ms": 350}),
        ("PUT", "/v1/backoffs", {"key": "opus-4-6", "reason": "rate_limited"}),
        ("POST", "/v1/pause", {"target": "opus-4-6"}),
    ):
        answer = served.request(method, path, body)
        assert answer.status in (400, 404), (path, answer)
        assert "opus-4-6 is not a provider: did you mean anthropic/claude-opus-4-6" in answer.body.decode(), path
