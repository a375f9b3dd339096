"""Tests find signals as in a terminal, however they were started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As `nohup`, a shell's `&` and others leave them; then what a program finds that is started by tests.
STARTED = """
import os, signal, subprocess, sys
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD", "SIGUSR1", "SIGTSTP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGTERM, signal.SIGALRM))
from tests import dispositions
dispositions.reset()
os.kill(os.getpid(), signal.SIGHUP)
subprocess.run(["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"], check=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_programs_that_tests_start_find_no_signal_ignored_or_blocked() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=ROOT, text=True, capture_output=True, check=True)
    found = [int(line.split()[1], 16) for line in done.stdout.splitlines()]
    # The C library keeps two signals for itself, which no program can change.
    known = sum(1 << (number - 1) for number in signal.valid_signals())
    assert [each & known for each in found] == [0, 0]
