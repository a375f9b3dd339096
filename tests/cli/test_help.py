"""Help, suggestions and shell completion: what a person finds who does not know the commands yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from fleetgate.cli import completion_values
from fleetgate.cli.click_group import COMMANDS, SECTIONS, group
from fleetgate.cli.suggestions import TRIED
from tests.cli.command_line import Cli, opened

FLEETGATE = Path(sys.executable).with_name("fleetgate")
OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def all_commands(command: click.Command = group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from all_commands(found, (*path, name))
    if path:
        yield " ".join(path), command


ALL = dict(all_commands())


@pytest.mark.parametrize("path", ALL)
def test_every_help_text_has_an_example(path: str) -> None:
    help_text = ALL[path].help or ""
    blocks = [block for block in help_text.split("\b")[1:] if f"fleetgate {path}" in block.partition("\n\n")[0]]
    assert blocks, f"fleetgate {path} --help has no example"


def test_help_lists_every_command_once_under_a_heading(cli: Cli) -> None:
    out = cli("--help").out
    for heading, names in SECTIONS.items():
        section = out.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == list(names)
    assert sum(len(names) for names in SECTIONS.values()) == len(COMMANDS)
    assert all(len(line) <= 80 for line in out.splitlines()), out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("statsu", "did you mean `fleetgate status`?"),
        ("cap sett host 5", "did you mean `fleetgate cap set`?"),
        ("cap host 5", "did you mean `fleetgate cap set host 5`?"),
        ("cap host auto", "did you mean `fleetgate cap set host auto`?"),
        ("queue cancel 7kq", "did you mean `fleetgate cancel 7kq`?"),
        ("queue ls", "did you mean `fleetgate queue`?"),
        ("cap list", "did you mean `fleetgate cap ls`?"),
        ("config get", "did you mean `fleetgate config show`?"),
        ("unpause umans", "did you mean `fleetgate resume umans`?"),
        ("help statsu", "did you mean `fleetgate status`?"),
        ("kill 7kq", "try:   fleetgate stop ID"),
        ("ls", "try:   fleetgate ps (running)"),
        ("list", "try:   fleetgate ps (running)"),
        ("log", "try:   fleetgate logs ID"),
        ("config set x 1", "try:   edit the file"),
    ],
)
def test_a_command_that_does_not_exist_leads_to_the_one_that_does(cli: Cli, words: str, hint: str) -> None:
    said = cli(*words.split())
    assert said.code == 64
    assert any(line.startswith(hint) for line in said.err.splitlines()), said.err
    assert said.err.lower().count("did you mean") <= 1


def test_a_word_that_is_like_no_command_has_no_suggestion(cli: Cli) -> None:
    said = cli("xyzzy")
    assert said.code == 64
    assert said.err == (
        "fleetgate: no such command 'xyzzy'.\nusage: fleetgate [OPTIONS] COMMAND [ARGS]...\nmore:  fleetgate --help\n"
    )


def test_suggestions_name_commands_that_exist() -> None:
    for tried, meant in TRIED.items():
        assert " ".join(tried) not in ALL, f"{tried} exists"
        for part in meant.split("fleetgate ")[1:]:
            words = part.replace(")", " ").replace(",", " ").split()
            assert words[0] in ALL or words[0] == "--version", meant


@pytest.mark.parametrize(("words", "shown"), [(("help",), ()), (("help", "cap", "set"), ("cap", "set"))])
def test_help_is_a_command_too(cli: Cli, words: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert cli(*words).out == cli(*shown, "--help").out
    assert cli("help", "nosuch").code == 64


# Completion.


def completed(*words: str) -> list[str]:
    """What a shell offers for the last word."""
    complete = ShellComplete(group, {}, "fleetgate", "_FLEETGATE_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_ids_pools_models_and_projects_are_completed_from_the_store(cli: Cli) -> None:
    cli.configure('models = ["openai/gpt-5"]\n\n[agents]\nhost = 1\n"anthropic/claude-opus-*" = 2\n')
    holder = cli.occupy(OPUS)
    waits = cli.stand(OPUS)
    job = cli("submit", "--name", "nightly", "--", "true").out.strip()
    cli("backoff", "set", "umans", "overloaded")
    assert completed("release", "") == [holder]
    assert completed("bump", "") == [waits]
    assert sorted(completed("cancel", "")) == sorted([waits, job])
    assert completed("show", job[:3]) == [job]
    assert completed("pause", "anthropic/") == ["anthropic/claude-opus-*"]
    assert "anthropic/claude-opus-*" in completed("cap", "set", "anthropic/")
    assert completed("run", "-m", "openai/") == ["openai/gpt-5"]
    assert completed("run", "-m", f"openai/gpt-5,{OPUS[:5]}") == [f"openai/gpt-5,{OPUS}"]
    assert completed("run", "--project", "de") == ["default"]
    assert completed("backoff", "clear", "") == ["umans"]


def test_completion_makes_no_store_and_prints_nothing_on_errors(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(cli.folder / "s", ignore_errors=True)
    assert completed("show", "") == []
    assert not (cli.folder / "s").exists()
    monkeypatch.setenv("FLEETGATE_STORE", "nosuch://x")
    assert completed("show", "") == []
    assert capsys.readouterr() == ("", "")


def test_completion_gives_up_on_a_store_that_takes_too_long(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("status")
    monkeypatch.setattr(completion_values, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(completion_values, "open_gate", lambda **_: time.sleep(2))
    began = time.monotonic()
    assert completed("show", "") == []
    assert time.monotonic() - began < 1.5


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_ids(cli: Cli) -> None:
    job = cli("submit", "--", "true").out.strip()
    script = (
        f'PATH="{FLEETGATE.parent}:$PATH"; eval "$(fleetgate completion bash)"; '
        'complete_for() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fleetgate_completion fleetgate; '
        'echo "${COMPREPLY[@]}"; }; complete_for fleetgate histo; complete_for fleetgate show ""'
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["history", job], done
