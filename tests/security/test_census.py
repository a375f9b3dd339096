"""The census counts agents of the gate's own users only, as `run` names them, and hostile processes cannot stall it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from fleetgate.config.errors import BadValue
from fleetgate.config.value_types import read_pattern
from fleetgate.gate.liveness import foreign_agents, process_identity
from fleetgate.gate.store_users import StoreUsers
from tests import census

README = (r"opencode.*-m (?P<model>\S+)", r"claude .*--model (?P<model>\S+)")
STRANGER = 65_534
WORD = f"opencode-of-{os.getpid()}"
PATTERN = rf"{WORD}.*-m (?P<model>\S+)"

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="processes of another user are started by root")


@pytest.fixture
def of_a_stranger() -> Iterator[None]:
    """A process of another user that looks like an agent."""
    with subprocess.Popen(
        ["sh", "-c", "echo; read x", WORD, "-m", "a/b"],
        user=STRANGER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield
        child.kill()


@only_root
@pytest.mark.usefixtures("of_a_stranger")
def test_processes_of_other_users_are_not_counted(tmp_path: Path):
    tmp_path.chmod(0o700)
    assert census.look("", [PATTERN], StoreUsers(str(tmp_path))) == []


@only_root
@pytest.mark.usefixtures("of_a_stranger")
def test_processes_of_the_members_of_a_shared_folders_group_are_counted(tmp_path: Path):
    os.chown(tmp_path, 0, STRANGER)
    tmp_path.chmod(0o2770)
    assert len(census.look("", [PATTERN], StoreUsers(str(tmp_path)))) == 1


@only_root
@pytest.mark.usefixtures("of_a_stranger")
@pytest.mark.parametrize("named", ["nobody", "*"])
def test_processes_of_users_that_the_config_names_are_counted(tmp_path: Path, named: str):
    tmp_path.chmod(0o700)
    assert len(census.look("", [PATTERN], StoreUsers(str(tmp_path), (named,)))) == 1


@only_root
@pytest.mark.usefixtures("of_a_stranger")
def test_a_look_of_other_users_is_not_taken_from_the_cache(tmp_path: Path):
    cache = str(tmp_path / "census.cache")
    assert len(census.look(cache, [PATTERN], StoreUsers("", ("*",)))) == 1
    assert len(census.look(cache, [PATTERN], StoreUsers(""))) == 0


def test_the_users_of_a_folder_are_those_who_can_write_to_it(tmp_path: Path):
    tmp_path.chmod(0o700)
    assert os.geteuid() in StoreUsers(str(tmp_path))
    assert STRANGER not in StoreUsers(str(tmp_path))
    assert STRANGER not in StoreUsers(str(tmp_path / "missing"))
    assert None not in StoreUsers(str(tmp_path), ("*",))
    tmp_path.chmod(0o777)
    assert STRANGER in StoreUsers(str(tmp_path))


HOSTILE = [
    ["opencode" * 100_000],
    ["opencode-m"] * 50_000,
    ["claude --model"] * 50_000,
    ["opencode", "run", "-m"] * 30_000,
    ["claude ", "--model"] * 30_000,
    ["-" * 2_000_000],
]


def test_hostile_command_lines_take_no_longer_than_the_budget():
    """Without a bound the README's own pattern takes minutes on each of these."""
    began = monotonic()
    budget = foreign_agents.TimeLimit()
    argvs = dict(enumerate(HOSTILE * 200, 1000))
    foreign_agents.find(README, argvs, lambda pid: 0, budget)
    assert monotonic() - began < 30
    assert "simpler patterns" in budget.trouble() or budget.skipped == 0


def test_when_the_budget_is_spent_the_rest_is_passed_over_and_said():
    budget = foreign_agents.TimeLimit(ms=-1)
    assert foreign_agents.find(README, {900: ["opencode", "-m", "a/b"]}, lambda pid: 0, budget) == []
    assert "1 processes were not looked at" in budget.trouble()


def test_a_flag_behind_a_long_prompt_is_seen():
    argv = ["opencode", "run", "prompt " * 10_000, "-m", "a/b"]
    assert census.count(README, (), [(900, 1, argv)]) == (("a/b", 1),)


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(?:x.*)*y", r"(a|b+)*c", r"(\s*\S+){20,}", r"((a*)?b)+"])
def test_a_pattern_that_could_take_for_ever_is_refused_with_what_is_valid(pattern: str):
    with pytest.raises(BadValue, match="repeats a repetition"):
        read_pattern(pattern)


@pytest.mark.parametrize("pattern", [*README, r"^codex\b", r"(?:opencode|claude) .*-m (?P<model>[\w/.-]+)", "a{2,8}b+"])
def test_ordinary_patterns_are_taken(pattern: str):
    assert read_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        (["claude", "--model", "claude-opus-4-6", "-p", "x"], "anthropic/claude-opus-4-6"),
        (["node", "/usr/bin/claude", "--model", "claude-sonnet-4-6"], "anthropic/claude-sonnet-4-6"),
        (["sh", "-c", "claude --model claude-opus-4-6"], "anthropic/claude-opus-4-6"),
        (["opencode", "run", "-m", "anthropic/claude-opus-4-6"], "anthropic/claude-opus-4-6"),
        (["env", "X=1", "claude", "-p", "y", "--model", "claude-opus-4-6"], "anthropic/claude-opus-4-6"),
    ],
    ids=" ".join,
)
def test_a_foreign_agent_counts_for_the_model_that_run_would_name(argv: list[str], model: str):
    assert census.count(README, (), [(900, 1, argv)]) == ((model, 1),)


def test_a_process_with_very_many_arguments_costs_little_to_read():
    words = ["sh", "-c", "echo; read x", "x", *(["a"] * 100_000)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = process_identity.command_line(child.pid)
        child.kill()
    assert found[:4] == ["sh", "-c", "echo; read x", "x"]
    assert len(found) < 5000
