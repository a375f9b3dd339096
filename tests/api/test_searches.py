"""What the dashboard searches: the queue by words, project and pool; the history by time, type and name; projects."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from fleetgate.present.search import history_search
from fleetgate.present.search.history_search import HistorySearch
from tests.api.served import Served


@pytest.fixture(scope="module")
def fleet(served: Served) -> Served:
    served.cap("umans", 1, kind="requests", on_429="step")
    served.cap("acme", 1, kind="requests", on_429="step")
    for number, (model, project, command) in enumerate(
        [
            ("umans/coder", "web", "runs at once"),
            ("umans/coder", "web", "Fix the Cart"),
            ("umans/coder", "docs", "write a page"),
            ("acme/big", "web", "runs too"),
            ("acme/big", "web", "fix the search"),
        ]
    ):
        named = {"models": [model], "project": project, "command": command, "id": f"request-{number:04}"}
        body = {**named, "client": f"c{number}", "queue": True, "renew_within_s": 600}
        assert served.request("POST", "/v1/leases", body).status in (201, 202)
    return served


def _found(fleet: Served, **query: str) -> list[str]:
    answer = fleet.ok("GET", f"/v1/tickets?{urlencode(query)}")
    assert (answer["total"], answer["matching"]) == (3, len(answer["tickets"]))
    return sorted(ticket["command"] for ticket in answer["tickets"])


def test_H2_the_queue_is_filtered_by_words_project_and_pool(fleet: Served) -> None:
    assert _found(fleet, text="FIX the") == ["Fix the Cart", "fix the search"]
    assert _found(fleet, text="fix acme/big") == ["fix the search"]
    assert _found(fleet, text="request-0002") == ["write a page"]
    assert _found(fleet, project="docs") == ["write a page"]
    assert _found(fleet, pool="acme", kind="requests") == ["fix the search"]
    assert _found(fleet, pool="acme", kind="agents") == []
    assert _found(fleet, text="no such words") == []
    order = [each["id"] for each in fleet.ok("GET", "/v1/tickets")["tickets"] if each["project"] == "web"]
    page = fleet.ok("GET", "/v1/tickets?project=web&limit=1&offset=1")
    assert ([each["id"] for each in page["tickets"]], page["matching"]) == (order[1:], 2)


def test_H2_projects_are_listed_with_what_runs_and_waits(fleet: Served) -> None:
    docs, web = fleet.ok("GET", "/v1/projects")["projects"]
    assert (web["project"], web["running"], web["slots"], web["waiting"]) == ("web", 2, 2, 2)
    assert (docs["project"], docs["running"], docs["waiting"]) == ("docs", 0, 1)
    assert docs["oldest"] == fleet.ok("GET", "/v1/tickets/request-0002")["queued_at"]


def test_W6_projects_have_their_part_of_the_pools_that_they_share_and_their_fair_share(fleet: Served) -> None:
    docs, web = fleet.ok("GET", "/v1/projects")["projects"]
    (share,) = docs["shares"]
    assert (share["kind"], share["slots"], share["of"], share["percent"], share["fair_percent"]) == (
        "requests", 0, 1, 0.0, 50.0,
    )  # fmt: skip
    assert [(each["pool"], each["percent"]) for each in web["shares"]] == [(share["pool"], 100.0)]


def _search(fleet: Served, **query: object) -> Any:
    return fleet.ok("GET", f"/v1/history/search?{urlencode(query)}")


def test_H2_the_history_is_searched_newest_first_by_type_words_and_time(fleet: Served) -> None:
    everything = _search(fleet, limit=1000)
    assert everything["next_before"] is None
    numbers = [event["seq"] for event in everything["events"]]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == fleet.ok("GET", "/v1/history")["seq"]
    assert {"granted", "queued", "budget_unset"} <= set(everything["types"])

    queued = _search(fleet, types="queued", text="cart")["events"]
    assert [event["id"] for event in queued] == ["request-0001"]
    assert {event["id"] for event in _search(fleet, text="request-0004")["events"]} == {"request-0004"}
    assert [event["id"] for event in _search(fleet, types="queued", text="docs umans")["events"]] == ["request-0002"]
    assert _search(fleet, since="1h", text="cart")["events"] == queued
    assert _search(fleet, until="1h")["events"] == []
    assert _search(fleet, since="2001-01-01", until="2001-01-02")["events"] == []
    for wrong in ({"types": "nope"}, {"since": "soon"}, {"limit": 0}, {"before": 0}):
        assert fleet.get(f"/v1/history/search?{urlencode(wrong)}").status == 400, wrong


def test_H2_a_search_is_continued_where_it_stopped(fleet: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _search(fleet, types="queued,granted", limit=2)
    rest = _search(fleet, types="queued,granted", limit=100, before=first["next_before"])
    whole = _search(fleet, types="queued,granted", limit=1000)["events"]
    assert first["events"] + rest["events"] == whole

    # A search ends after so many events, wherever that is in a spell.
    monkeypatch.setattr(history_search, "SPELL", 3)
    monkeypatch.setattr(history_search, "MOST_SEARCHED", 7)
    log = _Log(20)
    before, seen = 21, []
    for _ in range(9):
        found = HistorySearch().find(log, before, 4, _Moments(), iter)  # type: ignore[arg-type]
        seen += [event["seq"] for event in found.events]
        if found.next_before is None:
            break
        before = found.next_before
    assert seen == list(range(20, 5, -1)), "the first five were pruned"


class _Log:
    """A log of events without meaning, whose first five were pruned."""

    def __init__(self, last: int) -> None:
        self.last = last

    def history(self, since: int) -> Any:
        from fleetgate.core import events as ev

        return ((seq, seq * 1000, ev.BudgetReset("x usd/day")) for seq in range(max(since, 5) + 1, self.last + 1))


class _Moments:
    offset_ms = 0

    def utc(self, at: int) -> str:
        return str(at)
