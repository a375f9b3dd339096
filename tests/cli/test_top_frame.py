"""What `fleetgate top` draws: a state as lines, at any size, whatever the texts are (rules Q1, P3, O1-O3)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from fleetgate.cli.output.cells import cell_width
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.top.layout import frame
from fleetgate.cli.top.loop import begin
from fleetgate.cli.top.panes import BACKOFFS, LEASES, POOLS, TICKETS, slots_bar
from fleetgate.cli.top.selection import Ui
from fleetgate.cli.top.snapshot import GateView, snapshot
from fleetgate.cli.top.terminal import Display, painted
from fleetgate.cli.top.trend import Trend
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
SIZES = [(60, 24), (100, 30), (160, 50)]
HOSTILE = "claude -p 'a\x1b[2J\x1b]0;owned\x07b\u202e\r\n日本語のプロンプト'"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def busy(cli: Cli) -> Cli:
    """Something for every pane: full, reduced and paused pools, a hostile command in the queue, a backoff."""
    gate = cli.gate
    gate.one(cmd.SetRule(Rule("requests", "umans", 4, cooldown_ms=60_000, on_429="step")))
    gate.one(cmd.SetRule(Rule("agents", "host", 2)))
    gate.one(cmd.Release(cli.occupy("umans/coder", kind="requests")))
    gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=600_000))
    gate.one(cmd.BackOff("openai/gpt-5", "overloaded", 300_000))
    for _ in range(2):
        cli.occupy(OPUS)
    for number in range(9):
        spec = Spec(models=(OPUS,), host=gate.host, project="web")
        gate.one(cmd.Acquire(f"ticket{number}", spec, gate.me, command=HOSTILE))
    return cli


def shot_of(cli: Cli) -> GateView:
    return snapshot(cli.gate, cli.state)


def trend_of(cli: Cli) -> Trend:
    trend = Trend()
    begin(trend, cli.gate, cli.state)
    return trend


def drawn(cli: Cli, width: int, height: int, ui: Ui | None = None, *, colour: bool = False) -> list[str]:
    lines = frame(shot_of(cli), trend_of(cli), ui or Ui(), width, height)
    return [painted(line, Screen(width), width, colour=colour) for line in lines]


def plain(lines: list[str]) -> str:
    return ANSI.sub("", "\n".join(lines))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_everything_that_the_gate_does_is_on_one_screen(busy: Cli, width: int, height: int) -> None:
    text = plain(drawn(busy, width, height))
    for expected in (
        "2 running",
        "9 waiting",
        "1 backed off",
        "in flight",
        "429s",
        "umans",
        "2/2",
        "0/3",
        "overloaded",
    ):
        assert expected in text
    assert re.search(r" 1/9  ticket0 ", text), "the head of the queue, with its position"
    for lease in busy.state.leases:
        assert lease in text


@pytest.mark.parametrize(("width", "height"), [*SIZES, (20, 5), (60, 12), (40, 1), (200, 3), (10, 10), (1, 1)])
def test_q1_nothing_is_wider_or_higher_than_the_terminal_and_nothing_moves_its_cursor(
    busy: Cli, width: int, height: int
) -> None:
    for focus in (POOLS, TICKETS, LEASES, BACKOFFS):
        ui = Ui()
        ui.focus = focus
        lines = drawn(busy, width, height, ui, colour=True)
        assert len(lines) <= height
        for line in lines:
            bare = ANSI.sub("", line)
            assert bare.isprintable(), bare
            assert cell_width(bare) <= width, bare


def test_q1_a_low_terminal_shows_the_pane_that_has_the_focus(busy: Cli) -> None:
    ui = Ui()
    ui.focus = TICKETS
    text = plain(drawn(busy, 80, 12, ui))
    assert "ticket0" in text
    assert "POOLS" not in text
    assert "QUEUE 1–7 of 9" in text


def test_what_is_selected_is_always_visible(busy: Cli) -> None:
    ui = Ui()
    ui.focus = TICKETS
    for key in ("end", "home", "pagedown", "up"):
        ui.press(key, shot_of(busy))
        chosen = ui.selected(shot_of(busy)).ticket.id
        marked = [line for line in plain(drawn(busy, 80, 12, ui)).splitlines() if line.startswith("> ")]
        assert [chosen in line for line in marked] == [True], (key, marked)


def test_p3_a_reduced_pool_says_what_restores_it(busy: Cli) -> None:
    ui = Ui()
    ui.press("end", shot_of(busy))
    for width, height in SIZES:
        text = plain(drawn(busy, width, height, ui))
        assert "fleetgate cap set 'umans' 4 --kind requests" in text
    assert "auto-reduced from 4" in plain(drawn(busy, 160, 40, ui))


def test_a6_the_reason_of_the_selected_ticket_stands_below_in_full(busy: Cli) -> None:
    ui = Ui()
    ui.focus = TICKETS
    text = plain(drawn(busy, 60, 24, ui))
    assert f"concurrency_cap: 2 of 2 slots of host:{busy.gate.host}" in text


def test_a_gate_without_anything_says_so(cli: Cli) -> None:
    cli.configure("")
    text = plain(drawn(cli, 80, 24))
    assert "0 running, 0 waiting" in text
    assert "nothing is waiting" in text
    assert "nothing is running" in text
    assert "BACKOFFS" not in text


def test_a_filter_that_nothing_passes_is_named(busy: Cli) -> None:
    ui = Ui()
    ui.filter = "nosuch"
    text = plain(drawn(busy, 80, 24, ui))
    assert "none of 9 has 'nosuch' in it" in text
    assert "filter: nosuch" in text


def test_no_color_leaves_out_colours_and_keeps_the_selection_visible() -> None:
    line = [Cell("red", "bold red"), Cell("chosen", "reverse"), Cell("yellow", "yellow")]
    assert painted(line, Screen(80), 80, colour=False) == "\x1b[1mred\x1b[0m\x1b[7mchosen\x1b[0myellow"
    assert "\x1b[1;31mred" in painted(line, Screen(80), 80, colour=True)


def test_only_what_has_changed_is_written_and_a_full_line_keeps_its_last_letter() -> None:
    read, write = os.pipe()
    display = Display(read, write)

    def written(*lines: str) -> str:
        display.draw([[Cell(line)] for line in lines], 10)
        os.write(write, b"|")
        return os.read(read, 4096).decode().removesuffix("|")

    # A line is wiped before it is written: behind ten letters of ten the cursor still stands on the last one.
    assert written("one", "0123456789", "three").endswith("\x1b[2;1H\x1b[K0123456789\x1b[3;1H\x1b[Kthree")
    assert written("one", "0123456789", "three") == ""
    assert written("one", "two") == "\x1b[2;1H\x1b[Ktwo\x1b[3;1H\x1b[J"
    display.forget()
    assert written("one").endswith("\x1b[2J\x1b[1;1H\x1b[Kone")
    os.close(read)
    os.close(write)


def test_slots_are_drawn_one_by_one_and_small_shares_are_not_lost(busy: Cli) -> None:
    umans = next(view for view in shot_of(busy).pools if view.pool == "umans")
    assert umans.cooling == 1
    assert slots_bar(umans, 8) == "▒░░"
    umans.limit, umans.in_flight, umans.foreign, umans.cooling = 100, 1, 1, 1
    assert slots_bar(umans, 8) == "█▓▒░░░░░"
    umans.limit, umans.in_flight = 2, 9
    assert slots_bar(umans, 8) == "██"


def test_once_prints_everything_without_a_terminal(busy: Cli) -> None:
    out = busy.ok("top", "--once")
    assert out.isprintable() is False
    assert all(line.isprintable() for line in out.splitlines()), "no escape sequence is passed on"
    for number in range(9):
        assert f"ticket{number}" in out
    assert "restore umans: fleetgate cap set 'umans' 4 --kind requests" in out
    assert OPUS in out


def test_once_fits_a_narrow_terminal(busy: Cli) -> None:
    busy.env("COLUMNS", "60")
    table = [line for line in busy.ok("top", "--once").splitlines() if "ticket" in line]
    assert len(table) == 9
    assert all(cell_width(line) <= 60 for line in table), table


def test_without_a_terminal_it_says_what_to_type_instead(cli: Cli) -> None:
    said = cli.refused("top", code=64)
    assert "fleetgate top --once" in said
    assert "fleetgate status" in said


def test_z1_the_account_sets_and_the_accounts_that_a_waiting_request_may_use_are_shown(cli: Cli):
    cli.configure(
        '[accounts]\nanthropic = { use = ["work", "spare"], then = ["api"] }\n'
        '[agents]\n"anthropic@work" = 1\n"anthropic@spare" = 1\n"anthropic@api" = 1\n'
    )
    cli.ok("status")
    gate = cli.gate
    for number in range(4):
        gate.one(cmd.Acquire(f"ticket{number}", Spec(models=(OPUS,), host=gate.host), gate.me, conversation="talk"))
    shot, ui = shot_of(cli), Ui()
    ui.focus = TICKETS
    text = "\n".join("".join(cell.text for cell in line) for line in frame(shot, trend_of(cli), ui, 160, 50))
    assert "anthropic without an account uses work" in text
    assert "it may use work, spare, api" in text
    assert {waiting.accounts for waiting in shot.tickets} == {("work", "spare", "api")}
