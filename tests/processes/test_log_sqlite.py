"""The SQLite log under real processes: many writers, kill -9, full and read-only disks, restored backups."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetgate.core.events import Returned
from fleetgate.log.protocol import START
from fleetgate.log.sqlite.log import SqliteLog

pytestmark = pytest.mark.processes

PRELUDE = """
import os, sys
from fleetgate.core.errors import FleetgateError
from fleetgate.core.events import Returned
from fleetgate.log.protocol import START, LogReplaced, SideWrite, StoreError
from fleetgate.log.sqlite.log import SqliteLog

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def commit(log, position, id, durable=False):
    log.lock()
    try:
        log.begin(durable=durable)
        while commits := log.read(position):  # a page at a time
            position = commits[-1].position
        return log.append(position, log.now(), [Returned(id=id)], None, [SideWrite("last", "id", id.encode())])
    finally:
        log.unlock()

folder = sys.argv[1]
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *args: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-c", PRELUDE + script, *map(str, args)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        process.kill()
        raise AssertionError(process.communicate()[1])
    return line


def killed(process: subprocess.Popen[str]) -> list[str]:
    """The lines that a process had said when it was killed, and that were not heard yet."""
    process.kill()
    assert process.stdout is not None
    return process.stdout.read().splitlines()


def tell(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def stands_in_the_queue(pid: int) -> bool:
    """Whether a process is blocked in a file lock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def ids(log: SqliteLog) -> list[str]:
    commits = log.read(START, limit=1_000_000)
    assert [one.number for one in commits] == list(range(1, len(commits) + 1))
    return [event.id for one in commits for event in one.events if isinstance(event, Returned)]


def commit(log: SqliteLog, id: str) -> int:
    log.lock()
    try:
        log.begin()
        position = START
        for one in log.read(START):
            position = one.position
        return log.append(position, log.now(), [Returned(id=id)], None).commit
    finally:
        log.unlock()


def test_A1_many_writers_make_one_dense_log_and_lose_nothing(tmp_path: Path, start: Start) -> None:
    script = """
log, position = SqliteLog(folder), START
for index in range(200):
    position = commit(log, position, f"{sys.argv[2]}.{index}")
log.close()
"""
    for process in [start(script, tmp_path, name) for name in range(6)]:
        finish(process)
    log = SqliteLog(str(tmp_path))
    told = ids(log)
    log.close()
    assert len(told) == 1200
    for name in range(6):
        assert [id for id in told if id.startswith(f"{name}.")] == [f"{name}.{index}" for index in range(200)]


def test_R6_twenty_processes_that_make_the_store_at_once_share_it(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "deep" / "store"
    script = """
say("ready")
sys.stdin.readline()
log = SqliteLog(folder)
commit(log, START, sys.argv[2])
say(log.now())
log.close()
"""
    processes = [start(script, folder, name) for name in range(20)]
    for process in processes:
        assert heard(process) == "ready"
    for process in processes:
        tell(process, "go")
    times = [int(heard(process)) for process in processes]
    for process in processes:
        finish(process)
    assert max(times) - min(times) < 60_000
    log = SqliteLog(str(folder))
    assert sorted(ids(log), key=int) == [str(name) for name in range(20)]
    offsets = log._db.conn.execute("SELECT count(*) FROM meta WHERE key LIKE 'boot:%'").fetchall()
    assert offsets == [(1,)]
    log.close()
    assert not list(folder.glob("*.new*"))


@pytest.mark.parametrize("step", ["lock", "begin", "read", "append", "unlock"])
def test_L2_kill_9_after_any_step_of_a_transaction_leaves_all_or_nothing_and_no_lock(
    tmp_path: Path, start: Start, step: str
) -> None:
    script = """
log = SqliteLog(folder)
steps = {
    "lock": lambda: log.lock(),
    "begin": lambda: log.begin(),
    "read": lambda: log.read(START),
    "append": lambda: log.append(log.read(START)[-1].position, log.now(), [Returned(id="b")], None,
                                 [SideWrite("last", "id", b"b")]),
    "unlock": lambda: log.unlock(),
}
for name, step in steps.items():
    step()
    if name == sys.argv[2]:
        say("there")
        sys.stdin.readline()
"""
    log = SqliteLog(str(tmp_path))
    commit(log, "a")
    process = start(script, tmp_path, step)
    assert heard(process) == "there"
    assert (log.lock_owner() == process.pid) == (step != "unlock")
    process.kill()
    process.wait()
    done = step in ("append", "unlock")
    assert log.lock_owner() is None
    assert ids(log) == (["a", "b"] if done else ["a"])
    assert log.side_value("last", "id") == (b"b" if done else None)
    assert log.try_lock()
    log.unlock()
    assert commit(log, "c") == (3 if done else 2)
    log.close()


def test_L2_every_answer_survives_a_storm_of_kill_9(tmp_path: Path, start: Start) -> None:
    script = """
log, position, index = SqliteLog(folder), START, 0
while True:
    position = commit(log, position, f"{sys.argv[2]}.{index}")
    say(f"{sys.argv[2]}.{index}")
    index += 1
"""
    chance = random.Random(7)
    told: list[str] = []
    running = [start(script, tmp_path, name) for name in range(3)]
    for name in range(3, 15):
        victim = running.pop(chance.randrange(len(running)))
        told += [heard(victim) for _ in range(chance.randrange(1, 40))]
        told += killed(victim)
        running.append(start(script, tmp_path, name))
    for process in running:
        told += killed(process)
    log = SqliteLog(str(tmp_path))
    kept = ids(log)
    assert set(told) <= set(kept)
    assert len(kept) <= len(told) + 15, "at most one commit of each process was not yet told"
    assert len(kept) == len(set(kept))
    last = log.side_value("last", "id")
    assert last is not None
    assert last.decode() == kept[-1]
    assert log._db.conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    log.close()


def test_Q2_a_process_that_is_stopped_with_the_lock_can_be_named(tmp_path: Path, start: Start) -> None:
    script = """
log = SqliteLog(folder)
log.lock()
say("locked")
sys.stdin.readline()
"""
    log = SqliteLog(str(tmp_path))
    process = start(script, tmp_path)
    assert heard(process) == "locked"
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert not log.try_lock()
    assert log.lock_owner() == process.pid
    assert log.head() is None, "reading goes on"
    process.send_signal(signal.SIGCONT)
    tell(process, "end")
    finish(process)
    assert log.lock_owner() is None
    assert commit(log, "a") == 1
    log.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="/proc/locks tells who waits")
def test_Q2_a_process_that_is_stopped_while_it_waits_delays_no_other(tmp_path: Path, start: Start) -> None:
    script = """
log = SqliteLog(folder)
say("ready")
commit(log, START, "waiter")
say("done")
"""
    log = SqliteLog(str(tmp_path))
    log.lock()
    process = start(script, tmp_path)
    assert heard(process) == "ready"
    while not stands_in_the_queue(process.pid):
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    log.unlock()
    for number in range(1, 101):
        assert log.try_lock()
        log.unlock()
        assert commit(log, "other") == number
    process.send_signal(signal.SIGCONT)
    assert heard(process) == "done"
    finish(process)
    assert ids(log) == ["other"] * 100 + ["waiter"]
    log.close()


@pytest.mark.parametrize("way", ["files removed and copied", "folder replaced", "copied over"])
def test_Q2_a_backup_restored_under_a_running_process_is_noticed(tmp_path: Path, start: Start, way: str) -> None:
    script = """
log, position = SqliteLog(folder), START
for line in sys.stdin:
    try:
        position = commit(log, position, line.strip())
        say("committed", position.commit)
    except LogReplaced:
        position = START
        say("replaced")
"""
    folder, backup = tmp_path / "store", tmp_path / "backup"
    process = start(script, folder)
    tell(process, "a")
    assert heard(process) == "committed 1"
    shutil.copytree(folder, backup, ignore=shutil.ignore_patterns("*-shm"))
    for number, id in enumerate("bc", 2):
        tell(process, id)
        assert heard(process) == f"committed {number}"

    files = ("fleetgate.db", "fleetgate.db-wal", "fleetgate.db-shm")
    if way == "folder replaced":
        folder.rename(tmp_path / "old")
        shutil.copytree(backup, folder)
    else:
        for name in files if way == "files removed and copied" else files[1:]:
            (folder / name).unlink()
        for name in files[:2]:
            shutil.copy(backup / name, folder / name)

    tell(process, "lost")
    assert heard(process) == "replaced"
    tell(process, "d")
    assert heard(process) == "committed 2"
    log = SqliteLog(str(folder))
    assert ids(log) == ["a", "d"]
    tell(process, "e")
    assert heard(process) == "committed 3"
    assert ids(log) == ["a", "d", "e"]
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    finish(process)
    assert log._db.conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    log.close()


def test_a_log_is_not_used_after_a_fork(tmp_path: Path, start: Start) -> None:
    script = """
log = SqliteLog(folder)
log.lock()
child = os.fork()
if child == 0:
    try:
        log.lock()
    except FleetgateError as error:
        say(error)
    os._exit(0)
os.waitpid(child, 0)
log.begin()
log.append(START, log.now(), [], None)
log.unlock()
"""
    assert "before a fork" in finish(start(script, tmp_path))


def test_a_programme_that_is_started_inherits_nothing_of_the_store(tmp_path: Path, start: Start) -> None:
    script = """
import subprocess
log = SqliteLog(folder)
log.lock()
log.begin()
child = "import os; print([os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')[:-1]])"
print(subprocess.run([sys.executable, "-c", child], close_fds=False, capture_output=True, text=True).stdout)
"""
    assert str(tmp_path) not in finish(start(script, tmp_path))


# Disks. A small file system of its own needs a mount namespace, which a container may not allow.


def on_own_disk(folder: Path, options: str, then: str = "") -> tuple[str, ...]:
    """What to put before a command to run it with a small disk of its own at `folder`."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o {options} fleetgate-test '{folder}' {then}"
    own = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
    before = (*own, "sh", "-c", f'{mount} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("a file system of its own cannot be mounted here (unshare --mount, tmpfs)")
    return before


def test_Q2_a_full_disk_is_reported_loses_nothing_and_is_recovered_from(tmp_path: Path, start: Start) -> None:
    script = """
os.mkdir(folder + "/store")
log, position, count = SqliteLog(folder + "/store"), START, 0
with open(folder + "/ballast", "wb") as file:
    file.write(bytes(300_000))
said = ""
try:
    while True:
        position = commit(log, position, f"{count}", durable=count % 2 == 0)
        count += 1
except StoreError as error:
    said = str(error)
try:
    log.save_snapshot(bytes(2_000_000), position)
except StoreError as error:
    assert str(error) == said, error
assert os.listdir(folder + "/store/snapshots") == []
assert log.lock_owner() is None
assert log.read(position) == []
assert len(log.read(START)) == count
os.unlink(folder + "/ballast")
position = commit(log, position, "more")
assert position.commit == count + 1
log.close()
log = SqliteLog(folder + "/store")
assert len(log.read(START)) == count + 1
say(count > 10, said)
"""
    folder = tmp_path / "disk"
    said = finish(start(script, folder, before=on_own_disk(folder, "size=1m")))
    assert said.startswith(f"True no space is left on the disk of the store in {folder}/store: nothing was changed")


def test_Q2_a_disk_that_is_full_from_the_start_is_told(tmp_path: Path, start: Start) -> None:
    script = """
try:
    with open(folder + "/ballast", "wb", buffering=0) as file:
        while file.write(bytes(4096)): pass
except OSError:
    pass
try:
    SqliteLog(folder)
except StoreError as error:
    say(error)
os.unlink(folder + "/ballast")
commit(SqliteLog(folder), START, "a")
say("got over")
"""
    folder = tmp_path / "disk"
    said = finish(start(script, folder, before=on_own_disk(folder, "size=256k")))
    assert said.startswith("no space is left")
    assert said.endswith("got over\n")


def test_Q2_a_read_only_file_system_is_told(tmp_path: Path, start: Start) -> None:
    script = """
try:
    SqliteLog(folder)
except StoreError as error:
    say(error)
"""
    folder = tmp_path / "disk"
    said = finish(start(script, folder, before=on_own_disk(folder, "ro")))
    assert "read-only file system" in said
    assert "FLEETGATE_STORE" in said


def test_Q2_a_file_system_that_becomes_read_only_is_reported_and_recovered_from(tmp_path: Path, start: Start) -> None:
    script = """
import subprocess
log = SqliteLog(folder)
position = commit(log, START, "a")
log.close()
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
try:
    SqliteLog(folder)
except StoreError as error:
    say(error)
subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
say(commit(SqliteLog(folder), position, "b").commit)
"""
    folder = tmp_path / "disk"
    said = finish(start(script, folder, before=on_own_disk(folder, "size=1m"))).splitlines()
    assert "read-only" in said[0]
    assert said[1] == "2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("made", [False, True], ids=["new store", "store of another user"])
def test_Q2_a_folder_that_this_user_may_not_write_is_told(start: Start, tmp_path: Path, made: bool) -> None:
    script = """
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    SqliteLog(folder)
except StoreError as error:
    say(error)
"""
    folder = tmp_path / "store"
    folder.mkdir()
    if made:
        SqliteLog(str(folder)).close()
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    before = sorted(path.name for path in folder.iterdir())
    said = finish(start(script, folder))
    assert "Permission denied" in said
    assert f"make {folder} and what is in it writable for this user, or set FLEETGATE_STORE" in said
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("durable", [False, True])
def test_only_durable_commits_are_synced_to_disk(tmp_path: Path, start: Start, durable: bool) -> None:
    script = f"""
log, position = SqliteLog(folder), START
position = commit(log, position, "first", durable=True)  # syncs what is new about the files themselves
say("MARK")
for index in range(10):
    position = commit(log, position, "x", durable={durable})
say("MARK")
"""
    trace = tmp_path / "trace"
    strace = ("strace", "-o", str(trace), "-e", "trace=fsync,fdatasync,write")
    if shutil.which("strace") is None or subprocess.run([*strace, "true"], capture_output=True).returncode:
        pytest.skip("strace is not installed or may not trace here, which tells what is synced when")
    finish(start(script, tmp_path / "store", before=strace))
    between = trace.read_text().split("MARK")[1]
    assert between.count("sync(") == (10 if durable else 0)
