"""`fleetgate simulate` on several processors: Ctrl-C ends it at once, however long the runs are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from tests.timed import within

SCENARIO = """
id = "long"
about = "a day"
cap = 50
minutes = 1440
[provider]
limit = [[0, 50]]
[[project]]
agents = 300
think_s = 4
median_s = 2
sigma = 0.4
"""


@pytest.mark.parametrize("whom", ["everybody, as a terminal does", "the command alone"])
def test_ctrl_c_ends_all_runs_at_once(whom: str, tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(SCENARIO)
    argv = [sys.executable, "-m", "fleetgate", "simulate", "long.toml", "--policy", "adapt", "--seeds=4", "--jobs=2"]
    process = subprocess.Popen(argv, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        us = psutil.Process(process.pid)
        while len(workers := us.children()) < 2:
            assert process.poll() is None
            sleep(0.02)
        while any(worker.cpu_times().user < 0.2 for worker in workers):
            sleep(0.02)
        began = monotonic()
        if whom == "the command alone":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        took_s = monotonic() - began
        assert process.returncode == 130, said
        assert "Traceback" not in said
        gone, left = psutil.wait_procs(workers, timeout=60)
        assert not left
        within(took_s, 2, "s until it has ended")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
