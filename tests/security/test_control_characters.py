"""Names, commands and messages are others' words: nothing in them moves a cursor or turns text around."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.cli.main import invoke
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import json_text
from fleetgate.cli.run.wait_progress import say
from fleetgate.config.settings import Notify
from fleetgate.notify.senders import sender
from fleetgate.present.text import printable, printable_json, printable_lines

HOSTILE = "\x1b[2J\x07\x7f\x9b31m\u202ereversed\u202c\u2066x\u200b\ufeff\u00ad\U000e0041"


def is_quiet(text: str) -> bool:
    return not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in text.replace("\n", ""))


def test_json_is_the_same_data_and_nothing_in_it_is_raw():
    text = json_text({"name": HOSTILE, HOSTILE: [HOSTILE]})
    assert is_quiet(text)
    assert json.loads(text) == {"name": HOSTILE, HOSTILE: [HOSTILE]}


@given(st.text())
def test_any_text_stays_the_same_data(text: str):
    told = printable_json(json.dumps(text, ensure_ascii=False))
    assert is_quiet(told)
    assert json.loads(told) == text
    assert is_quiet(printable(text))
    assert is_quiet(printable_lines(text))


def test_json_stays_quiet_where_the_locale_has_not_all_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    text = json_text({"name": HOSTILE + "é"})
    assert is_quiet(text)
    assert json.loads(text) == {"name": HOSTILE + "é"}


def test_tables_and_lines_are_quiet_whoever_made_their_cells(capsys: pytest.CaptureFixture[str]):
    screen = Screen()
    screen.line(HOSTILE, Cell(HOSTILE, "bold"))
    screen.table([Column("NAME"), Column("WHY")], [[HOSTILE, Cell(HOSTILE, "red")]])
    screen.prose(HOSTILE)
    screen.show()
    assert is_quiet(capsys.readouterr().out)


def test_what_is_said_on_stderr_is_quiet(capfd: pytest.CaptureFixture[str]):
    say(f"not admitted: {HOSTILE}")
    invoke(["cap", "set", HOSTILE, "3"])
    invoke(["cap", "set", "x/y", HOSTILE])
    invoke(["nonsense" + HOSTILE])
    invoke(["logs", f"--{HOSTILE}"])
    assert is_quiet(capfd.readouterr().err)


def test_notifications_are_quiet_for_commands_as_for_webhooks(tmp_path: Path):
    script = f'printf "%s%s" "$FLEETGATE_TITLE" "$FLEETGATE_TEXT" > {tmp_path}/told; cat > {tmp_path}/json'
    send = sender(Notify("x", command=("sh", "-c", script)))
    send(HOSTILE, {"event": "failed", "text": f"one {HOSTILE}\ntwo", "name": HOSTILE})
    told, document = (tmp_path / "told").read_text(), (tmp_path / "json").read_text()
    assert is_quiet(told)
    assert "two" in told
    assert is_quiet(document)
    assert json.loads(document)["name"] == HOSTILE
