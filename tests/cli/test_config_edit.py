"""`fleetgate config edit` (rule C8), and commands that read with an invalid config file (rule C6)."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.config.file import check
from tests.cli.command_line import Cli, opened


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        monkeypatch.delenv("VISUAL", raising=False)
        cli.configure("[agents]\nhost = 2\n")
        yield cli


def editor(cli: Cli, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An editor that is this shell script; $1 is the file."""
    path = cli.folder / "my editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("EDITOR", shlex.quote(str(path)))


def copies(cli: Cli) -> list[Path]:
    return list(cli.folder.glob("*.edited.toml"))


def test_c8_a_valid_edit_replaces_the_file_keeps_its_mode_and_is_in_force_at_once(cli: Cli, monkeypatch):
    cli.config.chmod(0o640)
    editor(cli, monkeypatch, "echo '[agents]' >$1; echo 'host = 7' >>$1")
    assert cli.ok("config", "edit") == f"{cli.config} was saved, and is in force\n"
    assert stat.S_IMODE(cli.config.stat().st_mode) == 0o640
    assert cli.state.rules.caps["agents", "host"].cap == 7
    assert not copies(cli)


def test_c8_an_invalid_edit_changes_nothing_and_keeps_what_was_typed(cli: Cli, monkeypatch):
    before = cli.config.read_bytes()
    editor(cli, monkeypatch, "echo 'hots = 7' >>$1")
    said = cli("config", "edit")
    assert said.code == 78
    assert f"{cli.config}:3: agents.hots" in said.err
    assert "did you mean host" in said.err
    assert cli.config.read_bytes() == before
    (copy,) = copies(cli)
    assert copy.read_text().endswith("hots = 7\n")
    assert stat.S_IMODE(copy.stat().st_mode) & 0o077 == stat.S_IMODE(cli.config.stat().st_mode) & 0o077


def test_c8_on_a_terminal_a_mistake_is_shown_and_edited_again(cli: Cli, monkeypatch):
    answers = iter(["y", "", "n"])
    monkeypatch.setattr("fleetgate.cli.commands.config.has_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    # The first attempt is wrong, the second too, the third is right.
    editor(cli, monkeypatch, "echo x >>tries; [ $(wc -l <tries) -lt 3 ] && echo 'x = ' >$1 || echo '[agents]' >$1")
    assert "was saved" in cli.ok("config", "edit")
    assert cli.config.read_text() == "[agents]\n"
    editor(cli, monkeypatch, "echo 'x = ' >$1")
    said = cli("config", "edit")
    assert said.code == 75
    assert "stays as it was" in said.err
    assert cli.config.read_text() == "[agents]\n"


@pytest.mark.parametrize("script", [":", "exit 0"])
def test_c8_an_edit_that_changes_nothing_says_so(cli: Cli, monkeypatch, script: str):
    editor(cli, monkeypatch, script)
    assert cli.json("config", "edit") == {"path": str(cli.config), "changed": False}
    assert not copies(cli)


def test_c8_an_editor_that_fails_saves_nothing(cli: Cli, monkeypatch):
    editor(cli, monkeypatch, "echo >$1; exit 1")
    assert "nothing was saved" in cli.refused("config", "edit", code=75)
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    assert "set EDITOR" in cli.refused("config", "edit")
    assert cli.config.read_text() == "[agents]\nhost = 2\n"


def test_c8_a_change_of_another_process_is_not_overwritten(cli: Cli, monkeypatch):
    editor(cli, monkeypatch, f"echo '[agents]' >$1; echo '# other' >>{shlex.quote(str(cli.config))}")
    assert "was changed by another process" in cli.refused("config", "edit", code=75)
    assert "# other" in cli.config.read_text()


def test_c8_one_edit_at_a_time(cli: Cli, monkeypatch):
    editor(cli, monkeypatch, "false")
    fd = os.open(cli.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert "is being edited" in cli.refused("config", "edit")
    finally:
        os.close(fd)


def test_c8_a_new_file_begins_with_an_example_and_a_link_stays_a_link(cli: Cli, monkeypatch):
    real = cli.folder / "dotfiles" / "fleetgate.toml"
    cli.config.unlink()
    cli.config.symlink_to(real)
    editor(cli, monkeypatch, "grep -q 'config show' $1 && echo 'models = [\"umans/coder\"]' >>$1")
    assert "was saved" in cli.ok("config", "edit")
    assert cli.config.is_symlink()
    assert real.read_text().endswith('models = ["umans/coder"]\n')
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_c6_commands_that_read_work_with_an_invalid_file_and_say_so(cli: Cli):
    cli.gate.read()
    cli.config.write_text("[agents]\nhots = 1\nx = []\n")
    for command in ("status", "ps", "queue", "jobs", "cap ls", "budget ls", "backoff ls", "config show", "top --once"):
        said = cli(*command.split())
        assert said.code == 0, (command, said)
        assert f"the config file is not valid, so it is not used: {cli.config}:2: agents.hots" in said.err, command
        assert "and 1 more" in said.err
        assert "fleetgate config edit" in said.err
    assert cli.json("status")["pools"][0]["cap"] == 2, "what is in force stays in force"
    for command in ("capacity", "run -- true", "select -m umans/coder", "submit -- true", "pause host"):
        assert cli(*command.split()).code == 78, command


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [('host = "0.0.0.0"\nport = 8080', "0.0.0.0", 8080), ('host = "::1"', "::1", 4180), ("port = 0", "127.0.0.1", 0)],
)
def test_the_service_listens_where_the_config_says(text: str, host: str, port: int):
    serve = check(f"[serve]\n{text}\n", "config.toml").serve
    assert (serve.host, serve.port) == (host, port)


@pytest.mark.parametrize(
    "text", ['host = "a b"', "host = 1", 'host = ""', "port = 65536", "port = true", 'port = "80"']
)
def test_an_address_that_cannot_be_one_is_refused_with_what_is_valid(text: str):
    with pytest.raises(Exception, match=r"(?s)config.toml:2: serve\.(host|port): .*(address|whole number)"):
        check(f"[serve]\n{text}\n", "config.toml")
