"""tools/run_tests.py on small suites of its own: which failures make the run fail, and which tests are tried again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_tests import PYTEST, Command, run_lanes

# Fails the first time that it runs, as a test does that the machine was too slow for.
FAILS_ONCE = """
from pathlib import Path
def test_{name}():
    mark = Path(__file__).with_name("ran_{name}")
    ran, _ = mark.exists(), mark.touch()
    assert ran
"""
PASSES = "def test_{name}(): pass\n"
FAILS = "def test_{name}(): raise AssertionError\n"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tools.run_tests.PROGRESS_S", 0.1)
    return tmp_path


def lane(suite: Path, *texts: str, retried: bool = True) -> Command:
    number = len(list(suite.glob("test_*.py")))
    file = suite / f"test_{number}.py"
    file.write_text("".join(text.format(name=f"{number}_{each}") for each, text in enumerate(texts)))
    return Command((*PYTEST, "-q"), (file.name,), retried)


def test_a_test_that_fails_under_load_and_passes_alone_does_not_fail_the_run(
    suite: Path, capfd: pytest.CaptureFixture[str]
):
    lanes = {"one": [lane(suite, PASSES, FAILS_ONCE), lane(suite, FAILS_ONCE)], "two": [lane(suite, PASSES)]}
    assert run_lanes(lanes) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "failed under load, passed alone: test_0.py::test_0_1",
        "failed under load, passed alone: test_1.py::test_1_0",
    ]


def test_a_test_that_fails_alone_too_fails_the_run(suite: Path, capfd: pytest.CaptureFixture[str]):
    assert run_lanes({"one": [lane(suite, FAILS)], "two": [lane(suite, FAILS_ONCE)]}) == 1
    assert "failed under load and alone: test_0.py::test_0_0" in capfd.readouterr().out


def test_four_tests_that_fail_under_load_fail_the_run(suite: Path, capfd: pytest.CaptureFixture[str]):
    assert run_lanes({"one": [lane(suite, *[FAILS_ONCE] * 3)], "two": [lane(suite, FAILS_ONCE)]}) == 1
    assert "more than 3: none is tried again" in capfd.readouterr().out


def test_what_is_not_a_failed_test_is_never_tried_again(suite: Path, capfd: pytest.CaptureFixture[str]):
    lint = Command((sys.executable, "-c", "raise SystemExit(1)"))
    must_pass = lane(suite, FAILS_ONCE, retried=False)
    killed = Command((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    for command in (lint, must_pass, killed):
        assert run_lanes({"one": [command, lane(suite, PASSES)], "two": [lane(suite, FAILS_ONCE)]}) == 1
    assert "passed alone" not in capfd.readouterr().out
