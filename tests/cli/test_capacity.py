"""`fleetgate capacity` (rules A11, A3, O4, C3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from tests.cli.command_line import Cli, opened

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def level(cli: Cli, *argv: str) -> tuple[str, int | None, int]:
    """Level, free slots and exit code."""
    said = cli("capacity", *argv, "--json")
    return said.json["level"], said.json["free"], said.code


def cap(cli: Cli, selector: str, number: int, kind: str = "agents") -> None:
    cli.gate.one(cmd.SetRule(Rule(kind, selector, cap=number)))


def test_o4_capacity_json_has_every_key(cli: Cli):
    document = cli.json("capacity", "-m", OPUS)
    assert set(document) >= {"level", "free", "queued", "wait_s", "reason"}
    assert (document["queued"], document["wait_s"], document["reason"]) == (0, [0.0, 0.0], None)


def test_a11_two_free_and_no_line_is_green(cli: Cli):
    cap(cli, "host", 2)
    assert level(cli, "-m", OPUS) == ("green", 2, 0)
    assert cli.ok("capacity", "-m", OPUS) == f"green: 2 slots free for {OPUS}, nothing waiting\n"


def test_a11_an_idle_cap_of_one_is_green(cli: Cli):
    cap(cli, "host", 1)
    assert level(cli, "-m", OPUS) == ("green", 1, 0)


def test_a11_one_free_is_yellow(cli: Cli):
    cap(cli, "host", 2)
    cli.occupy(OPUS)
    assert level(cli, "-m", OPUS) == ("yellow", 1, 0)


def test_a11_a_full_pool_without_an_estimate_is_red_and_exits_75(cli: Cli):
    cap(cli, "host", 1)
    cli.occupy(OPUS)
    said = cli("capacity", "-m", OPUS)
    assert said.code == 75
    assert said.out.startswith(f"red: no slot is free for {OPUS}, nothing waiting, no estimate yet\n")
    document = cli("capacity", "-m", OPUS, "--json").json
    assert (document["wait_s"], document["reason"]["code"]) == (None, "concurrency_cap")


def test_a11_a_short_wait_is_yellow_and_tells_how_long(cli: Cli):
    cap(cli, "host", 1)
    cli.gate.one(cmd.Release(cli.occupy(OPUS)))
    cli.occupy(OPUS)
    cli.stand(OPUS)
    assert level(cli, "-m", OPUS) == ("yellow", 0, 0)
    assert "1 waiting, less than 1s to wait" in cli.ok("capacity", "-m", OPUS)


def test_a3_a_line_for_another_model_does_not_count(cli: Cli):
    cap(cli, "host", 9)
    cap(cli, "*/claude-opus-*", 1)
    cli.occupy(OPUS)
    for _ in range(3):
        cli.stand(OPUS)
    document = cli.json("capacity", "-m", SONNET)
    assert (document["level"], document["free"], document["queued"], document["reason"]) == ("green", 8, 0, None)
    document = cli("capacity", "-m", OPUS, "--json").json
    assert (document["level"], document["queued"]) == ("red", 3)


def test_a11_where_nothing_is_capped_it_is_green(cli: Cli):
    cli.gate.one(cmd.RemoveCap("agents", "host"))
    assert level(cli, "-m", "x/y") == ("green", None, 0)
    assert cli.ok("capacity", "-m", "x/y") == "green: nothing is capped for x/y, nothing waiting\n"


def test_a11_a_pause_means_no_slot(cli: Cli):
    cap(cli, "umans", 4, "requests")
    cli.gate.one(cmd.Pause("requests", "umans"))
    said = cli("capacity", "-m", "umans/coder", "--kind", "requests", "--json")
    assert (said.code, said.json["level"], said.json["free"]) == (75, "red", 0)
    assert said.json["reason"]["code"] == "paused"
    assert level(cli, "-m", "umans/coder")[0] == "green", "the pause is of the requests pool"


def test_a11_what_the_dead_hold_is_free(cli: Cli):
    cap(cli, "host", 1)
    me = cli.gate.me.split("|")
    dead = "|".join([*me[:3], "1", "1"])  # pid 1 has not started at tick 1
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(host=cli.gate.host), dead))
    assert level(cli) == ("green", 1, 0)


def test_a11_the_project_counts(cli: Cli):
    cap(cli, "project", 1)
    spec = Spec(host=cli.gate.host, project="website")
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", spec, cli.gate.me))
    assert level(cli, "--project", "website")[0] == "red"
    assert level(cli, "--project", "other")[0] == "green"


def test_c3_caps_of_the_environment_count_for_who_has_it(cli: Cli):
    cap(cli, "host", 9)
    cli.occupy(SONNET)
    cli.env("FLEETGATE_AGENTS", "anthropic/claude-sonnet-*=1")
    before = cli.length()
    assert level(cli, "-m", SONNET) == ("red", 0, 75)
    assert cli.length() == before
    cli.unset("FLEETGATE_AGENTS")
    assert level(cli, "-m", SONNET) == ("green", 8, 0)


def test_c1_without_a_model_those_of_the_config_count(cli: Cli):
    cli.configure('models = ["anthropic/claude-opus-4-6"]\n[agents]\n"anthropic/claude-opus-*" = 1\n')
    cli.occupy(OPUS)
    assert level(cli)[0] == "red"
    assert cli("capacity", "--json").json["models"] == [OPUS]


def test_a11_without_any_model_the_host_counts(cli: Cli):
    assert cli.ok("capacity") == "green: 3 slots free for a request without a model, nothing waiting\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("-m", "nonsense"), "not a model: 'nonsense'; a model is provider/model"),
        (("-m", "a/b,,"), "not a model: ''"),
        (("-m", "a/b c"), "not a model"),
        (("-m",), "requires an argument"),
        (("--kind", "slots"), "is not one of 'agents', 'requests'"),
        (("--project", "x" * 101), "valid is up to 100 printable characters"),
        (("--project", "a\tb"), "valid is up to 100 printable characters"),
        (("--nonsense",), "no such option"),
        (("extra",), "unexpected extra argument"),
    ],
)
def test_q1_bad_values_are_usage_errors(cli: Cli, argv: tuple[str, ...], told: str):
    assert told in cli.refused("capacity", *argv)


def test_c3_a_bad_environment_is_a_config_error(cli: Cli):
    cli.env("FLEETGATE_AGENTS", "host=many")
    assert "FLEETGATE_AGENTS" in cli.refused("capacity", code=78)


def test_foreign_agents_count_also_while_the_lock_is_taken(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    cap(cli, "host", 1)
    cli.configure("[[census]]\nmatch = 'an-agent (?P<model>x)'\n")
    cli("capacity", "-m", OPUS)  # the file is known
    monkeypatch.setattr(
        "fleetgate.gate.liveness.host_observer.HostObserver.observe",
        lambda self, current, host: cmd.Observe(host, (("", 1),)),
    )
    cli.gate.log.lock()
    try:
        assert level(cli, "-m", OPUS) == ("red", 0, 75)
    finally:
        cli.gate.log.unlock()
