"""Agents that were started outside Fleetgate (rule A13): on made-up trees of processes, and on real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.gate.liveness import foreign_agents, process_identity
from tests import census

OPUS = "anthropic/claude-opus-4-6"
SONNET = "anthropic/claude-sonnet-4-6"
PATTERN = r"opencode.*-m (?P<model>\S+)"


def agent(model: str = OPUS) -> list[str]:
    return ["opencode", "run", "-m", model]


def count(*procs: census.Row, own: Sequence[int] = (), patterns: Sequence[str] = (PATTERN,)) -> dict[str, int]:
    return dict(census.count(patterns, own, procs))


def test_a13_matching_processes_are_counted_by_model() -> None:
    assert census.count(
        [PATTERN], (), [(900, 1, agent()), (901, 1, agent(SONNET)), (902, 1, agent()), (903, 1, ["bash"])]
    ) == ((OPUS, 2), (SONNET, 1))


def test_a13_a_match_under_a_matching_ancestor_is_counted_once() -> None:
    assert count((900, 1, agent()), (901, 900, agent())) == {OPUS: 1}
    assert count((900, 1, agent()), (901, 900, ["sh"]), (902, 901, ["sh"]), (903, 902, agent(SONNET))) == {OPUS: 1}


def test_a13_an_agent_under_a_lease_and_its_descendants_are_not_counted() -> None:
    family = [(900, 1, agent()), (901, 900, ["sh"]), (902, 901, agent())]
    assert count(*family, own=[900]) == {}
    assert count((900, 1, ["my-program"]), (901, 900, ["sh"]), (902, 901, agent()), own=[900]) == {}
    assert count((900, 1, agent()), (901, 1, agent()), own=[901]) == {OPUS: 1}


@pytest.mark.parametrize(
    "wrapper",
    [
        ["fleetgate", "run", "-m", OPUS, "--", *agent()],
        ["/home/me/.local/bin/fleetgate", "run", "--", *agent()],
        ["/usr/bin/python3", "/home/me/.local/bin/fleetgate", "run", "--", *agent()],
        ["python3.11", "-I", "-X", "dev", "/usr/bin/fleetgate", "run", "--", *agent()],
        ["python", "-m", "fleetgate", "run", "--", *agent()],
        ["python", "-W", "error", "-Im", "fleetgate.cli.main", "run", "--", *agent()],
        ["fleetgate", "worker"],
    ],
)
def test_a13_fleetgates_own_processes_and_what_runs_under_them_are_not_counted(wrapper: list[str]) -> None:
    assert foreign_agents.is_fleetgate(wrapper)
    assert count((900, 1, wrapper)) == {}
    assert count((900, 1, wrapper), (901, 900, agent()), (902, 901, agent())) == {}


@pytest.mark.parametrize(
    "argv",
    [
        ["opencode", "fleetgate", "-m", OPUS],
        ["opencode", "/src/fleetgate", "-m", OPUS],
        ["python3", "opencode.py", "fleetgate", "-m", OPUS],
        ["python3", "-c", "opencode()", "fleetgate", "-m", OPUS],
        ["python3", "-m", "opencode", "-m", OPUS, "fleetgate"],
        ["python3", "-u", "opencode", "-m", OPUS],
        ["fleetgated", "opencode", "-m", OPUS],
    ],
)
def test_a13_an_agent_that_works_on_something_called_fleetgate_is_not_fleetgate(argv: list[str]) -> None:
    assert not foreign_agents.is_fleetgate(argv)
    assert count((900, 1, argv)) == {OPUS: 1}


@pytest.mark.parametrize("argv", [[], [""], ["python"], ["python", "-m"], ["python", "-X"], ["python", "-"]])
def test_odd_command_lines_are_not_fleetgate(argv: list[str]) -> None:
    assert not foreign_agents.is_fleetgate(argv)
    assert count((900, 1, argv)) == {}


@pytest.mark.parametrize(
    "launcher",
    [
        ["timeout", "600", "fleetgate", "run", "-m", OPUS, "--", *agent()],
        ["sh", "-c", f"cd /x && fleetgate run -m {OPUS} -- opencode -m {OPUS}"],
        ["bash", "-c", f"/usr/bin/fleetgate --json run -- opencode -m {OPUS}"],
        ["uv", "run", "fleetgate", "submit", "--", *agent()],
        ["uv", "run", "python", "-m", "fleetgate", "run", "--", *agent()],
    ],
)
def test_a13_a_run_that_waits_in_the_queue_does_not_make_its_launcher_foreign(launcher: list[str]) -> None:
    assert count((900, 1, launcher)) == {}
    wrapper = ["fleetgate", "run", "--", *agent()]
    assert count((900, 1, launcher), (901, 900, wrapper), (902, 901, agent())) == {}


def test_a13_a_foreign_agent_that_delegates_through_fleetgate_is_still_foreign() -> None:
    wrapper = ["fleetgate", "run", "--", *agent(SONNET)]
    assert count((900, 1, agent()), (901, 900, wrapper), (902, 901, agent(SONNET))) == {OPUS: 1}


def test_a13_kernel_threads_and_zombies_have_no_command_line_and_are_not_counted() -> None:
    assert count((2, 0, []), (900, 1, []), patterns=[""]) == {"": 2}  # a pattern that matches even nothing
    assert count((2, 0, []), (900, 1, [])) == {}


def test_a13_the_process_that_counts_does_not_count_itself() -> None:
    assert count((os.getpid(), 1, agent())) == {}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (OPUS, OPUS),
        ("anthropic@default/claude-opus-4-6", OPUS),
        ("anthropic@work/claude-opus-4-6", "anthropic@work/claude-opus-4-6"),
        ("openrouter/meta/llama-4", "openrouter/meta/llama-4"),
        ("opus", "anthropic/claude-opus-latest"),  # as `fleetgate run` names it
        ("*/claude-opus", ""),
        ("/", ""),
        ("a/b;rm", ""),
        ("x" * 5000, ""),
    ],
)
def test_a13_a_name_that_is_no_model_counts_without_one(name: str, model: str) -> None:
    assert count((900, 1, agent(name))) == {model: 1}


def test_a13_a_pattern_without_a_model_counts_for_the_host_only() -> None:
    assert count((900, 1, agent()), patterns=["^opencode "]) == {"": 1}
    assert count((900, 1, ["opencode"]), patterns=[r"opencode( -m (?P<model>\S+))?"]) == {"": 1}


def test_a13_of_several_patterns_the_one_that_names_a_model_decides() -> None:
    assert count((900, 1, agent()), patterns=["opencode", PATTERN, r"(?P<model>a/b)?"]) == {OPUS: 1}
    assert count((900, 1, ["opencode"]), patterns=["opencode", PATTERN]) == {"": 1}


def test_a13_a_prompt_of_many_lines_does_not_hide_what_follows_it() -> None:
    assert count((900, 1, ["opencode", "run", "first\nsecond\n", "-m", OPUS])) == {OPUS: 1}


def test_without_patterns_nothing_is_counted() -> None:
    assert count((900, 1, agent()), patterns=[]) == {}
    assert census.look("", []) == []
    assert foreign_agents.tally([], ["whoever"]) == ()


def test_a_tree_that_changed_while_it_was_read_may_have_a_loop() -> None:
    assert count((900, 901, agent()), (901, 900, ["sh"])) == {OPUS: 1}
    assert count((900, 900, agent())) == {OPUS: 1}


# Any tree: what each process is, and which of the earlier ones is its parent (a pid that is not there: init).
KINDS: dict[str, list[str]] = {
    "opus": agent(),
    "sonnet": agent(SONNET),
    "unknown": agent("a/b;rm"),
    "shell": ["sh", "-c", "make"],
    "fleetgate": ["fleetgate", "run", "--", *agent()],
    "launcher": ["timeout", "9", "fleetgate", "run", "--", *agent()],
    "empty": [],
}
MODELS = {"opus": OPUS, "sonnet": SONNET, "unknown": ""}
trees = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 30), st.booleans()), max_size=25)


@given(trees, st.randoms(use_true_random=False))
def test_a13_in_any_tree_exactly_the_topmost_foreign_matches_count(
    tree: list[tuple[str, int, bool]], chance: Random
) -> None:
    first = 10_000_000  # above any real pid, so that none is our own
    rows: list[census.Row] = []
    own: set[int] = set()
    expected: Counter[str] = Counter()
    covered: dict[int, bool] = {}  # below it nothing counts
    for index, (kind, above, is_own) in enumerate(tree):
        pid, parent = first + index, first + above if above < index else 1
        rows.append((pid, parent, KINDS[kind]))
        free = not covered.get(parent, False) and not is_own
        if is_own:
            own.add(pid)
        if free and kind in MODELS:
            expected[MODELS[kind]] += 1
        covered[pid] = not free or kind in MODELS or kind == "fleetgate"
    chance.shuffle(rows)
    assert dict(census.count([PATTERN], own, rows)) == dict(expected)


# Real processes. Each says a word when it runs: only then can its command line be seen.

WORD = f"census-test-{os.getpid()}"
REAL = WORD + r".* -m (?P<model>\S+)"
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
PARENT = (
    "import subprocess, sys\n"
    "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
    "child.stdout.readline(); print('up', child.pid, flush=True); child.wait()"
)


@contextmanager
def running(*argv: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Python under whatever name the first argument is; with what it said."""
    with subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        try:
            said = child.stdout.readline().split()
            assert said[0] == "up"
            yield child, said
        finally:
            assert child.stdin
            child.stdin.close()
            child.wait()


