"""`explain`: what is believed about a limit, and what would change it, in one screen."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.views.limit_explanation import explain
from fleetgate.core.views.pool_and_lease_views import pool_views
from tests.unit.test_core_adaptive_limit import Calls


def _text(calls: Calls) -> str:
    sentences = explain(calls.pool, calls.now).sentences
    assert len(sentences) <= 9
    assert all(len(sentence) < 160 for sentence in sentences)
    return "\n".join(sentences)


def test_explain_tells_what_is_believed_and_what_would_change_it() -> None:
    calls = Calls()
    assert "Nothing is proven yet. Above that, up to 8, calls try one more after the other." in _text(calls)
    assert "no sign that the provider allows less" in _text(calls)
    assert "has refused nothing since the cap was set" in _text(calls)
    assert "for 0.5 s, until a refusal teaches more (at most 3 s)" in _text(calls)
    assert "never seen to move" in _text(calls)
    assert "nothing to probe for" in _text(calls)
    calls.prove(3)
    trying = calls.call()
    assert f"{trying} is trying 4" in _text(calls)
    assert calls.refuse(trying).why == "exact"
    assert "It is paused after a rate limit" in _text(calls)
    calls.wait(1_000)
    said = _text(calls)
    assert "The limit is 3, below the cap of 8" in said
    assert "4 were one more than it allows" in said
    assert "3 at once are proven. That is the whole limit" in said
    assert "The next probe, one call at 4, is tried in" in said
    assert "A refusal of a call at 3 or less would mean that it has fallen" in said
    assert "accepted at 4, that it has risen" in said
    [view] = [view for view in pool_views(calls.engine.state, calls.now) if view.pool == "umans"]
    assert "recovers automatically" in (view.notice or "")


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("drop", "its limit has fallen"),
        ("probe", "one above the limit, are still too many"),
        ("lag", "slots now cool down longer"),
        ("neighbour", "others on the account had taken the slot"),
        ("alone", "it was not about how many"),
    ],
)
def test_explain_tells_what_the_last_refusal_meant(why: str, says: str) -> None:
    calls = Calls()
    for engine in (calls.engine, calls.replica):
        pool = engine.state.named("requests", "umans")
        assert pool is not None
        assert pool.limiter.adaptive is not None
        pool.limiter.adaptive.belief.last_why = why
    calls.believe(last_at=calls.now - 300_000, last_level=5)
    assert says in _text(calls)
    assert "5 min ago" in _text(calls)


def test_explain_tells_of_lag_moves_and_probes() -> None:
    calls = Calls()
    calls.prove(2)
    calls.believe(lag=4, limit=2, failed=3, move_ms=4 * 3_600_000, size=500, moved_at=calls.now - 60_000)
    said = _text(calls)
    assert "counts a finished call for up to 1.5 s, as far as we have learned" in said
    assert "moves about every 4 h, by 50 %; last 60 s ago" in said
    assert "as soon as a call waits at a quiet moment" in said
    calls.believe(probing=1)
    assert "A probe of 3 is under way" in _text(calls)


def test_explain_tells_of_a_cooldown_by_hand_and_of_growth_above_the_cap() -> None:
    calls = Calls(cooldown_ms=700, explore=True)
    calls.believe(limit=9)
    assert "A released slot cools down for 0.7 s, as configured." in _text(calls)
    assert "The limit is 9, above the cap of 8" in _text(calls)


def test_p4_a_call_that_tries_a_level_counts_as_accepted_after_a_change_of_caps_too() -> None:
    calls = Calls()
    calls.prove(1)
    trying = calls.call()
    assert calls.belief.unproven == trying
    calls.do(cmd.SetRule(Rule("requests", "umans", cap=7)))
    calls.wait(3_000)
    assert calls.belief.unproven == ""


def test_p4_a_probe_that_ends_well_raises_the_limit_at_once() -> None:
    calls = Calls()
    calls.prove(3)
    calls.refuse(calls.call())
    probe = calls.ask()
    calls.let_in(probe)
    assert calls.belief.probing
    calls.end(probe)
    assert calls.pool.limit > 3
