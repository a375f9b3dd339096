"""C2, C4 and N3: which caps are in force, and which pools a request needs because of them."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import parse_model
from fleetgate.core.pools.effective_caps import UNLIMITED, Rules
from tests.property.harness import CODER, OPUS, SONNET, Bench


def needs(rules: Rules, model: str, **said: object) -> dict[str, int]:
    """By pool, the limit of a request."""
    spec = Spec(models=(model,) if model else (), **{"host": "h1", **said})  # type: ignore[arg-type]
    found = rules.needs(spec, parse_model(model) if model else None)
    return {need.pool: need.most for need in found}


def rules(file: tuple[Rule, ...] = (), runtime: tuple[Rule, ...] = ()) -> Rules:
    made = Rules()
    made.file = {(rule.kind, rule.selector): rule for rule in file}
    made.runtime = {(rule.kind, rule.selector): rule for rule in runtime}
    made.merge()
    return made


# C4: what is built in.


def test_c4_agents_have_three_slots_on_a_host_and_four_on_opus():
    assert needs(rules(), OPUS) == {"*/claude-opus-*:anthropic": 4, "host:h1": 3}
    assert needs(rules(), SONNET) == {"host:h1": 3}
    assert needs(rules(), "") == {"host:h1": 3}


def test_c4_nothing_else_is_capped():
    assert needs(rules(), OPUS, kind="requests") == {}
    assert needs(rules(), SONNET, host="") == {}


def test_c4_a_configured_model_selector_replaces_the_one_built_in_for_models():
    assert needs(rules((Rule("agents", "anthropic", cap=9),)), OPUS) == {"anthropic": 9, "host:h1": 3}


def test_c4_a_configured_selector_that_does_not_match_replaces_nothing():
    assert needs(rules((Rule("agents", "umans", cap=9),)), OPUS) == {"*/claude-opus-*:anthropic": 4, "host:h1": 3}


def test_c4_a_cap_of_the_other_kind_replaces_nothing():
    assert needs(rules((Rule("requests", "anthropic", cap=9),)), OPUS) == {"*/claude-opus-*:anthropic": 4, "host:h1": 3}


def test_c4_a_configured_host_replaces_the_one_built_in_for_hosts_only():
    assert needs(rules((Rule("agents", "host", cap=50),)), OPUS) == {"*/claude-opus-*:anthropic": 4, "host:h1": 50}


def test_c4_an_option_alone_is_no_cap_and_replaces_nothing():
    found = needs(rules((Rule("agents", "anthropic", cooldown_ms=5),)), OPUS)
    assert found == {"*/claude-opus-*:anthropic": 4, "host:h1": 3}


def test_c4_a_message_about_a_built_in_cap_says_so_and_how_to_raise_it():
    bench = Bench(agents={"host": 50})
    for n in range(4):
        bench.agent(f"a{n}", OPUS)
    assert bench.agent("e", OPUS, wait=False) == "deferred"
    assert "built in" in bench.reason("e").text
    assert "fleetgate cap set '*/claude-opus-*'" in bench.reason("e").text
    assert bench.reason("e").code == "opus_concurrency_cap"


def test_c4_a_message_about_a_configured_cap_does_not_say_that_it_is_built_in():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    assert "built in" not in bench.reason("b").text


# C2: layers.


def test_c2_run_time_goes_before_the_file_and_the_file_before_built_in():
    assert needs(rules((Rule("agents", "host", cap=5),)), "") == {"host:h1": 5}
    file, runtime = (Rule("agents", "host", cap=5),), (Rule("agents", "host", cap=7),)
    assert needs(rules(file, runtime), "") == {"host:h1": 7}
    assert needs(rules((), runtime), "") == {"host:h1": 7}


def test_c2_the_environment_goes_before_all_for_its_own_requests_only():
    made = rules((Rule("agents", "host", cap=5),), (Rule("agents", "host", cap=7),))
    assert needs(made, "", caps=(("host", 9),)) == {"host:h1": 9}
    assert needs(made, "") == {"host:h1": 7}


def test_c2_options_come_from_the_strongest_source_that_says_them():
    file = Rule("requests", "umans", cap=4, cooldown_ms=100, on_429="pause", max_hold_ms=5, name="u")
    made = rules((file,), (Rule("requests", "umans", cooldown_ms=0),))
    cap = made.caps["requests", "umans"]
    assert (cap.cap, cap.cooldown_ms, cap.on_429, cap.max_hold_ms, cap.name) == (4, 0, "pause", 5, "u")
    assert cap.source == "file"


def test_p4_of_two_selectors_that_make_one_pool_the_most_expensive_refusals_apply():
    for general, own, expected in (("expensive", "cheap", "expensive"), ("cheap", "normal", "normal")):
        made = rules(
            (Rule("requests", "umans", cap=4, refusals=general), Rule("requests", "umans@work", cap=2, refusals=own))
        )
        need = made.find("requests", "umans@work")
        assert need is not None
        assert (need.cap.cap, need.cap.refusals) == (2, expected)
        assert made.caps["requests", "umans"].refusals == general


def test_p4_a_selector_that_does_not_say_what_refusals_cost_changes_nothing_for_another():
    made = rules((Rule("requests", "umans", cap=4, refusals="cheap"), Rule("requests", "umans@work", cap=2)))
    need = made.find("requests", "umans@work")
    assert need is not None
    assert need.cap.refusals == "cheap"
    assert rules((Rule("requests", "umans", cap=4),)).caps["requests", "umans"].refusals == "normal"


def test_c2_a_person_may_lower_at_run_time_what_the_file_says_that_refusals_cost():
    file = Rule("requests", "umans", cap=4, refusals="expensive")
    made = rules((file,), (Rule("requests", "umans", refusals="cheap"),))
    assert made.caps["requests", "umans"].refusals == "cheap"


def test_p4_a_pool_that_learns_its_limit_is_told_what_refusals_cost_and_when_that_changes():
    bench = Bench(requests={"umans": 4})
    bench.call("a", CODER)

    def price() -> str:
        adaptive = bench.engine.state.pools["requests umans"].limiter.adaptive
        assert adaptive is not None
        return adaptive.refusals

    bench.do(cmd.SetRule(Rule("requests", "umans", on_429="adapt")))
    assert price() == "normal"
    bench.do(cmd.SetRule(Rule("requests", "umans", refusals="expensive")))
    assert price() == "expensive"
    bench.do(cmd.SetRule(Rule("requests", "umans", cap=9)))
    assert price() == "expensive", "other options stay unchanged"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule("requests", "umans", refusals="free"), "valid are cheap, normal, expensive"),
        (Rule("agents", "umans", refusals="cheap"), 'in requests, with on_429 = "adapt"'),
        (Rule("requests", "project", refusals="cheap"), 'in requests, with on_429 = "adapt"'),
        (Rule("requests", "umans", on_429="step", refusals="cheap"), 'in requests, with on_429 = "adapt"'),
        (Rule("requests", "groq", refusals="cheap"), "here it is pause"),
    ],
)
def test_p4_what_refusals_cost_is_said_where_a_limit_is_learned_and_nowhere_else(rule: Rule, says: str):
    bench = Bench()
    bench.do(cmd.SetRule(Rule("requests", "groq", cap=2, on_429="pause")))
    with pytest.raises(BadRequest, match=says):
        bench.do(cmd.SetRule(rule))
    bench.do(cmd.SetRule(Rule("requests", "groq", on_429="adapt", refusals="cheap")))
    assert bench.engine.state.rules.caps["requests", "groq"].refusals == "cheap"


def test_c2_cap_rm_means_unlimited_above_the_file_and_reset_returns_to_it():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    assert bench.agent("b", SONNET) == "waits"
    bench.do(cmd.RemoveCap("agents", "host"))
    assert bench.fate("b") == "offered"
    bench.do(cmd.ResetCap("agents", "host"))
    assert bench.agent("c", SONNET) == "waits"


def test_c2_cap_rm_of_a_built_in_cap_means_unlimited():
    bench = Bench()
    bench.do(cmd.RemoveCap("agents", "*/claude-opus-*"))
    bench.do(cmd.RemoveCap("agents", "host"))
    assert [bench.agent(f"a{n}", OPUS) for n in range(9)] == ["granted"] * 9


def test_c2_a_file_enters_once_per_content_and_only_when_it_is_newer():
    bench = Bench()

    def load(digest: str, modified: int, cap: int, force: bool = False) -> list[ev.Event]:
        return bench.do(cmd.LoadFile("f", digest, modified, (Rule("agents", "host", cap=cap),), force=force))

    assert load("one", 10, 5) != []
    assert load("one", 20, 5) == [], "the same content"
    assert load("two", 10, 6) == [], "not newer"
    assert load("two", 9, 6) == [], "older"
    assert load("two", 9, 6, force=True) != []
    assert load("three", 10, 7) != []
    assert bench.state.rules.caps["agents", "host"].cap == 7


def test_c2_a_file_that_no_longer_names_a_cap_takes_it_away():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    assert bench.call("b", CODER) == "waits"
    bench.file()
    assert bench.fate("b") == "offered"


# Environment.


def test_c3_an_environment_cap_on_an_uncapped_selector_counts_everybody():
    bench = Bench()
    bench.call("a", CODER)
    assert bench.call("b", CODER, caps=(("umans", 1),)) == "waits", "a is there"
    assert bench.call("c", CODER) == "granted", "and has no cap of its own"
    assert len(bench.of(ev.SelectorSeen)) == 1
    assert bench.call("d", CODER, caps=(("umans", 9),)) == "granted"
    assert len(bench.of(ev.SelectorSeen)) == 1, "it is counted already"
    bench.release("d")
    bench.release("a")
    bench.release("c")
    bench.wait(1_000)
    assert bench.fate("b") == "offered"


def test_c3_an_environment_cap_keeps_counting_when_the_file_drops_the_cap():
    bench = Bench(requests={"umans": 9})
    bench.call("a", CODER)
    assert bench.call("b", CODER, caps=(("umans", 1),)) == "waits"
    bench.file()
    assert bench.fate("b") == "waits", "a still has the only slot that b may take"


def test_c3_what_somebody_else_caps_for_one_account_leaves_the_general_cap_in_force():
    bench = Bench(requests={"umans": 1})
    assert bench.call("a", "umans@work/coder") == "granted"
    assert bench.call("b", "umans@work/coder", caps=(("umans@work", 9),)) == "granted"
    assert bench.call("c", "umans@work/coder") == "waits"


def test_c3_an_environment_cap_on_a_built_in_selector_holds_beside_a_configured_one():
    bench = Bench(agents={"anthropic/claude-opus-*": 4, "host": 9})
    bench.agent("a", OPUS)
    assert bench.agent("b", OPUS, caps=(("*/claude-opus-*", 1),)) == "waits"


def test_c3_an_environment_cap_replaces_the_built_in_one_of_the_same_scope():
    made = rules()
    assert needs(made, OPUS, caps=(("anthropic", 9),)) == {
        "anthropic": 9,
        "*/claude-opus-*:anthropic": UNLIMITED,
        "host:h1": 3,
    }
    assert needs(made, OPUS, caps=(("host", 9),)) == {"*/claude-opus-*:anthropic": 4, "host:h1": 9}


def test_c3_a_question_with_an_unknown_selector_is_answered_and_logs_nothing():
    bench = Bench()
    spec = Spec(models=(CODER,), kind="requests", caps=(("umans", 1),))
    assert not bench.engine.fits(spec, bench.now), "nobody has counted umans yet"
    assert bench.ask("a", spec)[0] == ev.SelectorSeen("requests", "umans")
    assert bench.engine.fits(Spec(models=(CODER,), kind="requests"), bench.now)


def test_c3_aidevops_opus_cap_lets_the_fifth_and_sixth_enter_over_a_file_that_says_four():
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 4})
    six = (("opus", 6),)
    fates = [bench.agent(f"a{n}", OPUS, family_caps=six, wait=False) for n in range(7)]
    assert fates == ["granted"] * 6 + ["deferred"]
    assert bench.reason("a6").limit == 6
    assert bench.agent("plain", OPUS, wait=False) == "deferred", "for others the file holds"


def test_c3_aidevops_opus_cap_replaces_every_cap_on_opus_and_no_other():
    made = rules((Rule("agents", "anthropic/claude-opus-4-6", cap=1), Rule("agents", "anthropic", cap=9)))
    six = (("opus", 6),)
    assert needs(made, OPUS, family_caps=six) == {"anthropic/claude-opus-4-6": 6, "anthropic": 9, "host:h1": 3}
    assert needs(rules(), OPUS, family_caps=six) == {"*/claude-opus-*:anthropic": 6, "host:h1": 3}
    assert needs(rules(), SONNET, family_caps=six) == {"host:h1": 3}


def test_c3_a_selector_of_the_environment_goes_before_the_family():
    found = needs(rules(), OPUS, family_caps=(("opus", 6),), caps=(("*/claude-opus-*", 2),))
    assert found["*/claude-opus-*:anthropic"] == 2


# N3, with several selectors.


def test_n3_a_cap_without_an_account_is_one_pool_for_each_account():
    bench = Bench(requests={"umans": 1})
    assert bench.call("a", CODER) == "granted"
    assert bench.call("b", "umans@work/coder") == "granted"
    assert bench.call("c", CODER) == "waits"


def test_n3_a_glob_of_accounts_is_one_pool_for_all_of_them():
    bench = Bench(requests={"umans@*": 1})
    assert bench.call("a", CODER) == "granted"
    assert bench.call("b", "umans@work/coder") == "waits"
    assert bench.state.pools["requests umans@*"].account == "umans@*"


def test_n3_host_is_one_pool_for_each_machine_and_project_one_for_each_project():
    bench = Bench(agents={"host": 1, "project": 2})
    assert bench.agent("a", SONNET, host="h1", project="x") == "granted"
    assert bench.agent("b", SONNET, host="h2", project="x") == "granted"
    assert bench.agent("c", SONNET, host="h3", project="x") == "waits"
    assert bench.agent("d", SONNET, host="h1", project="y") == "waits"
    assert bench.agent("e", SONNET, host="h4", project="y") == "granted"


def test_n3_the_cap_that_names_the_account_is_meant_and_the_other_holds_for_the_rest():
    made = rules((Rule("requests", "umans", cap=4), Rule("requests", "umans@work", cap=1)))
    assert needs(made, CODER, kind="requests") == {"umans": 4}
    assert needs(made, "umans@work/coder", kind="requests") == {"umans@work": 1}


def test_n3_options_for_one_account_go_with_the_general_cap():
    made = rules((Rule("requests", "umans", cap=4, cooldown_ms=900),), (Rule("requests", "umans@work", cooldown_ms=0),))
    need = made.find("requests", "umans@work")
    assert need is not None
    assert (need.cap.cap, need.cap.cooldown_ms, need.cap.selector.text) == (4, 0, "umans")
    assert made.caps["requests", "umans"].cooldown_ms == 900


def test_c2_cap_rm_for_one_account_removes_it_there_and_nowhere_else():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", "umans@work/coder")
    assert (bench.call("c", CODER), bench.call("d", "umans@work/coder")) == ("waits", "waits")
    bench.do(cmd.RemoveCap("requests", "umans@work"))
    assert (bench.fate("c"), bench.fate("d")) == ("waits", "offered")


def test_n3_a_cap_for_the_default_account_and_a_general_one_make_one_pool():
    made = rules((Rule("requests", "umans", cap=4), Rule("requests", "umans@default", cap=2)))
    assert needs(made, CODER, kind="requests") == {"umans": 2}
    need = made.find("requests", "umans")
    assert need is not None
    assert need.cap.cap == 2


@pytest.mark.parametrize(
    "pool", ["umans@", "umans@a b", "umans@*", "umans@default", "umans/coder", "", "host", "host:h"]
)
def test_a_name_that_no_request_would_need_is_no_pool(pool):
    assert rules((Rule("requests", "umans", cap=4),)).find("requests", pool) is None


@pytest.mark.parametrize("pool", ["*/claude-opus-*:", "*/claude-opus-*:a/b", "*/claude-opus-*", "*/claude-opus-*:a b"])
def test_a_name_without_a_proper_account_is_no_pool(pool):
    assert rules().find("agents", pool) is None


def test_the_provider_of_a_pool_must_match():
    made = rules((Rule("agents", "anth*/x", cap=1),))
    assert made.find("agents", "anth*/x:umans") is None
    assert made.find("agents", "anth*/x:anthropic@work") is not None


def test_project_without_a_name_is_a_project_too():
    made = rules((Rule("agents", "project", cap=1),))
    assert needs(made, "", project="", host="") == {"project:": 1}
    assert made.find("agents", "project:") is not None
