"""What is late is tried again, and nothing else is (tests/timed.py)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

TESTS = """
from pathlib import Path
import pytest
from tests.timed import within

record = Path(__file__).with_name("record")

@pytest.fixture
def tries():
    with record.open("a") as file:
        file.write("setup\\n")
    return record.read_text().count("setup")

def note(name):
    with record.open("a") as file:
        file.write(name + "\\n")

def test_late_twice(tries):
    note("late")
    within(3 - tries, 1, "its third try is in time")

def test_always_late():
    note("always")
    within(1, 1, "it never is")

def test_wrong():
    note("wrong")
    assert False
"""


def test_what_is_late_is_tried_again_with_new_fixtures_and_what_is_wrong_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "tests.timed", "-p", "no:schemathesis"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, cwd=root, check=False, timeout=120)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert Counter((tmp_path / "record").read_text().split()) == {"setup": 3, "late": 3, "always": 3, "wrong": 1}
    told = done.stdout.partition("too slow, and tried again")[2]
    assert told.count("test_late_twice: ") == told.count("test_always_late: ") == 2
