"""What a process holds (a lock, a connection, a mailbox) is not kept by the children that it forks."""

from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fleetgate.sync
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.wakeup import mailbox
from fleetgate.log import open_log
from fleetgate.log.protocol import START, Log
from fleetgate.log.sqlite.log import SqliteLog
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.processes.fleet import Fleet

PATIENCE_S = 20.0

# `fleetgate run`; just before it commits the pid of its child, which waits, the database is replaced by its backup.
REPLACED = """
import os, shutil, sys
from fleetgate.cli.commands import run
from fleetgate.cli.main import main
from fleetgate.runner.child import Child

home, backup = sys.argv[1:3]
prepare = Child.prepare

def prepare_and_replace(*args, **options):
    child = prepare(*args, **options)
    for name in ("fleetgate.db", "fleetgate.db-wal", "fleetgate.db-shm"):
        os.unlink(f"{home}/{name}")
        if os.path.exists(f"{backup}/{name}"):
            shutil.copy(f"{backup}/{name}", f"{home}/{name}")
    return child

Child.prepare = prepare_and_replace
main(sys.argv[3:])
"""


def test_a_database_that_is_replaced_while_a_child_waits_stops_neither_the_run_nor_anyone_else() -> None:
    with Fleet("[agents]\nhost = 2\n") as fleet:
        assert fleet.done("--", *fleet.sleeper("before", 0)).code == 0
        fleet.close_gate()
        shutil.copytree(fleet.home, fleet.folder / "backup")
        replaced = [sys.executable, "-c", REPLACED, str(fleet.home), str(fleet.folder / "backup")]
        run = fleet.start([*replaced, "run", "--", *fleet.sleeper("one", 0)])
        assert run.wait() == 0, run
        assert fleet.done("--", *fleet.sleeper("after", 0)).code == 0
        assert [life.name for life in fleet.lives()] == ["before", "one", "after"]
        assert fleet.is_empty()


def forked(work: Callable[[], object]) -> tuple[int, str]:
    """Do something in a forked child: the child, which stays, and what it had to say."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3 * int(PATIENCE_S))  # whatever becomes of the test
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_fd, said.encode() or b"-")
        signal.pause()
    os.close(write_fd)
    ready, _, _ = select.select([read_fd], [], [], PATIENCE_S)
    with os.fdopen(read_fd, "rb", buffering=0) as file:
        return pid, file.read(10_000).decode() if ready else "it hangs"


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/store"
    server: Server = request.getfixturevalue("postgres")
    return fresh_store(server)


def die(work: Callable[[], object]) -> int:
    """In a process of its own: do something, fork a child, and die. The child, which lives on."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = work()
        child, _ = forked(lambda: kept)
        os.write(write_fd, str(child).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb", buffering=0) as file:
        return int(file.read(20))


def test_a_process_that_dies_in_a_transaction_leaves_no_lock_to_the_children_that_it_forked(url: str) -> None:
    def begin() -> Log:
        log = open_log(url)
        log.lock()
        log.begin()
        return log

    orphan = die(begin)
    pid, said = forked(lambda: commit(url))
    try:
        assert said == "committed"
    finally:
        os.kill(orphan, signal.SIGKILL)
        end(pid)


def commit(url: str) -> str:
    log = open_log(url)
    log.lock()
    log.begin()
    log.append(START, log.now(), [], None)
    log.unlock()
    return "committed"


def test_a_fork_disturbs_neither_the_lock_nor_the_transaction_of_the_parent(url: str) -> None:
    log, other = open_log(url), open_log(url)
    log.lock()
    log.begin()
    pid, said = forked(lambda: log.close())
    try:
        assert said == "None"
        assert not other.try_lock(), "the parent still has the lock"
        log.append(START, log.now(), [], None)
        log.unlock()
        assert len(other.read(START)) == 1
    finally:
        end(pid)
        log.close()
        other.close()


@pytest.mark.parametrize(
    "use", [lambda log: log.read(START), lambda log: log.lock(), lambda log: log.head()], ids=["read", "lock", "head"]
)
def test_a_log_of_the_parent_is_refused_in_a_forked_child_by_a_sentence(url: str, use: Callable[[Log], object]) -> None:
    log = open_log(url)
    pid, said = forked(lambda: use(log))
    try:
        assert said.startswith("FleetgateError: this gate was opened before a fork"), said
        assert log.read(START) == []
    finally:
        end(pid)
        log.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list its locks")
def test_a_forked_child_that_opens_the_same_store_has_locks_of_its_own(tmp_path: Path) -> None:
    """SQLite would take the parent's for its own, and another process could then remove the files under it."""
    log = SqliteLog(str(tmp_path))
    kept: list[SqliteLog] = []

    def open_another() -> int:
        kept.append(SqliteLog(str(tmp_path)))
        kept[0].read(START)
        inode = f":{(tmp_path / 'fleetgate.db').stat().st_ino} "
        lines = Path("/proc/locks").read_text().splitlines()
        return sum(f" {os.getpid()} " in line and inode in line and "POSIX" in line for line in lines)

    pid, said = forked(open_another)
    try:
        assert said == "1"
        assert log.read(START) == []
    finally:
        end(pid)
        log.close()


def test_a_child_that_was_forked_in_the_middle_of_a_transaction_does_not_open_that_store(tmp_path: Path) -> None:
    log = SqliteLog(str(tmp_path / "one"))
    log.lock()
    log.begin()
    pid, said = forked(lambda: SqliteLog(str(tmp_path / "one")))
    end(pid)
    assert "forked while another thread" in said
    pid, said = forked(lambda: SqliteLog(str(tmp_path / "two")).read(START))
    end(pid)
    assert said == "[]"
    log.append(START, log.now(), [], None)
    log.unlock()
    log.close()


def test_a_mailbox_ends_with_its_process_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    orphan = die(lambda: mailbox.Mailbox(str(tmp_path)))
    (address,) = map(str, tmp_path.iterdir())
    assert mailbox.send(address, b"hello") is False
    os.kill(orphan, signal.SIGKILL)


# The library, with multiprocessing's fork.


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[fleetgate.sync.Gate]:
    with fleetgate.sync.open_gate(f"sqlite://{tmp_path}/store", {"requests": {"some/*": 1}}) as gate:
        yield gate


def test_a_synchronous_gate_is_refused_in_a_forked_child_instead_of_waiting_for_ever(gate: fleetgate.sync.Gate) -> None:
    def use() -> str:
        try:
            return str(gate.status())
        except FleetgateError as error:
            return str(error)

    pid, said = forked(use)
    end(pid)
    assert said.startswith("this gate was opened before a fork"), said


def test_a_forked_child_that_leaves_its_copy_of_a_lease_gives_nothing_back(gate: fleetgate.sync.Gate) -> None:
    def leave() -> str:
        leased.release()
        gate.close()
        return "left"

    with gate.lease("some/model") as leased:
        pid, said = forked(leave)
        end(pid)
        assert said == "left"
        assert max(pool.in_flight for pool in gate.status()) == 1


def _lease(url: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    with fleetgate.sync.open_gate(url) as gate, gate.lease("some/model") as leased:
        answers.put(leased.model)


def test_a_process_of_multiprocessing_opens_a_gate_of_its_own(gate: fleetgate.sync.Gate, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    process = context.Process(target=_lease, args=(f"sqlite://{tmp_path}/store", answers))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert answers.get() == "some/model"
    with gate.lease("some/model"):
        pass
