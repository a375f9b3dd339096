"""`fleetgate statusline` and `fleetgate observe` (rules W1, W3)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetgate.cli.statusline.refresh import refresh
from tests.cli.command_line import Cli, opened


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def statusline(cli: Cli, said: object, *argv: str) -> str:
    """What a process prints that gets this on stdin. It exits 0, whatever happens."""
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    command = [sys.executable, "-m", "fleetgate", "statusline", *argv]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60)
    assert done.returncode == 0, done
    assert not done.stderr
    assert done.stdout.count(b"\n") == 1
    return done.stdout.decode()


def limits(used: float, in_s: int = 7_800) -> dict[str, object]:
    return {"rate_limits": {"five_hour": {"used_percentage": used, "resets_at": int(time.time()) + in_s}}}


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def used(cli: Cli) -> dict[str, int]:
    return {key: window.used_then for key, window in cli.gate.replica.catch_up().plans.windows.items()}


def test_w3_the_line_has_slots_and_windows_and_feeds_the_windows_back(cli: Cli):
    cli.configure("[agents]\nhost = 5\n")
    cli.occupy()
    assert re.fullmatch(r"fleetgate: 5h 33% until \d\d:\d\d\n", statusline(cli, limits(33.4)))
    until(lambda: used(cli) == {"plan anthropic 5h": 3_340})
    until((Path(cli.folder) / "s" / "statusline.json").exists)
    assert re.fullmatch(r"fleetgate: 1/5 running \| 5h 33% until \d\d:\d\d\n", statusline(cli, {}))


def test_q2_after_the_wall_clock_was_set_back_the_line_is_brought_up_to_date_at_once(cli: Cli):
    cli.occupy()
    path = Path(cli.folder) / "s" / "statusline.json"
    path.write_text(json.dumps({"at": time.time() + 3_600, "slots": "9 running"}))
    os.utime(path, (time.time() + 3_600,) * 2)
    assert statusline(cli, {}) == "fleetgate: starting\n"
    until(lambda: statusline(cli, {}) == "fleetgate: 1/3 running\n")


@pytest.mark.parametrize(
    "said", [b"", b"not json", b"[1]", b'{"rate_limits": 5}', b'{"rate_limits": {"x": 1}}', b"\xff\xff"]
)
def test_w3_whatever_comes_there_is_a_line(cli: Cli, said: bytes):
    cli.occupy()
    refresh(str(cli.folder / "s"), said, "anthropic")
    assert statusline(cli, said) == "fleetgate: 1/3 running\n"


def test_w3_without_a_store_there_is_a_line(cli: Cli):
    cli.env("FLEETGATE_HOME", str(cli.folder / "nothing"))
    assert statusline(cli, limits(10)).startswith("fleetgate: 5h 10% until ")
    assert statusline(cli, {}) == "fleetgate: 0 running\n", "nothing ever ran"
    cli.env("FLEETGATE_STORE", "postgresql://gate@127.0.0.1:1/nothing")
    assert statusline(cli, limits(10)).startswith("fleetgate: 5h 10% until ")
    assert statusline(cli, {}) == "fleetgate: shared store\n"
    cli.env("FLEETGATE_STORE", "nonsense")
    assert statusline(cli, {}) == "fleetgate: run `fleetgate doctor`\n"


def test_w3_a_file_that_is_not_ours_to_believe_is_ignored(cli: Cli):
    cli.occupy()
    path = Path(cli.folder) / "s" / "statusline.json"
    for text in ("{}", "[]", "{", '{"at": "x"}', json.dumps({"at": 5, "slots": "old"})):
        path.write_text(text)
        assert statusline(cli, {}) == "fleetgate: starting\n"


def test_w1_another_account_is_named(cli: Cli):
    cli.occupy()
    refresh(str(cli.folder / "s"), json.dumps(limits(20)).encode(), "anthropic@work")
    assert used(cli) == {"plan anthropic@work 5h": 2_000}
    assert "5h 20%" in statusline(cli, {}, "--account", "anthropic@work")
    cli.env("FLEETGATE_MODEL", "anthropic@work/claude-opus-4-6")
    assert "5h 20%" in statusline(cli, {})


def test_w3_the_line_costs_less_than_loading_the_gate(cli: Cli):
    """No wall clock: what it loads is what it costs."""
    code = (
        "import sys; from fleetgate.cli.statusline.line import print_line; print_line();"
        "print(sorted(name for name in sys.modules if name.startswith('fleetgate')))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"{}", capture_output=True, timeout=60, check=True)
    loaded = done.stdout.decode().splitlines()[1]
    assert "fleetgate.core" not in loaded
    assert "fleetgate.gate" not in loaded


def test_w1_observe_records_a_window_and_says_so(cli: Cli):
    said = cli("observe", "--window", "5h", "--used", "33%", "--resets-in", "2h10m")
    assert (said.code, said.err) == (0, "fleetgate: anthropic: 33% of 5h\n")
    assert "already" in cli("observe", "--window", "5h", "--used", "33%", "--resets-in", "2h10m").err
    assert used(cli) == {"plan anthropic 5h": 3_300}
    (plan,) = cli.json("status")["plans"]
    assert (plan["account"], plan["window"], plan["used_percent"], plan["runway"]) == ("anthropic", "5h", 33.0, "safe")
    assert "33 %" in cli.ok("status")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--window", "5h"),
        ("--window", "5h", "--used", "x", "--resets-in", "1h"),
        ("--window", "5h", "--used", "163%", "--resets-in", "1h"),
        ("--window", "5 hours", "--used", "3%", "--resets-in", "1h"),
        ("--window", "5h", "--used", "3%", "--resets-in", "90h"),
        ("--statusline", "--window", "5h"),
        ("--account", "no such", "--window", "5h", "--used", "3%", "--resets-in", "1h"),
    ],
)
def test_w1_a_window_that_cannot_be_is_refused_with_what_is_valid(cli: Cli, argv: tuple[str, ...]):
    cli.refused("observe", *argv)


def test_w3_capacity_is_red_while_a_window_runs_dry(cli: Cli):
    cli.ok("observe", "--window", "5h", "--used", "100%", "--resets-in", "2h")
    found = cli("capacity", "-m", "anthropic/claude-opus-4-6", "--json")
    assert (found.code, found.json["level"], found.json["reason"]["code"]) == (75, "red", "plan_window")
    assert found.json["reason"]["used_percent"] == 100.0
    assert cli.json("capacity", "-m", "anthropic/claude-opus-4-6", "--class", "interactive")["level"] == "green"
    assert cli.json("capacity", "-m", "openai/gpt-5")["level"] == "green"


def test_w3_top_shows_the_windows(cli: Cli):
    cli.ok("observe", "--window", "5h", "--used", "33%", "--resets-in", "2h")
    assert "anthropic 33 % of 5h, resets " in cli.ok("top", "--once")


def test_w1_the_line_is_that_of_the_account_whose_login_the_agent_uses(cli: Cli, tmp_path: Path):
    login = tmp_path / "claude-work"
    cli.configure(f'[providers."anthropic@work"]\nenv = {{ CLAUDE_CONFIG_DIR = "{login}" }}\n')
    cli.occupy()
    statusline(cli, limits(10))
    until(lambda: used(cli) == {"plan anthropic 5h": 1_000})
    until((Path(cli.folder) / "s" / "statusline.json").exists)
    time.sleep(2.1)  # what is younger is not written again
    cli.env("CLAUDE_CONFIG_DIR", f"{login}/")
    assert "5h 40%" in statusline(cli, limits(40))
    until(lambda: used(cli) == {"plan anthropic 5h": 1_000, "plan anthropic@work 5h": 4_000})
    until(lambda: "5h 40%" in statusline(cli, {}))
    cli.env("CLAUDE_CONFIG_DIR", "/another")
    assert "5h 10%" in statusline(cli, {})
