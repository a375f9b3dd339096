"""Access keys in the engine: created, rotated, removed, and kept in snapshots (rule E1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.key_handler import MOST_KEYS
from fleetgate.core.access.keys import AccessKey, CreateKey, RemoveKey, RotateKey
from fleetgate.core.entities import BudgetRule, Rule, Spec
from fleetgate.core.errors import BadName, BadRequest
from fleetgate.core.model_names import parse_selector
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.core.views.budget_views import budget_views
from tests.property.harness import MINUTE, START, Bench, through_json

CI = AccessKey("ci", "d1", "agent", "web", "batch", 0)


def test_e1_a_key_is_created_rotated_and_removed_and_each_change_names_its_author():
    bench = Bench()
    assert bench.do(CreateKey(CI, "ann")) == [ev.KeySet(replace(CI, created_at=bench.now), "ann")]
    assert bench.do(RotateKey("ci", "d2", "bob")) == [
        ev.KeySet(replace(CI, digest="d2", created_at=bench.now), "bob", rotated=True)
    ]
    assert bench.state.access_keys["ci"].digest == "d2"
    assert bench.do(RemoveKey("ci", "ann")) == [ev.KeyRemoved("ci", "ann")]
    assert not bench.state.access_keys


def test_e1_a_snapshot_has_the_keys():
    bench = Bench()
    bench.do(CreateKey(CI, "ann"))
    restored = State.restore(through_json(bench.state.export()))
    assert restored.access_keys == bench.state.access_keys


def test_e1_a_key_expires_at_its_time():
    key = replace(CI, expires_at=START + MINUTE)
    assert key.is_valid_at(START)
    assert not key.is_valid_at(START + MINUTE)
    assert CI.is_valid_at(START + MINUTE)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (replace(CI, name=""), "valid are up to 40 letters"),
        (replace(CI, name="a b"), "valid are up to 40 letters"),
        (replace(CI, name="x" * 41), "valid are up to 40 letters"),
        (replace(CI, role="root"), "valid are viewer, agent, operator, admin"),
        (replace(CI, work_class="lazy"), "valid are interactive, normal, batch"),
        (replace(CI, max_priority=101), "valid is -100 to 100"),
        (replace(CI, project="a\nb"), "printable"),
        (replace(CI, project=""), "needs a project"),
        (replace(CI, expires_at=1), "expired already"),
    ],
)
def test_e1_what_is_not_valid_is_refused_with_what_is(key: AccessKey, sentence: str):
    bench = Bench()
    with pytest.raises(BadRequest, match=sentence):
        bench.do(CreateKey(key, "ann"))
    assert not bench.state.access_keys


def test_e1_a_name_is_used_once_and_the_number_of_keys_is_limited():
    bench = Bench()
    bench.do(CreateKey(CI, "ann"))
    with pytest.raises(BadRequest, match="already: remove it first, or rotate it"):
        bench.do(CreateKey(CI, "ann"))
    bench.state.access_keys.update({str(number): CI for number in range(MOST_KEYS)})
    with pytest.raises(BadRequest, match="10000 keys already"):
        bench.do(CreateKey(replace(CI, name="more"), "ann"))


def test_e1_an_unknown_key_can_be_neither_rotated_nor_removed():
    bench = Bench()
    with pytest.raises(BadRequest, match="no key 'ci'; keys: none yet"):
        bench.do(RotateKey("ci", "d", "ann"))
    with pytest.raises(BadRequest, match="no key 'ci'"):
        bench.do(RemoveKey("ci", "ann"))


def author(event: ev.Event) -> str:
    by: str = getattr(event, "by")  # noqa: B009 - not all events have one
    return by


def call(bench: Bench, ident: str, access_key: str = "", wait: bool = False) -> bool:
    """Whether a call enters at once."""
    spec = Spec(("umans/coder",), "requests", project="web", access_key=access_key)
    return any(isinstance(event, ev.Granted) for event in bench.do(cmd.Acquire(ident, spec, "p", wait)))


def test_e1_a_cap_of_a_key_holds_back_the_requests_of_that_key_only():
    bench = Bench(requests={"umans": 9, "key:ci": 1, "key": 2})
    assert [call(bench, f"ci{n}", "ci") for n in range(2)] == [True, False]
    assert [call(bench, f"bob{n}", "bob") for n in range(3)] == [True, True, False]
    assert all(call(bench, f"none{n}") for n in range(4)), "requests without a key are in no pool of keys"
    assert {pool.id: pool.used for pool in bench.state.pools.values() if pool.id.startswith("key:")} == {
        "key:ci": 1,
        "key:bob": 2,
    }
    deferred = bench.do(cmd.Acquire("x", Spec(("umans/coder",), "requests", access_key="ci"), "p", False))
    assert isinstance(deferred[0], ev.Deferred)
    assert (deferred[0].reason.code, deferred[0].reason.pool) == ("concurrency_cap", "key:ci")


def test_e1_a_budget_of_a_key_counts_the_requests_of_that_key_only():
    bench = Bench(requests={"umans": 9})
    bench.do(cmd.SetBudget(BudgetRule("key:ci", "calls", 1, "day")))
    bench.do(cmd.SetBudget(BudgetRule("key", "calls", 2, "day")))
    spec = Spec(("umans/coder",), "requests", access_key="ci")
    for ident, key in (("a", "ci"), ("b", "bob"), ("c", "")):
        bench.do(cmd.Acquire(ident, replace(spec, access_key=key), "p", estimate=Usage(1)))
        bench.do(cmd.Release(ident, usage=Usage(1, source=RESPONSE)))
    assert {view.name: view.free for view in budget_views(bench.state, bench.now)} == {
        "key:ci calls/day": 0,
        "key:bob calls/day": 1,
    }
    assert {row.key: row.usage.calls for row in bench.state.usage.rows()} == {"ci": 1, "bob": 1, "": 1}


def test_e1_a_key_is_created_with_caps_and_budgets_of_its_own_which_end_with_it():
    bench = Bench()
    rules = tuple(Rule(kind, "key:ci", cap=2) for kind in ("agents", "requests"))
    budget = BudgetRule("key:ci", "usd", 5_000_000, "day")
    events = bench.do(CreateKey(CI, "ann", rules, (budget,)))
    assert [(type(event), author(event)) for event in events] == [
        (ev.KeySet, "ann"),
        (ev.RuleSet, "ann"),
        (ev.RuleSet, "ann"),
        (ev.BudgetSet, "ann"),
    ]
    bench.do(cmd.SetRule(Rule("requests", "umans", cap=1)))
    bench.do(cmd.SetBudget(BudgetRule("host", "calls", 1, "day")))
    removed = bench.do(RemoveKey("ci", "bob"))
    assert [(type(event), author(event)) for event in removed] == [
        (ev.KeyRemoved, "bob"),
        (ev.CapReset, "bob"),
        (ev.CapReset, "bob"),
        (ev.BudgetUnset, "bob"),
    ]
    assert list(bench.state.rules.runtime) == [("requests", "umans")]
    assert list(bench.state.budget_rules.runtime) == [("host", "calls", "day")]


def test_e1_a_key_cannot_be_created_with_the_caps_of_another():
    bench = Bench()
    with pytest.raises(BadRequest, match="the key's own is key:ci"):
        bench.do(CreateKey(CI, "ann", (Rule("requests", "umans", cap=1),)))
    with pytest.raises(BadRequest, match="valid is 1 to 1000000"):
        bench.do(CreateKey(CI, "ann", (Rule("requests", "key:ci", cap=0),)))
    with pytest.raises(BadRequest, match="valid are day, week, month"):
        bench.do(CreateKey(CI, "ann", (), (BudgetRule("key:ci", "usd", 1, "year"),)))
    assert not bench.state.access_keys


def test_e1_a_selector_of_a_key_has_the_name_of_a_key():
    assert parse_selector("key:ci-2").name == "ci-2"
    for text in ("key:", "key:a b", "key:a/b", f"key:{'x' * 41}"):
        with pytest.raises(BadName, match="one key is key:NAME"):
            parse_selector(text)


def test_e3_every_event_of_a_change_names_its_author_and_what_follows_from_it_does_not():
    bench = Bench(requests={"umans": 1})
    call(bench, "a")
    call(bench, "b", wait=True)
    events = bench.do(cmd.SetRule(Rule("requests", "umans", cap=2), by="ann"))
    assert [type(event) for event in events] == [ev.RuleSet, ev.Granted]
    assert author(events[0]) == "ann"
    (paused,) = bench.do(cmd.Pause("requests", "umans", by="ann"))
    (resumed,) = bench.do(cmd.Resume("requests", "umans", by="bob"))
    assert (author(paused), author(resumed)) == ("ann", "bob")
    (stop,) = bench.do(cmd.Pause("requests", "umans"))
    assert author(stop) == ""
