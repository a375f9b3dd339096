"""What the reading commands look like: on terminals of any width, in pipes, in poor locales (rule Q1)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.present.text import count, span, spans
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
LISTINGS = (("status",), ("queue",), ("ps",), ("capacity", "-m", OPUS), ("history",), ("metrics",), ("doctor",))
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    monkeypatch.setattr("fleetgate.cli.doctor.check_store.LOCK_PATIENCE_S", 0.2)
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def busy(cli: Cli) -> Cli:
    """A gate with something for every column."""
    gate = cli.gate
    gate.one(cmd.SetRule(Rule("requests", "umans", 4)))
    gate.one(cmd.SetRule(Rule("agents", "anthropic@a-very-long-account-name/claude-opus-*", 24)))
    gate.one(cmd.SetRule(Rule("agents", "host", 2)))
    gate.one(cmd.Release(cli.occupy("umans/coder", kind="requests"), "server_error"))
    gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=600_000))
    for _ in range(2):
        cli.occupy(OPUS)
    for number, command in enumerate(
        ("opencode run " + "x" * 180, "claude -p '日本語のプロンプト、とても長い' ünïcödé", "aider")
    ):
        spec = Spec(models=(OPUS, "openai/gpt-5"), host=gate.host, project="the website of a long project")
        gate.one(
            cmd.Acquire(f"busyticke{number}", spec, f"build-0{number}.example.org|abc|1|4194303|99", command=command)
        )
    return cli


def process(*argv: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "fleetgate", *argv]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environ}, check=False)


def on_terminal(columns: int, *argv: str, **environ: str) -> str:
    """What a command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", **environ}
    written = b""
    with subprocess.Popen([sys.executable, "-m", "fleetgate", *argv], stdout=theirs, stderr=theirs, env=env) as running:
        os.close(theirs)
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:  # Linux: the other end is closed
            pass
        os.close(ours)
    assert running.returncode in (0, 75)
    return written.decode().replace("\r\n", "\n")


# In a pipe.


@pytest.mark.parametrize("argv", LISTINGS, ids=lambda argv: argv[0])
def test_a_pipe_gets_plain_text(busy: Cli, argv: tuple[str, ...]):
    script = f"from fleetgate.cli.main import invoke; invoke({list(argv)!r})"
    busy.gate.one(cmd.Cancel("busyticke1"))  # whose command is not one column a letter
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b" not in done.stdout
    assert not re.search("[─-╿█░]", done.stdout.decode())


def test_in_a_pipe_names_are_whole_and_one_line_is_one_thing(busy: Cli):
    text = busy.ok("queue")
    (line,) = [line for line in text.splitlines() if "busyticke0" in line]
    assert f"{OPUS}, openai/gpt-5" in line
    assert "build-00.example.org" in line
    assert "the website of a long project" in line


