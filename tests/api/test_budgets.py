"""`/v1/budgets`, and the usage of leases over HTTP (rules V2, V3, V7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.api.served import Served

CONFIG = """
[budgets]
project = { usd = 20, per = "day" }
"project:web" = { usd = 1, per = "day", estimate = "max" }
[prices]
acme = { input = 1000, output = 5000 }
"""


def test_V7_budgets_are_set_listed_extended_reset_and_removed_over_http(fresh: Served):
    assert fresh.ok("GET", "/v1/budgets") == {"budgets": []}
    body = {"selector": "openai", "unit": "tokens", "amount": "2M", "per": "60s", "burst": 500_000}
    made = fresh.ok("POST", "/v1/budgets", body)
    (rate,) = made["budgets"]
    assert (rate["name"], rate["rate"], rate["per_s"], rate["amount"], rate["burst"]) == (
        "openai tokens/1m",
        True,
        60,
        2_000_000,
        500_000,
    )
    (day,) = fresh.ok(
        "POST",
        "/v1/budgets",
        {
            "selector": "project:a/b c",
            "unit": "usd",
            "amount": 0.1,
            "per": "day",
            "when_empty": "stop",
            "estimate": "max",
        },
    )["budgets"]
    assert (day["name"], day["amount"], day["free"], day["when_empty"], day["burst"]) == (
        "project:a/b c usd/day",
        0.1,
        0.1,
        "stop",
        None,
    )
    path = f"/v1/budgets/{quote(day['name'], safe='')}"
    more = fresh.ok("POST", f"{path}/add", {"amount": 5, "until": "2h"})
    assert more["budget"]["amount"] == 5.1
    assert (more["budget"]["base"], more["budget"]["added"]) == (0.1, 5)
    again = fresh.ok("POST", f"{path}/reset")
    assert again["budget"]["used"] == 0
    assert fresh.ok("GET", "/v1/budgets") == json.loads(fresh.cli("budget", "ls", "--json").stdout)
    gone = fresh.ok("DELETE", path)
    assert gone == {"selector": "project:a/b c", "unit": "usd", "per": "day", "entered": 0}
    assert [each["name"] for each in fresh.ok("GET", "/v1/budgets")["budgets"]] == ["openai tokens/1m"]
    dropped = fresh.ok("POST", "/v1/budgets/openai%20tokens%2F1m/unset")
    assert dropped == {
        "selector": "openai",
        "unit": "tokens",
        "per": "1m",
        "amount": None,
        "source": None,
        "entered": 0,
    }
    assert fresh.ok("GET", "/v1/budgets") == {"budgets": []}


def test_V7_what_is_wrong_with_a_budget_is_said_and_changes_nothing(served: Served):
    good: dict[str, Any] = {"selector": "project", "unit": "usd", "amount": 1, "per": "day"}
    for change, words in (
        ({"unit": "euros"}, "unit"),
        ({"amount": 0}, "amount"),
        ({"amount": 0.00000001}, "at most 6 decimals"),
        ({"amount": "much"}, "not a sum of money"),
        ({"per": "minute"}, "did you mean"),
        ({"selector": "key:c i"}, "one key is key:NAME"),
        ({"selector": "opus"}, "did you mean anthropic/claude-opus-*"),
        ({"burst": 3}, "burst is only for rates"),
        ({"extra": 1}, "extra"),
    ):
        answer = served.request("POST", "/v1/budgets", {**good, **change})
        assert answer.status == 400, answer
        assert words in answer.json["error"]
    for path, status in (("no%20such/reset", 404), ("x/add", 404), ("a/b/reset", 404), ("x", 405), ("x/other", 404)):
        assert served.request("POST", f"/v1/budgets/{path}", {"amount": 1}).status == status
    assert served.request("DELETE", "/v1/budgets/nothing").status == 404
    assert served.ok("GET", "/v1/budgets") == {"budgets": []}


def test_H5_changes_of_budgets_have_the_rights_of_changes_of_caps(served: Served):
    body = {"selector": "project", "unit": "usd", "amount": 1, "per": "day"}
    for method, path in (("POST", "/v1/budgets"), ("POST", "/v1/budgets/x/reset"), ("DELETE", "/v1/budgets/x")):
        assert served.request(method, path, body, token="wrong").status == 401


def test_V2_a_lease_over_http_reserves_its_estimate_and_is_released_with_what_it_used(tmp_path: Path):
    with Served(tmp_path, CONFIG) as served:
        _check_leases(served)


def _check_leases(fresh: Served) -> None:
    def day() -> tuple[float, float]:
        (found,) = [each for each in fresh.ok("GET", "/v1/budgets")["budgets"] if each["name"] == "project:web usd/day"]
        return found["used"], found["reserved"]

    asked = {"models": ["acme/coder"], "project": "web", "estimate": {"input": 100, "output": 100}}
    lease = fresh.ok("POST", "/v1/leases", asked)["lease"]
    assert day() == (0, 0.6)
    refused = fresh.ok("POST", "/v1/leases", asked)
    assert refused["reason"]["code"] == "budget"
    fresh.ok("POST", f"/v1/leases/{lease}/release", {"usage": {"input": 50, "output": 10}})
    assert day() == (0.1, 0)
    other = fresh.ok("POST", "/v1/leases", {**asked, "models": ["acme/other"]})["lease"]
    fresh.ok("POST", f"/v1/leases/{other}/release", {"outcome": "overloaded"})
    assert day() == (0.1, 0)  # it was refused, and used nothing
    lease = fresh.ok("POST", "/v1/leases", asked)["lease"]
    fresh.ok("POST", f"/v1/leases/{lease}/release", {"usage": {"cost_usd": 0.25}})
    assert day() == (0.35, 0)
    lease = fresh.ok("POST", "/v1/leases", asked)["lease"]
    fresh.ok("POST", f"/v1/leases/{lease}/release")
    assert day() == (0.95, 0)  # not known: what was reserved counts
    bad = fresh.request("POST", "/v1/leases", {**asked, "estimate": {"input": -1}})
    assert bad.status == 400
