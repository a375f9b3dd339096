"""Stores of every format ever released can be opened, read and written (docs/architecture.md).

`log-format-N/` was made by `build` below when format N was current, and is never made again once released:

    python tests/golden/test_log_golden.py tests/golden/log-format-1
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from fleetgate.core.events import Asked, CapReset, Event, Returned
from fleetgate.log.protocol import START, LogReplaced, SideWrite
from fleetgate.log.sqlite.log import SqliteLog

HERE = Path(__file__).parent


def build(folder: str) -> None:
    """Six commits at times 1000 to 6000, the first two pruned, snapshots of the third and fifth."""
    now = 0
    log = SqliteLog(folder, lambda: now)
    position = START
    commits: list[tuple[list[Event], int | None, tuple[SideWrite, ...]]] = [
        ([Returned(id="pruned")], None, ()),
        ([Returned(id="pruned too")], None, ()),
        ([Returned(id="three"), Asked(id="three")], 3_500, (SideWrite("jobs", "a", b'{"argv":["true"]}'),)),
        ([], 4_500, ()),
        ([CapReset(kind="agents", selector="*/claude-opus-*")], None, (SideWrite("jobs", "b", b"\x00\xff"),)),
        ([Returned(id="naïve → 你好")], 6_500, (SideWrite("told", "x", b"granted"),)),
    ]
    for number, (events, due, side) in enumerate(commits, 1):
        now = number * 1_000
        log.lock()
        log.begin()
        position = log.append(position, now, events, due, side)
        log.unlock()
        if number in (3, 5):
            log.save_snapshot(b'{"of":%d}' % number, position)
    now = 1_000_000
    log.maintain(0)
    log.close()
    (Path(folder) / "fleetgate.lock").unlink()


def test_a_store_of_format_1_is_restored_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(HERE / "log-format-1", folder)
    log = SqliteLog(str(folder), lambda: 7_000)
    try:
        stored = log.snapshot()
        assert stored is not None
        assert (stored.data, stored.position.commit, stored.position.seq) == (b'{"of":5}', 5, 5)
        sixth = log.read(stored.position)
        assert [(one.number, one.at, one.seq, one.due, one.events) for one in sixth] == [
            (6, 6_000, 6, 6_500, [Returned(id="naïve → 你好")])
        ]
        assert list(log.history()) == [
            (3, 3_000, Returned(id="three")),
            (4, 3_000, Asked(id="three")),
            (5, 5_000, CapReset(kind="agents", selector="*/claude-opus-*")),
            (6, 6_000, Returned(id="naïve → 你好")),
        ]
        assert log.side_items("jobs") == [("a", b'{"argv":["true"]}'), ("b", b"\x00\xff")]
        assert log.side_value("told", "x") == b"granted"
        try:
            log.read(START)
        except LogReplaced:
            pass
        else:
            raise AssertionError("the log was pruned")

        log.lock()
        log.begin()
        position = log.append(sixth[-1].position, log.now(), [Returned(id="new")], None)
        log.unlock()
        assert position[::2] == (7, 7)
        log.save_snapshot(b"{}", position)
        assert log.snapshot() == (b"{}", position)
    finally:
        log.close()


def test_a_damaged_snapshot_of_format_1_falls_back_to_the_older(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(HERE / "log-format-1", folder)
    (newest,) = (folder / "snapshots").glob("5-*.json")
    newest.write_bytes(b"{}")
    log = SqliteLog(str(folder), lambda: 7_000)
    try:
        stored = log.snapshot()
        assert stored is not None
        assert stored.data == b'{"of":3}'
        assert [one.number for one in log.read(stored.position)] == [4, 5, 6]
    finally:
        log.close()


if __name__ == "__main__":
    build(sys.argv[1])
