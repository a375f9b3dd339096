"""Wake-ups between processes: sent without waiting, lost without harm (gate/wakeup/mailbox.py)."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetgate.gate.liveness import process_identity
from fleetgate.gate.wakeup import mailbox as wakeup_mailbox

# A process that says where it listens, and then what it hears.
LISTENER = """
import select, sys
from fleetgate.gate.wakeup import mailbox
with mailbox.Mailbox(sys.argv[1]) as box:
    print(box.address, flush=True)
    while True:
        select.select([box], [], [])
        for message in box.drain():
            print(message.decode(), flush=True)
            if message == b"end":
                sys.exit()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, which tmp_path is not."""
    with tempfile.TemporaryDirectory(prefix="hg", dir="/tmp") as path:
        yield Path(path).resolve()


@pytest.fixture
def box(folder: Path) -> Iterator[wakeup_mailbox.Mailbox]:
    with wakeup_mailbox.Mailbox(str(folder)) as mailbox:
        yield mailbox


@contextmanager
def listener(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", LISTENER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def test_a_message_arrives_and_the_socket_becomes_readable(box: wakeup_mailbox.Mailbox) -> None:
    assert box.drain() == []
    assert wakeup_mailbox.send(box.address, b"hello") is True
    assert select.select([box], [], [], 5)[0] == [box]
    assert box.drain() == [b"hello"]
    assert select.select([box], [], [], 0)[0] == []


def test_messages_come_in_order_and_no_more_than_asked_for(box: wakeup_mailbox.Mailbox) -> None:
    for word in (b"a", b"b", b"c"):
        wakeup_mailbox.send(box.address, word)
    assert box.drain(most=2) == [b"a", b"b"]
    assert box.drain(most=2) == [b"c"]


def test_an_empty_message_is_a_message(box: wakeup_mailbox.Mailbox) -> None:
    assert wakeup_mailbox.send(box.address, b"") is True
    assert box.drain() == [b""]


def test_a_full_receiver_drops_what_is_over_and_the_sender_never_waits(box: wakeup_mailbox.Mailbox) -> None:
    assert {wakeup_mailbox.send(box.address, b"wake") for _ in range(5000)} == {True}
    assert set(box.drain(most=5000)) == {b"wake"}


def test_another_process_is_woken(folder: Path) -> None:
    with listener(folder) as (child, address):
        assert child.stdout
        assert wakeup_mailbox.send(address, b"granted") is True
        assert child.stdout.readline() == "granted\n"
        wakeup_mailbox.send(address, b"end")
        assert child.wait(60) == 0
    assert list(folder.iterdir()) == []


def test_l2_after_kill_9_nobody_listens_and_the_sweep_removes_the_socket(
    folder: Path, box: wakeup_mailbox.Mailbox
) -> None:
    with listener(folder) as (child, address):
        assert wakeup_mailbox.sweep(str(folder)) == 0
        child.kill()
        child.wait()
        assert wakeup_mailbox.send(address, b"granted") is False
        assert Path(address).exists()
        assert wakeup_mailbox.sweep(str(folder)) == 1
        assert not Path(address).exists()
        assert wakeup_mailbox.send(address, b"granted") is False
    assert Path(box.address).exists()


def test_a_stopped_process_keeps_its_socket_and_hears_it_all_later(folder: Path) -> None:
    with listener(folder) as (child, address):
        assert child.stdout
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert wakeup_mailbox.send(address, b"granted") is True
        assert wakeup_mailbox.sweep(str(folder)) == 0
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "granted\n"


def test_a_closed_mailbox_leaves_nothing_behind(folder: Path) -> None:
    box = wakeup_mailbox.Mailbox(str(folder))
    assert Path(box.address).is_socket()
    box.close()
    box.close()
    assert box.fileno() == -1
    assert list(folder.iterdir()) == []
    assert wakeup_mailbox.send(box.address, b"x") is False


def test_a_forked_child_that_closes_its_copy_does_not_take_the_parents_name(box: wakeup_mailbox.Mailbox) -> None:
    child = os.fork()
    if not child:
        box.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert wakeup_mailbox.send(box.address, b"still here") is True
    assert box.drain() == [b"still here"]


def test_the_socket_is_not_inherited_by_programs_that_are_started(box: wakeup_mailbox.Mailbox) -> None:
    assert os.get_inheritable(box.fileno()) is False


def test_one_process_may_have_several_mailboxes(folder: Path, box: wakeup_mailbox.Mailbox) -> None:
    with wakeup_mailbox.Mailbox(str(folder)) as other:
        assert other.address != box.address
        wakeup_mailbox.send(other.address, b"for the other")
        assert (box.drain(), other.drain()) == ([], [b"for the other"])


def test_the_address_is_absolute_also_when_the_folder_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with wakeup_mailbox.Mailbox(".") as box:
        assert Path(box.address).parent == folder


def test_where_no_socket_can_be_an_os_error_says_so(folder: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        wakeup_mailbox.Mailbox(str(folder / "missing"))
    long = folder / ("x" * 100)
    long.mkdir()
    with pytest.raises(OSError, match="too long"):
        wakeup_mailbox.Mailbox(str(long))


@pytest.mark.parametrize(
    "address",
    [
        "",
        ".wake",
        "relative.wake",
        "../up.wake",
        "/etc/passwd",
        "/dev/log",
        "/run/systemd/notify",
        "\0abstract.wake",
        "/tmp/nul\0inside.wake",
        "/" + "x" * 5000 + ".wake",
        "/tmp/\ud800.wake",
        "/tmp/wake",
    ],
)
def test_q1_a_hostile_address_is_never_sent_to_and_never_raises(address: str) -> None:
    assert wakeup_mailbox.send(address, b"x") is None


def test_q1_addresses_where_nobody_can_listen_say_so(folder: Path) -> None:
    (folder / "file.wake").write_text("")
    (folder / "folder.wake").mkdir()
    assert wakeup_mailbox.send(str(folder / "missing.wake"), b"x") is False
    assert wakeup_mailbox.send(str(folder / "file.wake"), b"x") is False
    assert wakeup_mailbox.send(str(folder / "file.wake" / "below.wake"), b"x") is False
    assert wakeup_mailbox.send(str(folder / "folder.wake"), b"x") is False


def test_q1_a_nul_does_not_lead_to_a_socket_that_is_not_for_wake_ups(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "log"))
        other.setblocking(False)
        assert wakeup_mailbox.send(f"{folder}/log\0.wake", b"x") is None
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_a_socket_of_another_kind_says_nothing_of_its_process(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind(str(folder / "stream.wake"))
        stream.listen()
        assert wakeup_mailbox.send(str(folder / "stream.wake"), b"x") is None


def test_a_message_that_is_too_big_is_not_sent(box: wakeup_mailbox.Mailbox) -> None:
    assert wakeup_mailbox.send(box.address, b"x" * 10_000_000) is None
    assert box.drain() == []


def bound(path: Path) -> None:
    """A socket file that nobody listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))