def identity(pid: int) -> str:
    process = process_identity.identify(pid)
    assert process
    return process


def test_a13_a_real_foreign_agent_counts_until_it_ends(tmp_path: Path) -> None:
    cache = str(tmp_path / "census")
    with running("python", "-c", WAIT, WORD, "-m", OPUS) as (child, _):
        assert census.count([REAL], ()) == ((OPUS, 1),)
        seen = census.look(cache, [REAL])
        assert [one.process for one in seen] == [identity(child.pid)]
        assert os.getpid() in seen[0].above
        assert foreign_agents.tally(seen, ()) == ((OPUS, 1),)
    # The look is older than the end; the tally is not.
    assert foreign_agents.tally(seen, ()) == ()
    assert foreign_agents.tally(census.look(cache, [REAL]), ()) == ()


def test_a13_a_lease_younger_than_the_cached_look_still_makes_its_agent_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_agents, "FRESH_MS", 1 << 40)
    cache = str(tmp_path / "census")
    with running("python", "-c", WAIT, WORD, "-m", OPUS) as (child, _):
        assert foreign_agents.tally(census.look(cache, [REAL]), ()) == ((OPUS, 1),)
        assert foreign_agents.tally(census.look(cache, [REAL]), [identity(child.pid)]) == ()
        assert foreign_agents.tally(census.look(cache, [REAL]), [identity(os.getpid())]) == ()


