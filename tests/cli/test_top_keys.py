"""The keys of `fleetgate top`: bytes as keys, and what they do to the selection, the filter and the question."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.cli.top.keys import Keys
from fleetgate.cli.top.panes import BACKOFFS, LEASES, POOLS, TICKETS
from fleetgate.cli.top.selection import QUIT, Ui, Wish
from fleetgate.cli.top.snapshot import GateView, snapshot
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
        cli.gate.one(cmd.SetRule(Rule("requests", "umans", 4)))
        yield cli


def shot(cli: Cli) -> GateView:
    return snapshot(cli.gate, cli.state)


def typed(ui: Ui, cli: Cli, *keys: str) -> Wish | None:
    """What the last of these keys wishes."""
    wish = None
    for key in keys:
        wish = ui.press(key, shot(cli))
    return wish


# Bytes.


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"jk/?+-", ["j", "k", "/", "?", "+", "-"]),
        (b"\x1b[A\x1b[B\x1bOC\x1bOD", ["up", "down", "right", "left"]),
        (b"\t\x1b[Z\r\x7f", ["tab", "backtab", "enter", "backspace"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        (b"\x1b[200~c\x1b[1;5A\x1b[15~y", ["c", "y"]),
        ("ü日".encode(), ["ü", "日"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\0\x01\xff", ["\ufffd"]),
    ],
)
def test_bytes_are_keys_in_whatever_pieces_they_come(data: bytes, keys: list[str]) -> None:
    assert Keys().feed(data) == keys
    pieces = Keys()
    assert [key for byte in data for key in pieces.feed(bytes([byte]))] == keys


def test_an_escape_is_a_key_when_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert (keys.pending, keys.flush(), keys.pending) == (True, ["escape"], False)
    assert keys.feed(b"\x1b[") == []
    assert keys.flush() == [], "a sequence that was never finished"


# The selection.


def test_the_selection_stays_with_its_ticket_when_the_queue_moves(cli: Cli) -> None:
    cli.occupy(OPUS)
    first, second, third = (cli.stand(OPUS) for _ in range(3))
    ui = Ui()
    typed(ui, cli, "2", "j")
    assert ui.selected(shot(cli)).ticket.id == second
    cli.gate.one(cmd.Cancel(first))
    assert ui.selected(shot(cli)).ticket.id == second
    cli.gate.one(cmd.Bump(third))
    assert ui.selected(shot(cli)).ticket.id == second
    cli.gate.one(cmd.Cancel(second))
    assert ui.selected(shot(cli)).ticket.id == third
    cli.gate.one(cmd.Cancel(third))
    assert ui.selected(shot(cli)) is None


def test_tab_goes_round_the_panes_in_which_something_stands(cli: Cli) -> None:
    cli.occupy(OPUS)
    ui = Ui()
    seen = []
    for _ in range(3):
        typed(ui, cli, "tab")
        seen.append(ui.focus)
    assert seen == [LEASES, POOLS, LEASES], "nobody waits, and nothing is backed off"
    cli.gate.one(cmd.BackOff("openai/gpt-5", "overloaded"))
    typed(ui, cli, "tab")
    assert ui.focus == BACKOFFS
    typed(ui, cli, "backtab")
    assert ui.focus == LEASES


def test_the_filter_is_typed_kept_and_ended(cli: Cli) -> None:
    ui = Ui()
    assert typed(ui, cli, "/", "u", "m", "q", "backspace", "a", "N") is None, "no letter is a command"
    assert [view.pool for view in ui.items(POOLS, shot(cli))] == ["umans"]
    typed(ui, cli, "enter")
    assert not ui.typing
    assert ui.filter == "umaN"
    assert typed(ui, cli, "p") == Wish("pause", ui.selected(shot(cli)))
    assert ui.selected(shot(cli)).pool == "umans"
    typed(ui, cli, "escape")
    assert len(ui.items(POOLS, shot(cli))) == 2


# Wishes.


def test_a9_a_cancel_is_asked_about_and_is_of_the_ticket_that_was_selected_then(cli: Cli) -> None:
    cli.occupy(OPUS)
    first, second = cli.stand(OPUS), cli.stand(OPUS)
    ui = Ui()
    assert typed(ui, cli, "2", "c") is None
    assert ui.message == f"cancel {first} (the test)? y/n"
    cli.gate.one(cmd.Bump(second))
    wish = typed(ui, cli, "y")
    assert wish is not None
    assert (wish.what, wish.item.ticket.id) == ("cancel", first)


@pytest.mark.parametrize("answer", ["n", "escape", "c", "q", "enter", "down"])
def test_a9_anything_but_yes_cancels_nothing(cli: Cli, answer: str) -> None:
    cli.occupy(OPUS)
    cli.stand(OPUS)
    ui = Ui()
    assert typed(ui, cli, "2", "c", answer) is None
    assert ui.message == "nothing was changed"
    assert typed(ui, cli, "y") is None


def test_a_key_of_another_pane_says_where_it_belongs(cli: Cli) -> None:
    cli.occupy(OPUS)
    ui = Ui()
    for keys, said in (
        (("c",), "QUEUE"),
        (("b",), "QUEUE"),
        (("x",), "BACKOFFS"),
        (("3", "p"), "POOLS"),
        (("r",), "POOLS"),
    ):
        assert typed(ui, cli, *keys) is None
        assert said in ui.message
        assert ui.failed
    typed(ui, cli, "3", "c")
    assert "s stops it" in ui.message
    typed(ui, cli, "2", "b")
    assert "QUEUE" in ui.message, "and the queue is empty"
    typed(ui, cli, "Z")
    assert "? lists the keys" in ui.message


def test_help_is_left_by_any_key_which_does_nothing_else(cli: Cli) -> None:
    ui = Ui()
    seen = [(typed(ui, cli, key), ui.help) for key in ("?", "p", "?", "q")]
    assert seen == [(None, True), (None, False)] * 2
    assert typed(ui, cli, "p") is not None
    assert typed(ui, cli, "q") == Wish(QUIT, None)
    assert ui.focus != TICKETS
