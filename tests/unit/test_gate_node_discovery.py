"""The start of a node: its log file has a size limit, and every node writes behind what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetgate.gate.node import discovery


def test_the_log_of_nodes_that_start_again_and_again_has_a_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a store is away, waiting commands start a node every two seconds, and each one says why it ends."""
    monkeypatch.setattr(discovery, "_spawn", lambda _, out: os.write(out, b"x" * 300_000))
    for number in range(20):
        discovery.start(str(tmp_path))
        discovery.ended(str(tmp_path))
        if number == 0:
            assert (tmp_path / "node.log").stat().st_size == 300_000
    files = sorted(path.name for path in tmp_path.glob("node.log*"))
    assert files == ["node.log", "node.log.1"]
    assert all((tmp_path / name).stat().st_size < 2_000_000 for name in files)
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in files)


def test_two_nodes_write_behind_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outs: list[int] = []
    monkeypatch.setattr(discovery, "_spawn", lambda _, out: outs.append(os.dup(out)))
    for _ in range(2):
        discovery.start(str(tmp_path))
        discovery.ended(str(tmp_path))
    for out, said in zip(outs, (b"first\n", b"second\n"), strict=True):
        os.write(out, said)
        os.close(out)
    assert (tmp_path / "node.log").read_bytes() == b"first\nsecond\n"