def test_the_sweep_leaves_what_it_does_not_know(folder: Path) -> None:
    _, _, pidns, _, _ = process_identity.this_process().split("|")
    for name in ("x.wake", "1-2-3.wake", "a-b-c-d.wake", "1-2-3-4.sock"):
        bound(folder / name)
    (folder / f"{pidns}-4194303-1-0.wake").write_text("a file, not a socket")
    before = sorted(folder.iterdir())
    assert wakeup_mailbox.sweep(str(folder)) == 0
    assert sorted(folder.iterdir()) == before
    assert wakeup_mailbox.sweep(str(folder / "missing")) == 0


def test_the_sweep_sees_a_reused_pid(folder: Path) -> None:
    _, _, pidns, pid, start = process_identity.this_process().split("|")
    bound(folder / f"{pidns}-{pid}-{int(start) - 1}-0.wake")
    bound(folder / f"{pidns}-{pid}-{start}-7.wake")
    assert wakeup_mailbox.sweep(str(folder)) == 1
    assert [path.name for path in folder.iterdir()] == [f"{pidns}-{pid}-{start}-7.wake"]


def test_sockets_of_another_container_go_only_when_old_and_nobody_listens(folder: Path) -> None:
    heard, young, old = folder / "1-1-1-0.wake", folder / "1-1-1-1.wake", folder / "1-1-1-2.wake"
    bound(young)
    bound(old)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as living:
        living.bind(str(heard))
        for path in (heard, old):
            os.utime(path, (1, 1))
        assert wakeup_mailbox.sweep(str(folder)) == 1
    assert sorted(folder.iterdir()) == [heard, young]


