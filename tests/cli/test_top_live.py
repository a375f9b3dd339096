"""The loop of `fleetgate top`, with keys from a pipe and a display that only writes down what it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fleetgate.cli.top.loop import Live
from fleetgate.cli.top.terminal import Display, Line
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.log.protocol import StoreError
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
Step = tuple[Callable[[str], bool], Callable[[], object]]


class Recorder(Display):
    """Goes on with the next step as soon as what it waits for is drawn."""

    def __init__(self, *steps: Step) -> None:
        keyboard, self._typed = os.pipe()
        super().__init__(keyboard, -1)
        self._steps = list(steps)

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def size(self) -> tuple[int, int]:
        return 100, 30

    def draw(self, lines: list[Line], width: int) -> None:
        text = "\n".join("".join(cell.text for cell in line) for line in lines)
        print(text)  # shown when the test fails
        if self._steps and self._steps[0][0](text):
            self._steps.pop(0)[1]()

    def type(self, text: bytes) -> None:
        os.write(self._typed, text)

    def hang_up(self) -> None:
        os.close(self._typed)

    @property
    def done(self) -> bool:
        return not self._steps


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
        yield cli


def has(*texts: str) -> Callable[[str], bool]:
    return lambda drawn: all(text in drawn for text in texts)


def test_q2_a_store_that_cannot_be_read_for_a_while_is_said_and_survived(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("the disk is gone")

    def heal() -> None:
        broken.undo()
        cli.occupy(OPUS)

    with monkeypatch.context() as broken:
        display = Recorder(
            (has("nothing is waiting"), lambda: broken.setattr(cli.gate.log, "read", fail)),
            (has("showing the last known state: the disk is gone", "0 running"), heal),
            (
                lambda drawn: "1 running" in drawn and "showing the last known state" not in drawn,
                lambda: display.type(b"q"),
            ),
        )
        assert Live(cli.gate, display).run() == 0
    assert display.done


def test_what_others_do_is_seen_and_a_failed_action_is_said(cli: Cli) -> None:
    slot = cli.occupy(OPUS)
    ident = cli.stand(OPUS)
    display = Recorder(
        (has(ident), lambda: display.type(b"2c")),
        (has(f"cancel {ident}"), lambda: (cli.gate.one(cmd.Release(slot)), cli.gate.one(cmd.Claim(ident)))),
        (has("0 waiting"), lambda: display.type(b"y")),
        (has(f"{ident} has started in the meantime"), lambda: display.type(b"1G+")),
        (has("host (agents): cap 2, was 1", "1/2"), lambda: display.type(b"q")),
    )
    assert Live(cli.gate, display).run() == 0
    assert display.done
    assert ident in cli.state.leases


def test_a_terminal_that_is_gone_ends_it(cli: Cli) -> None:
    display = Recorder((has("nothing is waiting"), lambda: display.hang_up()))
    assert Live(cli.gate, display).run() == 0


def test_an_escape_alone_ends_the_filter(cli: Cli) -> None:
    display = Recorder(
        (has("nothing is waiting"), lambda: display.type(b"/nosuch\r")),
        (has("filter: nosuch", "none of 1"), lambda: display.type(b"\x1b")),
        (lambda drawn: "none of 1" not in drawn, lambda: display.type(b"q")),
    )
    assert Live(cli.gate, display).run() == 0
    assert display.done