def test_a13_a_holder_whose_pid_another_process_has_by_now_owns_nothing() -> None:
    with running("python", "-c", WAIT, WORD, "-m", OPUS) as (child, _):
        seen = census.look("", [REAL])
        before = identity(child.pid).rsplit("|", 1)[0] + "|1"
        elsewhere = identity(child.pid).split("|")
        elsewhere[2] = "1"  # the same number in another container
        assert foreign_agents.tally(seen, [before, "|".join(elsewhere), "not a process"]) == ((OPUS, 1),)


def test_a13_a_real_agent_under_a_fleetgate_process_is_not_counted() -> None:
    with running("fleetgate", "-c", PARENT, sys.executable, "-c", WAIT, WORD, "-m", OPUS) as (wrapper, said):
        assert process_identity.parent_of(int(said[1])) == wrapper.pid
        assert census.count([REAL], ()) == ()
        os.kill(int(said[1]), 9)


def test_a13_a_real_family_counts_once() -> None:
    with running("python", "-c", PARENT, sys.executable, "-c", WAIT, WORD, "-m", OPUS) as (parent, said):
        seen = census.look("", [REAL])
        assert [process_identity.pid_of(one.process) for one in seen] == [parent.pid]
        os.kill(int(said[1]), 9)


def test_a_look_is_shared_for_a_second_and_not_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "census"
    monkeypatch.setattr(foreign_agents, "FRESH_MS", 1 << 40)
    with running("python", "-c", WAIT, WORD, "-m", OPUS):
        assert len(census.look(str(cache), [REAL])) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["census"]
    monkeypatch.setattr(foreign_agents, "command_lines", lambda users: pytest.fail("looked again"))
    assert len(census.look(str(cache), [REAL])) == 1
    monkeypatch.undo()
    assert foreign_agents.FRESH_MS == 1000
    monkeypatch.setattr(foreign_agents, "FRESH_MS", 0)
    assert census.look(str(cache), [REAL]) == []


def test_a_look_for_other_patterns_or_from_another_place_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "census")
    monkeypatch.setattr(foreign_agents, "FRESH_MS", 1 << 40)
    with running("python", "-c", WAIT, WORD, "-m", OPUS):
        assert len(census.look(cache, [REAL])) == 1
        assert census.look(cache, ["no such process at all, anywhere$"]) == []
        assert len(census.look(cache, [REAL])) == 1
    monkeypatch.setattr(foreign_agents, "_place", lambda: "another container")
    assert census.look(cache, [REAL]) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[1,2,3,4]", b"\xff\xfe", b'["",[],0,[["x"]]]'])
def test_q1_a_spoilt_cache_is_looked_past_and_replaced(tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "census"
    cache.write_bytes(content)
    assert census.look(str(cache), [REAL]) == []
    assert cache.read_bytes() != content


def test_q2_where_no_cache_can_be_written_everybody_looks_for_himself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with running("python", "-c", WAIT, WORD, "-m", OPUS):
        assert len(census.look(str(tmp_path / "missing" / "census"), [REAL])) == 1
        assert len(census.look(str(tmp_path / "folder"), [REAL])) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_psutil_sees_the_same_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("python", "-c", WAIT, WORD, "-m", OPUS) as (child, _):
        monkeypatch.setattr(process_identity, "_LINUX", False)
        seen = census.look("", [REAL])
        assert [process_identity.pid_of(one.process) for one in seen] == [child.pid]
        assert foreign_agents.tally(seen, ()) == ((OPUS, 1),)
        monkeypatch.setitem(sys.modules, "psutil", None)
        assert census.look("", [REAL]) == []
