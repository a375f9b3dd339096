"""P1-P3 and P5: what a rate limit does to a pool."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.pools.pool import FOREVER, Pool
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench

WORK = "umans@work/coder"


def pool(bench: Bench, name: str = "umans", kind: str = "requests") -> Pool:
    return bench.state.pools[f"{kind} {name}"]


# P1: the pause.


@pytest.mark.parametrize("by_release", [True, False])
def test_p1_a_rate_limit_pauses_the_pool_for_retry_after(by_release):
    bench = Bench(requests={"umans": 3})
    bench.call("a", CODER)
    if by_release:
        bench.release("a", "rate_limited", 5_000)
    else:
        bench.do(cmd.Report("a", retry_after_ms=5_000))
    bench.call("b", CODER)
    assert bench.fate("b") == "waits"
    bench.wait(4_999)
    assert bench.fate("b") == "waits"
    bench.wait(1)
    assert bench.fate("b") == "offered"


def test_p1_without_a_hint_it_is_30_seconds():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.do(cmd.Report("a"))
    assert pool(bench).paused_until == START + 30 * SECOND


def test_p1_slots_already_lent_go_on():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.do(cmd.Report("a"))
    assert bench.running() == ["a", "b"]


def test_p1_a_later_report_may_extend_a_pause_and_never_shortens_it():
    bench = Bench(requests={"umans": 4})
    for name in ("a", "b", "c"):
        bench.call(name, CODER)
    bench.do(cmd.Report("a", retry_after_ms=MINUTE))
    bench.do(cmd.Report("b", retry_after_ms=SECOND))
    assert pool(bench).paused_until == START + MINUTE
    bench.do(cmd.Report("c", retry_after_ms=2 * MINUTE))
    assert pool(bench).paused_until == START + 2 * MINUTE


def test_p1_the_narrowest_provider_pool_is_meant_never_host_or_project():
    rules = (
        Rule("requests", "host", cap=9),
        Rule("requests", "project", cap=9),
        Rule("requests", "anthropic", cap=9, on_429="step"),
    )
    bench = Bench(rules=(*rules, Rule("requests", "anthropic/claude-opus-*", cap=9, on_429="step")))
    bench.call("a", OPUS)
    bench.do(cmd.Report("a"))
    assert pool(bench, "anthropic/claude-opus-*").paused_until > START
    assert pool(bench, "anthropic").paused_until == 0
    bench.call("b", SONNET)
    bench.do(cmd.Report("b"))
    assert pool(bench, "anthropic").paused_until > START
    assert pool(bench, "host:h1").paused_until == pool(bench, "project:default").paused_until == 0


def test_p1_where_only_host_is_capped_nothing_is_paused():
    bench = Bench(rules=(Rule("requests", "host", cap=9),))
    bench.call("a", CODER)
    bench.do(cmd.Report("a"))
    bench.release("a", "rate_limited")
    assert bench.of(ev.Paused) == []


def test_b1_what_nothing_caps_is_backed_off_when_a_rate_limit_is_reported():
    bench = Bench(rules=(Rule("requests", "host", cap=9), Rule("requests", "umans@work/coder", cooldown_ms=5)))
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.do(cmd.Report("a", retry_after_ms=5_000))
    backoff = bench.state.backoffs[CODER]
    assert (backoff.reason, backoff.until - bench.now, backoff.evidence) == ("rate_limited", 5_000, "reported")
    assert bench.do(cmd.Report("b", retry_after_ms=4_000)) == [], "what is observed never shortens a backoff"
    assert bench.do(cmd.Report(kind="requests", target=CODER, retry_after_ms=4_000)) == []
    bench.do(cmd.Report(kind="requests", target=CODER))
    assert backoff is not bench.state.backoffs[CODER], "a minute, without a hint"
    bench.do(cmd.Report(kind="agents", target=SONNET))
    bench.do(cmd.Report(kind="requests", target=WORK))
    assert sorted(bench.state.backoffs) == [SONNET, CODER, WORK]
    assert bench.of(ev.Paused) == []


def test_b1_a_report_for_a_lease_without_a_model_blames_nobody():
    bench = Bench(agents={"host": 3})
    bench.agent("a")
    assert bench.do(cmd.Report("a")) == []


def test_p1_a_report_for_a_lease_may_name_which_of_its_pools_and_no_other():
    bench = Bench(requests={"umans": 4, "umans/coder": 2, "anthropic": 2})
    bench.call("a", CODER)
    bench.do(cmd.Report("a", target="umans"))
    assert [event.pool for event in bench.of(ev.Paused) if isinstance(event, ev.Paused)] == ["umans"]
    bench.do(cmd.Report("a", target=CODER))
    assert pool(bench, CODER).paused_until
    before = bench.state.export()
    for other in ("anthropic", "host", "umans@work", OPUS):
        with pytest.raises(BadRequest, match="its pools are umans/coder, umans"):
            bench.do(cmd.Report("a", target=other))
    bench.call("free", "groq/fast")
    with pytest.raises(BadRequest, match="only its model groq/fast can be named"):
        bench.do(cmd.Report("free", target="umans"))
    assert bench.state.export().pools == before.pools


def test_p1_only_the_account_that_was_limited_is_paused():
    bench = Bench(requests={"umans": 2})
    bench.call("a", WORK)
    bench.do(cmd.Report("a"))
    assert bench.call("b", CODER) == "granted"
    assert bench.call("c", WORK) == "waits"


def test_p1_a_script_names_a_pool_or_a_model():
    bench = Bench(requests={"umans": 4, "anthropic/claude-opus-*": 4})
    bench.do(cmd.Report(kind="requests", target="umans", retry_after_ms=SECOND))
    bench.do(cmd.Report(kind="requests", target=OPUS, retry_after_ms=SECOND))
    assert [event.pool for event in bench.of(ev.Paused) if isinstance(event, ev.Paused)] == [
        "umans",
        "anthropic/claude-opus-*",
    ]


@pytest.mark.parametrize("target", ["umans", "host:h1", "nonsense", "", "*/x", "umans/*"])
def test_p1_a_report_about_no_capped_provider_pool_says_so(target):
    bench = Bench(agents={"host": 3})
    with pytest.raises(NotFound, match="no capped provider pool"):
        bench.do(cmd.Report(kind="agents", target=target))


def test_p1_a_negative_retry_after_is_none_at_all():
    bench = Bench(requests={"umans": 3})
    bench.call("a", CODER)
    bench.release("a", "rate_limited", -5)
    assert bench.fate("a") == "released"
    assert bench.call("b", CODER) == "granted"


def test_p1_a_pause_ends_some_day_however_long_the_hint():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.do(cmd.Report("a", retry_after_ms=1 << 62))
    assert pool(bench).paused_until == FOREVER


def test_p1_a_rate_limited_agent_does_not_pause_its_pool():
    """B1: what happened to a process backs off its model."""
    bench = Bench(agents={"anthropic": 2})
    bench.agent("a", SONNET)
    bench.release("a", "rate_limited")
    assert bench.of(ev.Paused) == []


# P2: one incident.


def test_p2_rate_limits_of_calls_admitted_before_the_pause_are_one_incident():
    bench = Bench(requests={"umans": 4})
    for name in ("a", "b", "c"):
        bench.call(name, CODER)
    bench.do(cmd.Report("a"))
    bench.do(cmd.Report("b"))
    bench.release("c", "rate_limited")
    assert len(bench.of(ev.Reduced)) == 1
    assert pool(bench).limit == 3


def test_p2_they_are_also_after_the_pause_has_ended():
    bench = Bench(requests={"umans": 4})
    bench.call("a", CODER)
    bench.call("late", CODER)
    bench.do(cmd.Report("a"))
    bench.wait(HOUR // 4)
    bench.do(cmd.Report("late"))
    assert pool(bench).limit == 3


def test_p2_a_call_admitted_after_the_pause_began_is_a_new_incident():
    bench = Bench(requests={"umans": 4})
    bench.call("a", CODER)
    bench.do(cmd.Report("a"))
    bench.wait(30 * SECOND)
    bench.call("b", CODER)
    bench.do(cmd.Report("b"))
    assert pool(bench).limit == 2


def test_p2_a_report_that_names_no_lease_is_a_new_incident():
    bench = Bench(requests={"umans": 4})
    bench.do(cmd.Report(kind="requests", target="umans"))
    bench.do(cmd.Report(kind="requests", target="umans"))
    assert pool(bench).limit == 2
    assert len([event for event in bench.of(ev.Paused) if isinstance(event, ev.Paused) and event.incident]) == 2


def test_p2_a_pause_by_hand_is_no_incident():
    bench = Bench(requests={"umans": 4})
    bench.call("a", CODER)
    bench.do(cmd.Pause("requests", "umans", for_ms=SECOND))
    bench.do(cmd.Report("a"))
    assert pool(bench).limit == 3


# P3: step.


def test_p3_each_incident_lowers_the_limit_by_one_and_never_below_one():
    bench = Bench(requests={"umans": 3})
    limits = []
    for _ in range(5):
        bench.do(cmd.Report(kind="requests", target="umans", retry_after_ms=0))
        limits.append(pool(bench).limit)
    assert limits == [2, 1, 1, 1, 1]
    assert [(event.limit, event.cap) for event in bench.of(ev.Reduced) if isinstance(event, ev.Reduced)] == [
        (2, 3),
        (1, 3),
    ]


def test_p3_it_stays_there_until_a_person_sets_the_cap_again():
    bench = Bench(requests={"umans": 3})
    bench.do(cmd.Report(kind="requests", target="umans"))
    bench.wait(HOUR)
    assert pool(bench).limit == 2
    bench.cap("requests", "umans", 3)
    assert (pool(bench).limit, pool(bench).limiter.reduced) == (3, 0)


@pytest.mark.parametrize(
    "command",
    [
        cmd.SetRule(Rule("requests", "umans", cooldown_ms=5)),
        cmd.SetRule(Rule("requests", "umans", on_429="pause")),
        cmd.SetRule(Rule("requests", "anthropic", cap=5, on_429="step")),
        cmd.LoadFile("config.toml", "other", 99, (Rule("requests", "umans", cap=8, on_429="step"),)),
    ],
)
def test_p3_what_does_not_set_this_cap_leaves_the_reduction(command):
    bench = Bench(requests={"umans": 8})
    bench.cap("requests", "umans", 3)
    bench.do(cmd.Report(kind="requests", target="umans"))
    bench.do(command)
    assert pool(bench).limit == 2


def test_p3_reading_the_file_again_leaves_the_reduction_and_editing_the_cap_clears_it():
    bench = Bench(requests={"umans": 3})
    bench.do(cmd.Report(kind="requests", target="umans"))
    bench.file(Rule("requests", "umans", cap=3, on_429="step"), Rule("agents", "host", cap=5))
    assert pool(bench).limit == 2
    bench.file(Rule("requests", "umans", cap=4, on_429="step"))
    assert pool(bench).limit == 4


def test_p3_setting_the_cap_of_one_account_clears_what_its_general_cap_suffered():
    bench = Bench(requests={"umans": 4})
    bench.call("a", WORK)
    bench.do(cmd.Report("a"))
    assert pool(bench, "umans@work").limit == 3
    bench.cap("requests", "umans@work", 4)
    assert pool(bench, "umans@work").limit == 4


def test_p3_resetting_to_the_file_clears_it():
    bench = Bench(requests={"umans": 4})
    bench.cap("requests", "umans", 4)
    bench.do(cmd.Report(kind="requests", target="umans"))
    bench.do(cmd.ResetCap("requests", "umans"))
    assert pool(bench).limit == 4


def test_p3_a_higher_cap_of_somebodys_environment_is_reduced_too():
    bench = Bench(requests={"umans": 4})
    bench.do(cmd.Report(kind="requests", target="umans", retry_after_ms=0))
    for n in range(3):
        bench.call(f"c{n}", CODER)
    assert bench.call("own", CODER, caps=(("umans", 9),)) == "waits"
    assert bench.reason("own").limit == 3


def test_p4_pause_leaves_the_limit_and_is_the_default_for_agents():
    bench = Bench(agents={"anthropic": 2, "host": 9})
    bench.agent("a", SONNET)
    bench.do(cmd.Report("a"))
    assert (pool(bench, "anthropic", "agents").limit, bench.of(ev.Reduced)) == (2, [])
    assert bench.agent("b", SONNET) == "waits"


# Pausing by hand.


def test_a_pause_by_hand_may_be_shorter_than_the_one_before():
    bench = Bench(requests={"umans": 2})
    bench.do(cmd.Pause("requests", "umans"))
    bench.do(cmd.Pause("requests", "umans", for_ms=SECOND))
    assert pool(bench).paused_until == START + SECOND


def test_a_selector_means_all_its_pools_unless_a_pool_has_its_name():
    bench = Bench(agents={"host": 2})
    bench.agent("a", SONNET, host="h1")
    bench.agent("b", SONNET, host="h2")
    bench.do(cmd.Pause("agents", "host"))
    assert [bench.agent(f"c{host}", SONNET, host=host) for host in ("h1", "h2")] == ["waits", "waits"]
    bench.do(cmd.Resume("agents", "host"))
    assert [bench.fate(f"c{host}") for host in ("h1", "h2")] == ["offered", "offered"]


def test_a_pool_can_be_paused_before_any_traffic():
    bench = Bench(requests={"umans": 2})
    bench.do(cmd.Pause("requests", "umans@work"))
    assert bench.call("a", WORK) == "waits"
    assert bench.call("b", CODER) == "granted"


def test_what_is_not_capped_cannot_be_paused_and_the_message_lists_what_is():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    with pytest.raises(NotFound, match="capped are: umans"):
        bench.do(cmd.Pause("requests", "anthropic"))
    with pytest.raises(NotFound, match="of kind cats"):
        bench.do(cmd.Resume("cats", "anthropic"))
    bench.call("b", SONNET, caps=(("anthropic", 5),))
    with pytest.raises(NotFound):
        bench.do(cmd.Pause("requests", "anthropic"))


def test_resuming_what_is_not_paused_is_harmless():
    bench = Bench(requests={"umans": 2})
    assert bench.do(cmd.Resume("requests", "umans")) == []


def test_options_for_one_account_leave_the_pause_of_its_pool():
    bench = Bench(requests={"umans": 4})
    bench.call("a", WORK)
    bench.do(cmd.Pause("requests", "umans@work"))
    bench.do(cmd.SetRule(Rule("requests", "umans@work", cooldown_ms=100)))
    assert bench.call("b", WORK) == "waits"


# P5: all this survives a restart.


def test_p5_pause_limit_and_what_they_derive_from_survive_a_restart():
    bench = Bench(requests={"umans": 4})
    bench.call("a", CODER)
    bench.call("late", CODER)
    bench.do(cmd.Report("a", retry_after_ms=MINUTE))
    bench.call("b", CODER)
    bench.restart()
    assert pool(bench).limit == 3
    assert pool(bench).paused_until == START + MINUTE
    bench.do(cmd.Report("late"))
    assert pool(bench).limit == 3, "still the same incident"
    bench.wait(MINUTE)
    assert bench.fate("b") == "offered"
    bench.do(cmd.Report("b"))
    assert pool(bench).limit == 2


# X6: what a provider's headers say.


def test_x6_headers_that_say_nothing_is_left_pause_a_pool_and_are_no_incident():
    bench = Bench(requests={"umans": 3})
    bench.call("a", CODER)
    bench.do(cmd.UseUp("a", 5_000))
    assert (pool(bench).paused_until, pool(bench).pause_cause) == (START + 5_000, "rate_limited")
    assert pool(bench).limit == 3
    bench.do(cmd.UseUp("a", 1_000))
    assert pool(bench).paused_until == START + 5_000, "it shortens no pause"
    bench.do(cmd.Pause("requests", "umans", 1_000))
    assert pool(bench).paused_until == START + 1_000, "a person may"
    bench.do(cmd.UseUp("nobody", 9_000))
    assert pool(bench).paused_until == START + 1_000
