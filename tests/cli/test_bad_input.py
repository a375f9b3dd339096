"""Nonsense of every kind to every command that changes something: a sentence, the right code, nothing changed (Q1)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleetgate.cli.click_group import group
from tests.cli.command_line import Cli, opened

COMMANDS = (
    "acquire",
    "release",
    "cancel",
    "bump",
    "cap",
    "cap set",
    "cap rm",
    "cap reset",
    "cap ls",
    "cap import",
    "cooldown",
    "pause",
    "resume",
    "report",
    "config",
    "config show",
    "config check",
    "config path",
    "config apply",
    "completion",
    "top",
    "store",
    "store status",
    "store migrate",
    "store copy",
)
WITHOUT_JSON = ("store", "acquire", "cap", "config", "completion", "top")
DOCS = Path(__file__).parents[2] / "docs" / "commands"

# What is typed, and a piece of the answer.
NONSENSE = [
    ("acquire -m opus", "a model is provider/model"),
    ("acquire -m a/b,,c/d", "a model is provider/model"),
    ("acquire -m 'a/*'", "a model is provider/model"),
    ("acquire --pid 0", "valid is a whole number from 1"),
    ("acquire --pid abc", "valid is a whole number from 1"),
    ("acquire --pid 1_0", "valid is a whole number from 1"),
    ("acquire --pid 4194303", "there is no such process"),
    ("acquire --pid ''", "there is no such process"),
    ("acquire --kind tokens", "'agents', 'requests'"),
    ("acquire --wait soon", "--wait: not a duration"),
    ("acquire --wait 1m --no-wait", "valid is one of the two"),
    ("acquire --expires never", "--expires: not a duration"),
    ("acquire --expires 0", "longer than zero"),
    ("acquire --priority 101", "valid is a whole number from -100 to 100"),
    ("acquire --priority high", "valid is a whole number from -100 to 100"),
    ("acquire --since yesterday", "valid is RFC 3339"),
    ("acquire --since -1", "not a time"),
    ("acquire --slots 0", "valid is a whole number from 1 to 10000"),
    ("acquire --slots 1.5", "valid is a whole number from 1 to 10000"),
    ("acquire --slots 9", "whose cap is 3: ask for fewer or raise the cap"),
    ("acquire --project ' x'", "valid is up to 100 printable characters"),
    ("acquire extra", "unexpected extra argument"),
    ("acquire --nonsense", "no such option"),
    ("release", "missing argument 'ID'"),
    ("release ''", "`fleetgate ps`"),
    ("release ab", "`fleetgate ps`"),
    ("release UPPERCASE1", "`fleetgate ps`"),
    ("release ../../etc/x", "`fleetgate ps`"),
    ("release 2222222222 --outcome fine", "valid are ok, rate_limited"),
    ("release 2222222222 --retry-after 30", "--retry-after goes with --outcome"),
    ("release 2222222222 --outcome ok --retry-after 30", "--retry-after goes with --outcome"),
    ("release 2222222222 --outcome rate_limited --retry-after x", "--retry-after: not a duration"),
    ("release 2222222222 --force --outcome ok", "use only one of the two"),
    ("cancel", "missing argument 'ID"),
    ("cancel 2222222222", "`fleetgate queue`"),
    ("cancel ''", "`fleetgate queue`"),
    ("bump 2222222222", "`fleetgate queue`"),
    ("bump x --priority 1000", "valid is a whole number from -100 to 100"),
    ("bump x --priority -+5", "valid is a whole number from -100 to 100"),
    ("bump x --priority ''", "valid is a whole number from -100 to 100"),
    ("cap set", "missing argument 'SELECTOR'"),
    ("cap set host", "missing argument 'N|auto'"),
    (
        "cap set host 0",
        'valid is a whole number from 1 to 1000000, or "auto"; to admit no agents: `fleetgate pause host`',
    ),
    ("cap set host 1.5", "valid is a whole number from 1"),
    ("cap set host -1", "no such option"),
    ("cap set host -- -1", "valid is a whole number from 1"),
    ("cap set host 1000001", "valid is a whole number from 1"),
    ("cap set host many", "valid is a whole number from 1"),
    ("cap set host ''", "valid is a whole number from 1"),
    ("cap set hots 3", "did you mean host?"),
    ("cap set '' 3", "a selector is host, project, project:NAME"),
    ("cap set 'a b' 3", "a selector is host, project, project:NAME"),
    ("cap set '10;rm -rf /' 3", "a selector is host, project, project:NAME"),
    ("cap set cooldown 3", "is an option of a cap, not a selector"),
    ("cap set umans auto", "only host follows free memory"),
    ("cap set host auto --kind requests", "only the agents of a host follow free memory"),
    ("cap set umans 4 --kind both", "'agents', 'requests'"),
    ("cap set umans 4 --cooldown fast", "--cooldown: not a duration"),
    ("cap set umans 4 --cooldown 25h", "valid is 0 to 24 h"),
    ("cap set umans 4 --kind agents --on-429 adapt", "a limit is learned from model calls"),
    ("cap set umans 4 --on-429 explode", 'valid is "adapt", "step", "pause" or "fixed"'),
    ("cap set host 4 --on-429 step", "a rate limit never acts on host"),
    ("cap set umans 4 --max-hold -5", "--max-hold: not a duration"),
    ("cap set umans 4 --name 'two words'", "--name: found 'two words'; valid is a short name"),
    ("cap rm nowhere", "no cap on 'nowhere' of kind requests; capped are: */claude-opus-* (agents), host (agents)"),
    ("cap rm host --kind requests", "there is one with --kind agents"),
    ("cap rm 'a b'", "a selector is host, project, project:NAME"),
    ("cap reset nowhere", "nothing was set at run time for 'nowhere'"),
    ("cap nonsense", "no such command"),
    ("cooldown", "missing argument 'SELECTOR'"),
    ("cooldown 'a b'", "a selector is host, project, project:NAME"),
    ("cooldown hosts 1s", "did you mean host?"),
    ("cooldown umans soon", "not a duration"),
    ("cooldown umans 2d", "valid is 0 to 24 h"),
    ("pause", "missing argument 'TARGET'"),
    ("pause nowhere", "no pool 'nowhere'; pools: "),
    ("pause project", "no pool 'project'"),
    ("pause host --kind requests", "there is one with --kind agents"),
    ("pause host --for 0", "longer than zero"),
    ("pause host --for ever", "--for: not a duration"),
    ("pause anthropic/claude-opus-4-6", "is a model, not a pool"),
    ("resume nowhere", "no pool 'nowhere'"),
    ("report", "Add --rate-limited"),
    ("report umans", "Add --rate-limited"),
    ("report --rate-limited", "a pool, a model or --lease ID"),
    ("report nowhere --rate-limited", "no pool 'nowhere'"),
    ("report free --rate-limited", "no pool 'free'"),
    ("report umans --rate-limited --retry-after later", "--retry-after: not a duration"),
    ("report --rate-limited --lease 2222222222", "`fleetgate ps`"),
    ("config nonsense", "no such command"),
    ("completion powershell", "'bash', 'zsh', 'fish'"),
]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.mark.parametrize(("typed", "answer"), NONSENSE)
def test_q1_nonsense_is_answered_with_what_is_valid_and_changes_nothing(cli: Cli, typed: str, answer: str):
    assert answer in cli.refused(*shlex.split(typed))


@pytest.mark.parametrize(
    "typed",
    ["acquire", "cap set host 5", "cap ls", "pause host", "config show", "config apply"],
)
@pytest.mark.parametrize(
    ("variable", "value", "answer"),
    [
        ("FLEETGATE_CONFIG", "/nonexistent/config.toml", "there is no such file"),
        ("FLEETGATE_HOME", "relative", "valid is an absolute path"),
        ("FLEETGATE_STORE", "mysql://x", "valid is sqlite:///"),
    ],
)
def test_c6_a_wrong_environment_exits_78_and_names_the_variable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, variable: str, value: str, answer: str
):
    before = cli.length()
    with monkeypatch.context() as patched:
        patched.setenv(variable, value)
        said = cli(*shlex.split(typed))
    assert (said.code, said.out) == (78, "")
    assert answer in said.err
    assert cli.length() == before


@pytest.mark.parametrize("typed", ["acquire", "cap ls", "cap set host 5", "config show"])
def test_c6_a_wrong_cap_in_the_environment_exits_78(cli: Cli, typed: str):
    cli.env("FLEETGATE_AGENTS", "host=none")
    assert "FLEETGATE_AGENTS: 'host=none': " in cli.refused(*shlex.split(typed), code=78)


def find(path: str) -> click.Command:
    found: click.Command = group
    for word in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
    return found


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, path: str):
    out = cli.ok(*path.split(), "--help")
    name = path.split()[0]
    lines = [line.strip() for line in out.splitlines()[1:]]
    assert any(f"fleetgate {name}" in line for line in lines), "an example"
    for parameter in find(path).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in WITHOUT_JSON])
def test_o_every_command_that_prints_a_result_takes_json(path: str):
    assert any("--json" in parameter.opts for parameter in find(path).params)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_on_the_commands_page(path: str):
    page = (DOCS / f"{path.split()[0]}.md").read_text()
    assert f"fleetgate {path}" in page
    for parameter in find(path).params:
        for name in parameter.opts:
            if name.startswith("--"):
                assert f"`{name}" in page, f"{name} is not documented"


def test_completion_is_printed_for_each_shell(cli: Cli):
    for shell in ("bash", "zsh", "fish"):
        assert "_FLEETGATE_COMPLETE" in cli.ok("completion", shell)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fleetgate c", {"capacity", "cancel", "cap", "cooldown", "config", "completion", "clean"}),
        ("fleetgate cap ", {"set", "rm", "reset", "ls", "import"}),
        ("fleetgate pause x --kind ", {"agents", "requests"}),
        ("fleetgate acquire --no", {"--no-wait"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(cli: Cli, words: str, offered: set[str]):
    cli.env("_FLEETGATE_COMPLETE", "bash_complete")
    cli.env("COMP_WORDS", words)
    cli.env("COMP_CWORD", str(len(words.split(" ")) - 1))
    done = subprocess.run([sys.executable, "-m", "fleetgate"], capture_output=True, text=True, timeout=30)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered, done


def test_l2_a_lease_whose_id_nobody_can_read_is_given_back(cli: Cli):
    """Real processes: what happens to the output is decided by the system."""
    command = [sys.executable, "-m", "fleetgate", "acquire", "--pid", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == 74, done
    assert "could not be printed: No space left on device" in done.stderr
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    assert reader.stdin is not None
    done = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE, text=True, timeout=30)
    reader.stdin.close()
    assert done.returncode == 74, done
    assert "the reader of the output has exited" in done.stderr
    closed = ["sh", "-c", f"{shlex.join(command)} >&-"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode != 0, done
    assert "standard output is closed" in done.stderr
    assert not cli.state.leases
