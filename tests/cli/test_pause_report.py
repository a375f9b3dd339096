"""`cooldown`, `pause`, `resume` and `report` (SPEC K, P, A12)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from fleetgate.config.units import format_duration
from fleetgate.core import events as ev
from fleetgate.core.limits.adaptive_tuning import USUAL_LAG_MS
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def umans(cli: Cli) -> Cli:
    cli.ok("cap", "set", "umans", "4", "--kind", "requests", "--on-429", "step")
    return cli


def seconds_until(text: str) -> float:
    return (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()


# cooldown


def test_k1_the_cooldown_in_force_is_shown_with_its_source(cli: Cli):
    cli.configure('[requests]\numans = { cap = 4, cooldown = "2s" }\nother = 4\n[agents]\nlocal = 4\n')
    assert cli.ok("cooldown", "umans") == "umans (requests): cooldown 2s (file)\n"
    assert cli.ok("cooldown", "other") == f"other (requests): cooldown {format_duration(USUAL_LAG_MS)} (learned)\n"
    assert cli.ok("cooldown", "local") == "local (agents): cooldown 0s (built-in)\n"
    assert cli.ok("cooldown", "umans", "1500ms") == "umans (requests): cooldown 1.5s (run time)\n"
    assert cli.json("cooldown", "umans") == {
        "selector": "umans",
        "kind": "requests",
        "cooldown_ms": 1500,
        "source": "run time",
        "capped": True,
    }


def test_k1_a_cooldown_of_zero_is_instant(umans: Cli):
    assert umans.ok("cooldown", "umans", "0") == "umans (requests): cooldown 0s (run time)\n"
    umans.ok("release", umans.occupy("umans/coder", kind="requests"))
    assert umans.state.pools["requests umans"].cooldown.heap == []


def test_k3_a_cooldown_without_a_cap_is_remembered_imposes_no_cap_and_applies_when_one_is_set(cli: Cli):
    out = cli.ok("cooldown", "umans", "5")
    assert out == "umans (requests): cooldown 5s (run time); applies when a cap is set\n"
    for _ in range(10):
        cli.occupy("umans/coder", kind="requests")
    cli.ok("cap", "set", "umans", "20", "--kind", "requests", "--on-429", "step")
    ident = cli.occupy("umans/coder", kind="requests")
    cli.ok("release", ident)
    assert cli.state.pools["requests umans"].cooldown.slots == 1
    assert cli.json("cooldown", "umans")["cooldown_ms"] == 5000


# pause and resume


def test_p1_nobody_new_enters_a_paused_pool_and_those_inside_go_on(umans: Cli):
    umans.occupy("umans/coder", kind="requests")
    out = umans.ok("pause", "umans", "--for", "10m")
    assert out.startswith("umans (requests): paused until ")
    assert out.endswith(" (in 10m); 1 running continue\n")
    waits = umans.stand("umans/coder", kind="requests")
    assert len(umans.state.leases) == 1
    assert umans.ok("resume", "umans") == "umans (requests): resumed\n1 waiting started\n"
    assert waits in umans.state.leases


def test_p1_a_pause_without_an_end_lasts_until_somebody_resumes_it(umans: Cli):
    assert umans.ok("pause", "umans") == "umans (requests): paused until it is resumed\n"
    (pool,) = umans.json("pause", "umans")["pools"]
    assert pool == {"pool": "umans", "kind": "requests", "paused": True, "paused_until": None}
    (pool,) = umans.json("pause", "umans", "--for", "90")["pools"]
    assert 80 < seconds_until(pool["paused_until"]) < 91


def test_n2_pausing_host_pauses_this_machine(cli: Cli):
    host = f"host:{cli.gate.host}"
    assert cli.ok("pause", "host") == f"{host} (agents): paused until it is resumed\n"
    assert cli("acquire", "--no-wait").code == 75
    assert cli.json("resume", host) == {"pools": [{"pool": host, "kind": "agents"}], "entered": 0}


def test_n3_a_selector_pauses_all_its_pools_and_a_name_that_is_a_pool_that_one(cli: Cli):
    cli.ok("cap", "set", "*/gpt-*", "4", "--kind", "requests")
    cli.ok("cap", "set", "umans", "4", "--kind", "requests", "--on-429", "step")
    for model in ("openai/gpt-5", "azure/gpt-5", "umans/coder", "umans@work/coder"):
        cli.occupy(model, kind="requests")
    pools = cli.json("pause", "*/gpt-*")["pools"]
    assert {pool["pool"] for pool in pools} == {"*/gpt-*:openai", "*/gpt-*:azure"}
    out = cli.ok("pause", "umans")
    assert "not paused, other accounts of the same cap: umans@work\n" in out
    assert cli("acquire", "-m", "umans@work/coder", "--kind", "requests", "--no-wait").code == 0


def test_l1_resuming_what_is_not_paused_is_harmless(umans: Cli):
    before = umans.length()
    assert umans.ok("resume", "umans") == "umans (requests): was not paused\n"
    assert umans.length() == before


def test_p3_resume_leaves_a_lowered_limit_as_it_is_and_says_so(umans: Cli):
    umans.ok("report", "umans", "--rate-limited")
    assert umans.ok("resume", "umans") == "umans (requests): resumed; its limit is still 3 of 4 after rate limits\n"


# report


def test_p1_a_report_pauses_the_pool_for_retry_after_and_lowers_its_limit(umans: Cli):
    out = umans.ok("report", "umans", "--rate-limited", "--retry-after", "45")
    assert out.startswith("umans (requests): paused until ")
    assert out.endswith("(in 45s); limit now 3 of 4 (to restore: fleetgate cap set 'umans' 4 --kind requests)\n")
    told = umans.json("report", "umans", "--rate-limited", "--retry-after", "3")
    assert (told["limit"], told["cap"], told["incident"]) == (2, 4, True)
    assert 35 < seconds_until(told["paused_until"]) < 46, "a later report made the pause shorter"


def test_p1_without_a_hint_the_pause_is_thirty_seconds(umans: Cli):
    told = umans.json("report", "umans", "--rate-limited")
    assert 25 < seconds_until(told["paused_until"]) < 31


def test_p2_reports_of_leases_from_before_the_pause_are_one_incident(umans: Cli):
    one, two = (umans.occupy("umans/coder", kind="requests") for _ in range(2))
    assert umans.json("report", "--rate-limited", "--lease", one)["limit"] == 3
    told = umans.json("report", "umans/coder", "--rate-limited", "--lease", two[:7])
    assert (told["pool"], told["limit"], told["incident"]) == ("umans", 3, False)
    assert "limit stays 3 (already reported)" in umans.ok("report", "--rate-limited", "--lease", one)


def test_p4_an_agents_pool_is_paused_and_keeps_its_limit(cli: Cli):
    out = cli.ok("report", OPUS, "--rate-limited")
    assert out.startswith("*/claude-opus-*:anthropic (agents): paused until ")
    assert out.endswith("; limit stays 4\n")


def test_p1_a_model_means_its_narrowest_capped_pool_and_a_model_call_where_both_kinds_are_capped(cli: Cli):
    for selector, kind in (("umans", "requests"), ("umans/coder", "requests"), ("umans/coder", "agents")):
        cli.ok("cap", "set", selector, "4", "--kind", kind)
    told = cli.json("report", "umans/coder", "--rate-limited")
    assert (told["pool"], told["kind"]) == ("umans/coder", "requests")
    assert cli.json("report", "umans/other", "--rate-limited")["pool"] == "umans"
    assert cli.json("report", "umans@default", "--rate-limited")["pool"] == "umans"
    assert cli.json("report", "umans/coder", "--rate-limited", "--kind", "agents")["kind"] == "agents"


def test_b1_a_model_that_nothing_caps_is_backed_off(cli: Cli):
    told = cli.json("report", "free/model", "--rate-limited", "--retry-after", "45")
    assert (told["pool"], told["backoff"]["key"], told["backoff"]["reason"]) == (None, "free/model", "rate_limited")
    assert 35 < seconds_until(told["backoff"]["until"]) < 46
    ident = cli.occupy("free/other")
    out = cli.ok("report", "--rate-limited", "--lease", ident)
    assert out.startswith("free/other: has no cap, so it is backed off: rate_limited, until ")
    assert "fleetgate backoff clear free/other" in out
    assert sorted(cli.state.backoffs) == ["free/model", "free/other"]
    assert "free/model" in cli.ok("backoff", "ls")


def test_b1_a_lease_without_a_model_slows_nothing_down(cli: Cli):
    ident = cli.occupy()
    before = cli.length()
    assert cli.ok("report", "--rate-limited", "--lease", ident).startswith("nothing to do")
    assert cli.json("report", "--rate-limited", "--lease", ident)["backoff"] is None
    assert cli.length() == before


def test_p1_host_and_project_never_learn_from_a_rate_limit(cli: Cli):
    for target in ("host", "project", f"host:{cli.gate.host}"):
        assert "a rate limit never acts on" in cli.refused("report", target, "--rate-limited")


def test_q1_a_report_that_could_mean_several_pools_names_them(cli: Cli):
    cli.ok("cap", "set", "*/gpt-*", "4", "--kind", "requests")
    for model in ("openai/gpt-5", "azure/gpt-5"):
        cli.occupy(model, kind="requests")
    assert "*/gpt-*:azure, */gpt-*:openai" in cli.refused("report", "*/gpt-*", "--rate-limited")


def test_p1_a_report_for_a_lease_acts_on_the_pool_of_it_that_is_named_and_on_no_other(umans: Cli):
    umans.ok("cap", "set", "umans/coder", "2", "--kind", "requests", "--on-429", "step")
    ident = umans.occupy("umans/coder", kind="requests")
    told = umans.refused("report", "umans@work", "--rate-limited", "--lease", ident)
    assert "takes no slot of 'umans@work': its pools are umans/coder, umans" in told
    assert "is of kind requests" in umans.refused("report", "--rate-limited", "--lease", ident, "--kind", "agents")
    assert umans.json("report", "umans@default", "--rate-limited", "--lease", ident)["pool"] == "umans"
    assert umans.json("report", "umans/coder", "--rate-limited", "--lease", ident)["pool"] == "umans/coder"


def test_p5_pause_and_limit_are_there_for_the_next_process(umans: Cli):
    umans.ok("report", "umans", "--rate-limited", "--retry-after", "600")
    umans.close()
    pool = umans.state.named("requests", "umans")
    assert pool is not None
    assert (pool.limit, pool.pause_cause) == (3, "rate_limited")
    assert pool.paused_until > umans.gate.now()
    assert [type(event) for event in umans.events()[-2:]] == [ev.Paused, ev.Reduced]
    assert umans("acquire", "-m", "umans/coder", "--kind", "requests", "--no-wait").code == 75


@pytest.mark.parametrize("number", ["350", "1000", "31"])
def test_a_cooldown_that_may_be_milliseconds_or_seconds_is_refused(cli: Cli, number: str):
    told = f"add a unit, {number}ms or {number}s"
    assert told in cli.refused("cooldown", "umans", number)
    assert told in cli.refused("cap", "set", "umans", "4", "--cooldown", number)
    cli.ok("cooldown", "umans", "0")
