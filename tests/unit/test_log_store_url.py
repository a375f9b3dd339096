"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetgate.log import open_log
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import START, StoreError
from fleetgate.log.sqlite.log import SqliteLog


def test_a_sqlite_url_names_a_folder(tmp_path: Path) -> None:
    log = open_log(f"sqlite://{tmp_path}/store", clock=lambda: 5)
    assert isinstance(log, SqliteLog)
    assert log.now() == 5
    log.close()
    assert (tmp_path / "store" / "fleetgate.db").is_file()


def test_each_memory_url_is_a_log_of_its_own() -> None:
    one, two = open_log("memory://", clock=lambda: 5), open_log("memory://")
    assert isinstance(one, MemoryLog)
    assert one.now() == 5
    one.lock()
    one.begin()
    one.append(START, 5, [], None)
    one.unlock()
    assert two.read(START) == []
    assert two.now() > 1_600_000_000_000


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite",
        "/var/lib/fleetgate",
        "sqlite:",
        "sqlite://",
        "sqlite://relative/folder",
        "sqlite://~/fleetgate",
        "sqlite:///nul\0byte",
        "memory://name",
        "mysql://me:secret@host/db",
        "redis://localhost",
        "x" * 5000,
    ],
)
def test_Q1_what_names_no_store_is_refused_with_what_would(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite:///some/folder") as failure:
        open_log(url)
    assert "secret" not in str(failure.value)
    assert len(str(failure.value)) < 400


def test_Q1_a_database_file_is_not_a_store(tmp_path: Path) -> None:
    for name in ("fleetgate.db", "new.db"):
        (tmp_path / "fleetgate.db").touch()
        with pytest.raises(StoreError, match=r"names the folder that holds fleetgate\.db"):
            open_log(f"sqlite://{tmp_path}/{name}")
    assert not (tmp_path / "new.db").exists()
