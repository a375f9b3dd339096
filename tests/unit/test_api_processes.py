"""The folder that several processes of a service share: it outlasts programs that clean up /tmp."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import time

import pytest

from fleetgate.api import processes
from fleetgate.api.processes import SharedFolder, SharedTrouble, read_trouble

DAYS_S = 11 * 24 * 3600.0


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedFolder:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return SharedFolder()


def test_h6_what_the_processes_share_is_never_old_enough_to_be_cleaned_up(
    shared: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shared.path)
    (folder / "mark").write_text("")
    assert folder.stat().st_mode & 0o077 == 0
    now = time()
    for path in (folder / "mark", folder):
        os.utime(path, (now - DAYS_S, now - DAYS_S))
    shared.keep()
    assert folder.stat().st_mtime < now - 3600, "it is touched once an hour, not at every look"
    monkeypatch.setattr(processes, "time", lambda: now + DAYS_S)  # the machine has slept
    shared.keep()
    for path in (folder / "mark", folder):
        assert min(path.stat().st_mtime, path.stat().st_atime) > now - 60
    shared.remove()
    assert not folder.exists()
    monkeypatch.setattr(processes, "time", lambda: now + 2 * DAYS_S)
    shared.keep()  # it is gone, which does not end the service


def test_h6_a_folder_that_was_removed_does_not_end_the_service(shared: SharedFolder) -> None:
    said = ["workers stopped"]
    trouble = SharedTrouble(shared.path, lambda: said[0])
    trouble.write()
    assert read_trouble(shared.path) == "workers stopped"
    shared.remove()
    said[0] = ""
    trouble.write()
    assert read_trouble(shared.path) == ""