def test_the_runtime_folder_is_in_the_state_folder_and_private(folder: Path) -> None:
    folder.chmod(0o755)
    made = Path(wakeup_mailbox.runtime_folder(str(folder)))
    assert made == folder / "run"
    assert made.stat().st_mode & 0o777 == 0o700
    assert Path(wakeup_mailbox.runtime_folder(str(folder))) == made
    with wakeup_mailbox.Mailbox(str(made)) as box:
        assert Path(box.address).stat().st_mode & 0o777 == 0o600


def test_a_state_folder_with_a_long_name_has_its_sockets_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup_mailbox, "_TMP", str(folder))
    states = [folder / (letter * 60) for letter in "ab"]
    made = []
    for state in states:
        state.mkdir()
        made.append(Path(wakeup_mailbox.runtime_folder(str(state))))
        assert wakeup_mailbox.runtime_folder(str(state)) == str(made[-1])
        assert made[-1].parent == folder
        assert made[-1].name.startswith(f"fleetgate-{os.geteuid()}-")
        assert made[-1].stat().st_mode & 0o777 == 0o700
        with wakeup_mailbox.Mailbox(str(made[-1])) as box:
            assert len(box.address) <= 100
    assert made[0] != made[1]


def test_a_link_to_the_state_folder_leads_to_the_same_sockets(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "link").symlink_to(folder / "state")
    assert wakeup_mailbox.runtime_folder(str(folder / "link")) == wakeup_mailbox.runtime_folder(str(folder / "state"))


@pytest.mark.parametrize("trap", ["link", "file", "open", "foreign"])
def test_a_folder_that_somebody_else_prepared_under_tmp_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(wakeup_mailbox, "_TMP", str(folder))
    state = folder / ("s" * 60)
    state.mkdir()
    place = Path(wakeup_mailbox.runtime_folder(str(state)))
    place.rmdir()
    if trap == "link":
        (folder / "elsewhere").mkdir()
        place.symlink_to(folder / "elsewhere")
    elif trap == "file":
        place.write_text("")
    else:
        place.mkdir()
    if trap == "open":
        place.chmod(0o777)
    if trap == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(place, 12345, 12345)
    with pytest.raises(PermissionError, match="remove it"):
        wakeup_mailbox.runtime_folder(str(state))


@as_root
def test_a_state_folder_shared_by_a_group_lets_the_group_wake(folder: Path) -> None:
    os.chown(folder, 0, 12345)
    folder.chmod(0o2770)
    run = Path(wakeup_mailbox.runtime_folder(str(folder)))
    assert run.stat().st_mode & 0o7777 == 0o2770
    assert run.stat().st_gid == 12345
    with wakeup_mailbox.Mailbox(str(run)) as box:
        seen = Path(box.address).stat()
        assert (seen.st_mode & 0o777, seen.st_gid) == (0o660, 12345)
        # A member of the group can send; somebody else cannot even look.
        assert sent_as(12346, 12345, box.address) == "True"
        assert box.drain() == [b"x"]
        assert sent_as(12346, 12346, box.address) == "None"
        assert box.drain() == []


@as_root
def test_a_shared_state_folder_with_a_long_name_lets_the_group_wake_and_not_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o755)
    monkeypatch.setattr(wakeup_mailbox, "_TMP", str(folder))
    state = folder / ("s" * 60)
    state.mkdir()
    os.chown(state, 12346, 12345)
    state.chmod(0o770)
    run = Path(wakeup_mailbox.runtime_folder(str(state)))
    assert (run.stat().st_mode & 0o777, run.stat().st_uid, run.stat().st_gid) == (0o710, os.geteuid(), 12345)
    assert wakeup_mailbox.runtime_folder(str(state)) == str(run)
    with wakeup_mailbox.Mailbox(str(run)) as box:
        assert sent_as(12346, 12345, box.address) == "True"
        assert sent_as(12346, 12346, box.address) == "None"


@as_root
def test_what_root_makes_in_a_users_state_folder_belongs_to_the_user(folder: Path) -> None:
    os.chown(folder, 12345, 12345)
    run = Path(wakeup_mailbox.runtime_folder(str(folder)))
    assert run.stat().st_uid == 12345
    with wakeup_mailbox.Mailbox(str(run)) as box:
        assert Path(box.address).stat().st_uid == 12345
        assert sent_as(12345, 12345, box.address) == "True"


def sent_as(user: int, group: int, address: str) -> str:
    """What `send` answers to another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            os.write(writer, str(wakeup_mailbox.send(address, b"x")).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