# All listings in one process: each says how it ended on a line of its own.
ALL_LISTINGS = f"""
from fleetgate.cli.main import invoke
for argv in {LISTINGS!r}:
    for extra in ((), ("--json",)):
        code = invoke([*argv, *extra])
        print("ended:", code, flush=True)
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict", "utf-8"])
def test_q1_no_locale_makes_it_crash(busy: Cli, encoding: str):
    env = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", ALL_LISTINGS], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    listings = re.split(r"^ended: (?:0|75)\n", done.stdout.decode(encoding.partition(":")[0]), flags=re.MULTILINE)
    assert listings.pop() == ""
    assert len(listings) == 2 * len(LISTINGS)
    assert all(listings)


def test_q1_json_stays_json_in_a_poor_locale(busy: Cli):
    done = process("queue", "--json", PYTHONIOENCODING="ascii")
    commands = {ticket["id"]: ticket["command"] for ticket in json.loads(done.stdout)["tickets"]}
    assert "日本語" in commands["busyticke1"]


# On a terminal.


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("argv", [("status",), ("queue",), ("ps",), ("metrics",)], ids=lambda argv: argv[0])
def test_on_a_terminal_no_row_is_longer_than_it_is_wide(busy: Cli, argv: tuple[str, ...], columns: int):
    from rich.cells import cell_len

    text = ANSI.sub("", on_terminal(columns, *argv))
    assert text
    commands = [line for line in text.splitlines() if line.startswith("  fleetgate ")]
    assert [line for line in text.splitlines() if cell_len(line) > columns and line not in commands] == []


@pytest.mark.parametrize("columns", [1, 20, 39, 500])
@pytest.mark.parametrize("argv", LISTINGS, ids=lambda argv: argv[0])
def test_q1_no_width_makes_it_crash(busy: Cli, argv: tuple[str, ...], columns: int):
    busy.env("COLUMNS", str(columns))
    said = busy(*argv)
    assert said.code in (0, 75)
    assert said.out


@pytest.mark.parametrize("columns", ["0", "-5", "many", "99999999999999999999", "٣"])
def test_q1_a_senseless_width_is_none(busy: Cli, columns: str):
    busy.env("COLUMNS", columns)
    assert "build-00.example.org" in busy.ok("queue")


def test_a_terminal_has_colours_and_bars_and_ids_in_full(busy: Cli):
    text = on_terminal(80, "status")
    assert "\x1b[" in text
    assert "█" in text
    shown = ANSI.sub("", on_terminal(80, "queue"))
    for number in range(3):
        assert f"busyticke{number}" in shown
    assert "…" in shown


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}])
def test_colours_can_be_refused(busy: Cli, environ: dict[str, str]):
    text = on_terminal(80, "status", **environ)
    assert "\x1b" not in text
    assert "█" in text


def test_a_terminal_that_knows_only_ascii_gets_ascii(busy: Cli):
    text = on_terminal(80, "status", PYTHONIOENCODING="ascii")
    assert text.isascii()
    assert "#" in text


# The pieces.


def lines(capsys: pytest.CaptureFixture[str], screen: Screen) -> list[str]:
    capsys.readouterr()
    screen.show()
    return capsys.readouterr().out.splitlines()


def test_columns_are_cut_before_others_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    columns = (Column("ID"), Column("NAME", least=8, name=True), Column("EXTRA", spare=True), Column("TEXT", least=6))
    row = ("abcdefghij", "anthropic/claude", "extra", "words and words and words")
    drawn = {}
    for width in (80, 40, 30, 20):
        monkeypatch.setenv("COLUMNS", str(width))
        screen = Screen()
        screen.table(columns, [row])
        drawn[width] = lines(capsys, screen)[1]
    assert drawn == {
        80: "abcdefghij  anthropic/claude  extra  words and words and words",
        40: "abcdefghij  ant…laude  extra  words and…",
        30: "abcdefghij  ant…aude  words a…",
        20: "abcdefghij  an…ude  words…",
    }


def test_columns_in_which_nothing_stands_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)
    screen = Screen()
    screen.table(
        (Column("A"), Column("EMPTY"), Column("B", right=True)), [("1", "", "2"), (Cell("x", "red"), "", "33")]
    )
    assert lines(capsys, screen) == ["A   B", "1   2", "x  33"]


def test_prose_is_wrapped_but_commands_are_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    screen.prose("it is full now: raise it with `fleetgate cap set host 1234` and look again", "  ")
    assert lines(capsys, screen) == [
        "it is full now: raise it with",
        "  `fleetgate cap set host 1234` and look",
        "  again",
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0s"), (0, "0s"), (999, "0s"), (28_000, "28s"), (59_999, "59s"), (60_000, "1m"), (3_599_999, "59m"),
     (3_600_000, "1h"), (7_500_000, "2h 5m"), (86_400_000, "1d"), (356_400_000, "4d 3h")],
)  # fmt: skip
def test_durations_are_told_as_people_do(ms: int, text: str):
    assert span(ms) == text


def test_ranges_and_counts():
    assert (spans(40_000, 180_000), spans(1000, 1500)) == ("40s–3m", "1s")
    assert (count(1, "slot"), count(0, "slot"), count(2, "entry", "entries")) == ("1 slot", "0 slots", "2 entries")
