"""Files that are replaced in one step: a full disk or a link of another user costs no file of the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fleetgate.cli.run.status_file import Status

# The kernel lets a process write a part up to its limit, and fails the next write: as a disk that is nearly full does.
FULL_DISK = """
import resource, sys
from fleetgate.log.store_files import write_own
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_own(sys.argv[1], b"x" * 10_000, 0o644)
except OSError as error:
    print(error.strerror)
"""


def test_a_file_that_does_not_fit_on_the_disk_leaves_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / ".bashrc"
    path.write_text("before")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_status_file_in_a_folder_of_others_overwrites_no_file_that_a_link_there_leads_to(tmp_path: Path) -> None:
    private, path = tmp_path / "private", tmp_path / "status.json"
    private.write_text("mine")
    for link in (path, Path(f"{path}.{os.getpid()}.tmp")):
        link.symlink_to(private)
    Status(str(path)).write(exit_code=3)
    assert private.read_text() == "mine"
    assert json.loads(path.read_text())["exit_code"] == 3
