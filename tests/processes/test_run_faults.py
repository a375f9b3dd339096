"""`fleetgate run` when the store fails (rule Q2): a clear message, nothing lost, automatic recovery.

An agent that runs is never in danger from this: whatever happens to the store, its own exit code is returned.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.processes.fleet import FLEETGATE, Fleet, Run, cpu_s, state_of

pytestmark = pytest.mark.processes

ONE = "[agents]\nhost = 1\n"


def says_once(run: Run, *words: str) -> bool:
    """Whether some line of its stderr has all the words; and no traceback, and no line twice."""
    lines = run.err.splitlines()
    assert "Traceback" not in run.err, run.err
    assert len(lines) == len(set(lines)), run.err
    return any(all(word in line for word in words) for line in lines)


def rests(run: Run, for_s: float = 1.2) -> bool:
    """Whether a process uses next to no processor time while it waits."""
    before = cpu_s(run.pid)
    time.sleep(for_s)  # the thing measured
    return cpu_s(run.pid) - before < 0.4 * for_s


# --- a full disk, and one that is read-only


class Disk:
    """A small file system that a fleet's store is on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")

    def _mount(self, *options: str) -> None:
        done = subprocess.run(["mount", *options, str(self.path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr}")

    def fill(self) -> None:
        with (self.path / "filler").open("wb", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        (self.path / "filler").unlink()

    def make(self, access: str) -> None:
        self._mount("-o", f"remount,{access}")

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True)


@pytest.fixture
def disk(fleet: Fleet) -> Iterator[Disk]:
    """The fleet's store is on a disk of one megabyte."""
    fleet.close_gate()
    disk = Disk(fleet.folder / "disk")
    fleet.home = disk.path / "s"
    fleet.configure(ONE)
    yield disk
    fleet.close_gate()
    disk.unmount()


def test_q2_on_a_full_disk_a_run_exits_69_and_later_all_is_well(fleet: Fleet, disk: Disk):
    assert fleet.done("--", "true").code == 0
    disk.fill()
    run = fleet.done("--status-file", "status.json", "--", "touch", "ran")
    assert run.code == 69, run
    assert says_once(run, "no space is left", str(fleet.home))
    assert not (fleet.folder / "ran").exists()
    assert '"exit_code":69' in (fleet.folder / "status.json").read_text()
    disk.empty()
    assert fleet.done("--", "true").code == 0
    assert fleet.is_empty()


def test_q2_where_there_is_no_room_for_a_store_a_run_exits_69(fleet: Fleet, disk: Disk):
    disk.fill()
    run = fleet.done("--", "touch", "ran")
    assert run.code == 69, run
    assert says_once(run, "no space is left")
    assert not (fleet.folder / "ran").exists()
    disk.empty()
    assert fleet.done("--", "true").code == 0, "what the first left behind is in the way"


def test_q2_a_run_in_the_queue_outlasts_a_full_disk(fleet: Fleet, disk: Disk):
    """It keeps its place, says what is wrong once, and does not spin."""
    first = fleet.run("--quiet", "--", *fleet.sleeper("first", 30))
    fleet.until(lambda: fleet.has_started("first"))
    second = fleet.waiting("--", *fleet.sleeper("second", 0))
    disk.fill()
    first.signal(signal.SIGKILL)
    fleet.kill_sleeper(fleet.lives()[0].pid)
    fleet.until(lambda: says_once(second, "no space is left", "still trying"))
    assert rests(second), second
    assert not fleet.has_started("second")
    disk.empty()
    assert second.wait() == 0, second
    assert says_once(second, "no space is left")
    assert fleet.is_empty()


def test_q2_an_agent_that_ends_on_a_full_disk_keeps_its_exit_code(fleet: Fleet, disk: Disk):
    go = fleet.folder / "go"
    run = fleet.run("--status-file", "status.json", "--", *fleet.sleeper("one", go, code=7))
    fleet.until(lambda: fleet.has_started("one"))
    disk.fill()
    go.touch()
    assert run.wait() == 7, run
    assert says_once(run, "no space is left")
    assert '"exit_code":7' in (fleet.folder / "status.json").read_text()
    disk.empty()
    assert fleet.done("--no-wait", "--", "true").code == 0, "its slot is gone"
    assert fleet.is_empty()


def test_q2_a_file_that_may_not_grow_is_a_full_disk(fleet: Fleet):
    """The same where nothing can be mounted: a limit on the size of files."""
    fleet.configure(ONE)
    assert fleet.done("--", "true").code == 0
    wal = fleet.home / "fleetgate.db-wal"
    limit = wal.stat().st_size
    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    start = "os.execv(sys.argv[1], sys.argv[1:])"
    run = fleet.start([sys.executable, "-c", f"{limited}; {start}", *FLEETGATE, "run", "--", "true"])
    assert run.wait() == 69, run
    assert "Traceback" not in run.err
    assert str(fleet.home) in run.err
    assert fleet.done("--", "true").code == 0


def test_q2_on_a_read_only_disk_a_run_exits_69_and_names_the_way_out(fleet: Fleet, disk: Disk):
    assert fleet.done("--", "true").code == 0
    disk.make("ro")
    run = fleet.done("--", "touch", "ran")
    assert run.code == 69, run
    assert says_once(run, str(fleet.home), "FLEETGATE_STORE")
    assert not (fleet.folder / "ran").exists()
    disk.make("rw")
    assert fleet.done("--", "true").code == 0


def test_q2_a_folder_that_cannot_be_made_is_a_sentence(fleet: Fleet):
    (fleet.folder / "file").write_text("not a folder")
    run = fleet.done("--", "true", env={"FLEETGATE_HOME": str(fleet.folder / "file")})
    assert run.code == 69, run
    assert says_once(run, str(fleet.folder / "file"))


# --- a damaged database


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "another file":
        path.write_bytes(b"this is not a database\n" * 500)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(data[:5000])
    else:
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


def settle(fleet: Fleet) -> Path:
    """Bring everything into the database file itself, and leave nothing open."""
    path = fleet.home / "fleetgate.db"
    fleet.close_gate()
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("how", ["another file", "empty", "cut off", "overwritten"])
def test_q2_a_damaged_database_is_reported_and_left_as_it_is(fleet: Fleet, how: str):
    for _ in range(3):
        assert fleet.done("--", "true").code == 0
    path = settle(fleet)
    damage(path, how)
    found = path.read_bytes()
    run = fleet.done("--status-file", "status.json", "--", "touch", "ran")
    assert run.code == 69, run
    assert says_once(run, str(path), "damaged", "fleetgate doctor")
    assert not (fleet.folder / "ran").exists()
    assert path.read_bytes() == found, "the damaged file was changed"
    # And the way out that the sentence names works.
    way_out = run.err.partition("moving this one away: ")[2].strip()
    assert way_out.startswith("mkdir "), run.err
    subprocess.run(["sh", "-c", way_out], check=True)
    assert fleet.done("--", "true").code == 0


def test_q2_damage_to_the_database_while_a_run_waits_is_reported_and_the_run_can_leave(fleet: Fleet):
    fleet.configure(ONE)
    fleet.occupy()
    run = fleet.waiting("--", "true")
    fleet.close_gate()
    broken = fleet.folder / "broken"
    broken.write_bytes(b"this is not a database\n" * 500)
    for suffix in ("-wal", "-shm"):
        Path(f"{fleet.home}/fleetgate.db{suffix}").unlink()
    broken.replace(fleet.home / "fleetgate.db")
    fleet.until(lambda: says_once(run, "damaged", "still trying"))
    assert rests(run), run
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run
    assert "Traceback" not in run.err


# --- a database that is gone


def delete(fleet: Fleet, what: str) -> None:
    fleet.close_gate()
    if what == "folder":
        fleet.home.rename(fleet.folder / "moved")
        shutil.rmtree(fleet.folder / "moved")
    else:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{fleet.home}/fleetgate.db{suffix}").unlink()


@pytest.mark.parametrize("what", ["database", "folder"])
def test_q2_runs_in_the_queue_outlast_the_loss_of_the_database(fleet: Fleet, what: str):
    """The log is gone and with it the line: those who stand in it say so, and stand in the new one."""
    fleet.configure(ONE)
    fleet.slots = 1
    held = fleet.occupy()
    runs = [fleet.waiting("--", *fleet.sleeper(f"s{number}", 0.1)) for number in range(3)]
    delete(fleet, what)
    fleet.until(lambda: all("requesting again" in run.err for run in runs), what="a word about it of each")
    fleet.until(lambda: held in fleet.state.leases, what="a slot for the one who has not lost anything but a row")
    assert not fleet.lives()
    fleet.free(held)
    for run in runs:
        assert run.wait() == 0, run
        assert "Traceback" not in run.err
    assert not fleet.notes("over")
    assert len(fleet.lives()) == 3
    assert fleet.is_empty()
    fleet.check_log()


@pytest.mark.parametrize("what", ["database", "folder"])
def test_q2_an_agent_outlasts_the_loss_of_the_database_and_keeps_its_exit_code(fleet: Fleet, what: str):
    go = fleet.folder / "go"
    run = fleet.run("--status-file", "status.json", "--", *fleet.sleeper("one", go, code=7))
    fleet.until(lambda: fleet.has_started("one"))
    delete(fleet, what)
    go.touch()
    assert run.wait() == 7, run
    assert "Traceback" not in run.err
    assert '"exit_code":7' in (fleet.folder / "status.json").read_text()
    assert fleet.done("--", "true").code == 0


# --- a process that is stopped while it holds the store's lock

HOLDER = """
import os, signal, sys
from fleetgate.log import open_log
log = open_log("sqlite://" + sys.argv[1])
log.lock()
log.begin()
os.kill(os.getpid(), signal.SIGSTOP)
log.unlock()
"""


def stopped_holder(fleet: Fleet) -> Run:
    fleet.close_gate()
    holder = fleet.start([sys.executable, "-c", HOLDER, str(fleet.home)])
    fleet.until(lambda: state_of(holder.pid) == "T", what="a stopped process with the lock")
    return holder


def waits_for_a_lock(run: Run) -> bool:
    return any("-> FLOCK" in line and f" {run.pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_q2_a_process_stopped_with_the_lock_is_named_after_five_seconds(fleet: Fleet):
    """By one that asks, one that waits in the queue and one that gives back; all go on when it is continued."""
    fleet.configure("[agents]\nhost = 2\n")
    dying = fleet.run("--quiet", "--", *fleet.sleeper("dying", 30))
    go = fleet.folder / "go"
    ending = fleet.run("--", *fleet.sleeper("ending", go))
    fleet.until(lambda: fleet.has_started("dying") and fleet.has_started("ending"))
    in_queue = [fleet.waiting("--", *fleet.sleeper(f"s{number}", 30)) for number in range(2)]
    holder = stopped_holder(fleet)
    began = time.monotonic()
    asking = fleet.run("--", "true")
    go.touch()
    dying.signal(signal.SIGKILL)
    fleet.kill_sleeper(next(life.pid for life in fleet.lives() if life.name == "dying"))
    words = (f"process {holder.pid}", "holds its lock", f"kill -CONT {holder.pid}")
    fleet.until(lambda: says_once(asking, *words) and says_once(ending, *words))
    assert time.monotonic() - began > 4
    fleet.until(lambda: any(says_once(run, *words) for run in in_queue))
    assert [run.code for run in (ending, asking, *in_queue)] == [None] * 4
    holder.signal(signal.SIGCONT)
    assert ending.wait() == 0, ending
    fleet.until(lambda: fleet.has_started("s0") and fleet.has_started("s1"))
    assert holder.wait() == 0
    assert rests(asking), "it spins in the queue, woken by the signal that made it speak"
    in_queue[0].signal(signal.SIGTERM)
    assert asking.wait() == 0, asking


def test_q2_all_go_on_when_the_process_with_the_lock_is_killed(fleet: Fleet):
    assert fleet.done("--", "true").code == 0
    holder = stopped_holder(fleet)
    asking = fleet.run("--", "true")
    fleet.until(lambda: waits_for_a_lock(asking))
    holder.signal(signal.SIGKILL)
    assert asking.wait() == 0, asking
    assert asking.err == ""


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_q2_a_run_that_waits_for_the_lock_can_be_left_at_once(fleet: Fleet, name: str):
    """With a place in the queue that it cannot give back, and without one: the next process finds it gone."""
    number = getattr(signal, f"SIG{name}")
    fleet.configure(ONE)
    first = fleet.run("--quiet", "--", *fleet.sleeper("first", 30))
    fleet.until(lambda: fleet.has_started("first"))
    in_queue = fleet.waiting("--", "touch", "ran")
    holder = stopped_holder(fleet)
    asking = fleet.run("--", "touch", "ran")
    first.signal(signal.SIGKILL)
    fleet.kill_sleeper(fleet.lives()[0].pid)
    for run in (in_queue, asking):
        fleet.until(partial(waits_for_a_lock, run), what=f"{run.pid} waits for the lock")
        run.signal(number)
        assert run.wait() == 128 + number, run
        assert "Traceback" not in run.err, run.err
    holder.signal(signal.SIGKILL)
    holder.wait()
    assert fleet.done("--no-wait", "--", "true").code == 0
    assert fleet.is_empty()
    assert not (fleet.folder / "ran").exists()


def test_q2_a_bypass_is_not_held_up_by_the_lock(fleet: Fleet):
    assert fleet.done("--", "true").code == 0
    holder = stopped_holder(fleet)
    run = fleet.run("--", *fleet.sleeper("one", 0, code=3), env={"FLEETGATE_BYPASS": "1"})
    assert run.wait() == 3, run
    assert says_once(run, "bypass not recorded", str(holder.pid))
