"""Taps at pipes, sockets and files of this process, and the rules by which an agent is ended: no child is needed."""

import errno
import fcntl
import os
import random
import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fleetgate.gate.liveness.process_group import group_lives
from fleetgate.runner import output_tap as tapping
from fleetgate.runner.child import tappable
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.output_tap import OutputTap, Taps


class Bench:
    """A tap from a pipe that we write to, to whatever the test reads from."""

    def __init__(self, out_fd, on_bytes=None):
        self.shown: list[bytes] = []
        in_fd, self.fd = os.pipe()
        self.tap = OutputTap(1, in_fd, on_bytes or (lambda stream, data: self.shown.append(data)), out_fd)
        self.poll = select.poll()
        self.taps = Taps([self.tap], self.poll)

    def serve(self):
        """Until nothing happens any more."""
        while ready := self.poll.poll(0):
            for fd, event in ready:
                self.taps.serve(fd, event)

    def close(self):
        self.taps.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
def files():
    """File descriptors that are closed after the test, as far as it has left them open."""
    opened: list[int] = []
    yield opened
    for fd in opened:
        try:
            os.close(fd)
        except OSError:
            pass


def pipe(files):
    ends = os.pipe()
    files += ends
    return ends


@pytest.fixture
def at(files):
    benches = []

    def make(out_fd, on_bytes=None):
        benches.append(Bench(out_fd, on_bytes))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def all_in(fd):
    """What is in a pipe by now."""
    data = b""
    while select.select([fd], [], [], 0)[0] and (part := os.read(fd, 1_000_000)):
        data += part
    return data


# --- passing on


@pytest.mark.parametrize("reopened", [True, False])
def test_R2_a_slow_reader_gets_every_byte_in_order_and_holds_the_child_back(at, files, monkeypatch, reopened):
    if not reopened:
        monkeypatch.setattr(tapping, "_Pipe", _refuse)
    out_read, out_write = pipe(files)
    bench = at(out_write)
    os.set_blocking(bench.fd, False)
    chance = random.Random(3)
    data = chance.randbytes(1_500_000)
    written, got = 0, b""
    while len(got) < len(data):
        try:
            written += os.write(bench.fd, data[written : written + chance.randrange(1, 70_000)])
        except BlockingIOError:
            pass
        bench.serve()
        assert written - len(got) <= 3 * 65_536, "two pipes and what is in hand"
        if select.select([out_read], [], [], 0)[0]:
            got += os.read(out_read, chance.randrange(1, 90_000))
    assert got == data
    assert b"".join(bench.shown) == data


def _refuse(fd):
    raise PermissionError(errno.EACCES, "another user's pipe")


def test_R2_the_files_that_others_share_are_not_made_non_blocking(at, files):
    _, out_write = pipe(files)
    one, other = socket.socketpair()
    with one, other:
        for fd in (out_write, one.fileno()):
            bench = at(fd)
            os.write(bench.fd, b"x")
            bench.serve()
            assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK


def test_R2_a_stream_socket_is_passed_to_and_its_end_noticed(at):
    one, other = socket.socketpair()
    with one, other:
        bench = at(one.fileno())
        data = random.Random(4).randbytes(600_000)
        os.set_blocking(bench.fd, False)
        written, got = 0, b""
        while len(got) < len(data):
            try:
                written += os.write(bench.fd, data[written : written + 50_000])
            except BlockingIOError:
                pass
            bench.serve()
            got += other.recv(30_000)
        assert got == data
        other.close()
        bench.serve()
        assert isinstance(bench.tap.not_passed, BrokenPipeError)


@pytest.mark.parametrize("shared", ["appended to", "written"])
def test_R2_a_file_takes_everything_at_once(at, files, tmp_path, shared):
    flags = os.O_APPEND if shared == "appended to" else 0
    files.append(os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | flags))
    bench = at(files[0])
    data = bytes(range(256)) * 200
    os.write(bench.fd, data)
    bench.serve()
    assert (tmp_path / "out").read_bytes() == data
    assert not bench.taps.hold


def test_R2_lines_are_passed_in_pieces_that_a_pipe_takes_whole(at, files):
    data = b"".join(b"%d %s\n" % (n, b"x" * (n * 37 % 700)) for n in range(200)) + b"y" * 9000 + b"\nend"
    pieces, at_byte = [], 0
    while at_byte < len(data):
        pieces.append(bytes(tapping._piece(data, at_byte)))
        at_byte += len(pieces[-1])
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= select.PIPE_BUF
    short = [piece for piece in pieces if b"y" not in piece and piece != b"end"]
    assert all(piece.endswith(b"\n") for piece in short)


def test_R2_a_pipe_that_a_stranger_made_non_blocking_is_no_error(at, files, monkeypatch):
    monkeypatch.setattr(tapping, "_Pipe", _refuse)
    out_read, out_write = pipe(files)
    os.set_blocking(out_write, False)
    bench = at(out_write)
    monkeypatch.setattr(bench.tap._outlet, "_room", SimpleNamespace(poll=lambda timeout: True))
    for _ in range(2):
        os.write(bench.fd, b"z" * 60_000)
        bench.serve()
    assert bench.tap.not_passed is None
    first = all_in(out_read)
    bench.serve()
    assert len(first) + len(all_in(out_read)) == 120_000


# --- when it cannot be passed on


@pytest.mark.parametrize("reopened", [True, False])
def test_R2_when_the_reader_has_left_the_childs_next_write_fails(at, files, monkeypatch, reopened):
    if not reopened:
        monkeypatch.setattr(tapping, "_Pipe", _refuse)
    out_read, out_write = pipe(files)
    bench = at(out_write)
    os.close(out_read)
    bench.serve()
    if not reopened:  # there only a write tells
        os.write(bench.fd, b"last words")
        bench.serve()
        assert bench.shown == [b"last words"]
    with pytest.raises(BrokenPipeError):
        os.write(bench.fd, b"x")
    assert isinstance(bench.tap.not_passed, BrokenPipeError)
    assert bench.tap.awaits() == ()


def test_R2_what_was_written_before_the_reader_left_is_shown_in_order(at, files):
    out_read, out_write = pipe(files)
    bench = at(out_write)
    os.set_blocking(bench.fd, False)
    written = b""
    for number in range(4):
        data = bytes([number]) * 40_000
        written += data[: os.write(bench.fd, data)]
        bench.serve()
    assert bench.taps.hold
    os.close(out_read)
    bench.serve()
    assert b"".join(bench.shown) == written


def test_R2_a_named_pipe_may_change_its_reader(at, files, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    files.append(os.open(tmp_path / "fifo", os.O_WRONLY))
    bench = at(files[0])
    os.close(reader)
    bench.serve()
    files.append(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    os.write(bench.fd, b"hello")
    bench.serve()
    assert os.read(files[1], 100) == b"hello"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")  # noqa: PTH110
def test_R2_an_error_that_a_pipe_cannot_tell_closes_it_and_is_remembered(at, files):
    files.append(os.open("/dev/full", os.O_WRONLY))
    bench = at(files[0])
    os.write(bench.fd, b"x")
    bench.serve()
    assert bench.tap.not_passed is not None
    assert bench.tap.not_passed.errno == errno.ENOSPC
    with pytest.raises(BrokenPipeError):
        os.write(bench.fd, b"x")


def test_R2_an_exception_of_the_one_who_is_shown_the_output_loses_nothing(at, files):
    def fail(stream, data):
        raise ValueError("cannot read this")

    out_read, out_write = pipe(files)
    bench = at(out_write, fail)
    for word in (b"one ", b"two"):
        os.write(bench.fd, word)
        bench.serve()
    assert all_in(out_read) == b"one two"
    assert isinstance(bench.taps.not_read, ValueError)
    assert bench.taps.not_passed is None


def test_R2_finishing_waits_for_a_reader_only_as_long_as_it_reads_when_asked_so(at, files):
    _, out_write = pipe(files)
    bench = at(out_write)
    for _ in range(2):
        os.write(bench.fd, b"z" * 60_000)
        bench.serve()
    assert bench.taps.hold
    bench.taps.take_the_rest()
    bench.taps.finish(0.02)
    bench.close()
    assert isinstance(bench.taps.not_passed, TimeoutError)


# --- which files are read on the way


@pytest.mark.parametrize(
    ("how", "files"),
    [
        ("| cat", "[(1,)]"),
        ("2>&1 | cat", "[(1, 2)]"),
        (">out 2>&1; cat out", "[(1, 2)]"),
        (">>out 2>>out; cat out", "[(1, 2)]"),
        ("2>other | cat", "[(1,), (2,)]"),
        ("2>/dev/null | cat", "[(1,), (2,)]"),
        ("2>&- | cat", "[(1,)]"),
    ],
)
def test_R2_files_and_pipes_are_read_on_the_way_and_those_that_are_one_together(tmp_path, how, files):
    body = "import os; from fleetgate.runner.child import tappable; os.write(1, str(tappable()).encode())"
    stderr = subprocess.DEVNULL if "2>" in how else subprocess.PIPE
    line = f'"$0" -c "$1" {how}'
    if stderr == subprocess.PIPE:
        files = "[(1,), (2,)]"
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, body], cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, timeout=60
    )
    assert done.stdout.decode() == files


def test_R2_a_terminal_is_never_read(monkeypatch):
    monkeypatch.setattr(os, "get_inheritable", lambda fd: True)
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 1)
    assert tappable() == [(2,)]
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    assert tappable() == []


def test_R2_what_the_child_will_find_closed_is_not_read(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    monkeypatch.setattr(os, "get_inheritable", lambda fd: False)
    assert tappable() == []


# --- R5: when an agent is ended


class Told:
    """What the records of a pretended agent told."""

    def __init__(self, records_seen=0, activity=False, limited=None):
        self.records_seen = records_seen
        self.activity = activity
        self.limited = limited


def begun(told, **options):
    ending = EarlyStop(told, **options)
    ending.begin(1_000)
    return ending


def test_R5_a_rate_limit_in_the_first_30_s_ends_it_soon():
    ending = begun(Told(1, limited="limited"))
    assert ending.verdict(1_000 + 29_000) == "", "nobody looks where nothing was written"
    ending.wrote(1_000 + 29_500)
    assert ending.next_deadline() < 1_000 + 30_000
    assert ending.verdict(ending.next_deadline()) == "rate_limited"


def test_R5_a_rate_limit_after_30_s_does_not_end_it():
    ending = begun(Told(1, limited="limited"))
    ending.wrote(1_000 + 30_001)
    assert ending.verdict(1_000 + 60_000) == ""


def test_R5_a_rate_limit_after_activity_does_not_end_it():
    told = Told(1, activity=True)
    ending = begun(told)
    ending.wrote(2_000)
    assert ending.verdict(3_000) == ""
    told.limited = "limited"
    ending.wrote(4_000)
    assert ending.verdict(5_000) == ""


def test_R5_no_record_within_3_min_ends_it_though_it_wrote_something():
    ending = begun(Told())
    ending.wrote(100_000)
    assert ending.next_deadline() == 1_000 + 180_000
    assert ending.verdict(1_000 + 179_999) == ""
    assert ending.verdict(1_000 + 180_000) == "no_record"


def test_R5_with_a_record_only_silence_ends_it_and_every_byte_counts():
    ending = begun(Told(1))
    assert ending.verdict(1_000 + 180_000) == ""
    ending.wrote(1_000_000)
    assert ending.next_deadline() == 1_000_000 + 1_200_000
    assert ending.verdict(1_000_000 + 1_199_999) == ""
    assert ending.verdict(1_000_000 + 1_200_000) == "silent"


def test_R5_a_silence_that_is_not_its_own_does_not_count():
    ending = begun(Told(), silence_s=600)
    ending.stood_still(3_600_000)
    assert ending.verdict(1_000 + 3_600_000) == ""
    assert ending.verdict(1_000 + 3_600_000 + 180_000) == "no_record"
    ending = begun(Told(1), silence_s=600)
    ending.held_up(700_000)
    assert ending.verdict(1_299_000) == ""
    assert ending.verdict(1_300_000) == "silent"


def test_R5_a_rule_without_a_time_does_not_apply():
    ending = begun(Told(limited="limited"), early_s=None, record_s=None, silence_s=None)
    ending.wrote(2_000)
    assert ending.next_deadline() == float("inf")
    assert ending.verdict(1e12) == ""


def test_R5_where_the_records_cannot_be_read_only_silence_ends_it():
    class Broken(Told):
        @property
        def limited(self):
            raise ValueError("cannot tell")

        @limited.setter
        def limited(self, value):
            pass

    for ending in (begun(Broken()), begun(Told())):
        ending.wrote(2_000)
        if isinstance(ending._told, Broken):
            assert ending.verdict(2_200) == ""
            assert isinstance(ending.failed, ValueError)
        else:
            ending.records_unread()
        assert ending.verdict(1_000 + 180_000) == ""
        assert ending.verdict(2_000 + 1_200_000) == "silent"


def test_R5_a_group_without_living_members_is_gone():
    assert group_lives(os.getpgrp())
    process = subprocess.Popen(["true"], process_group=0)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not group_lives(process.pid), "it ended, and is not reaped"
    process.wait()
    assert not group_lives(process.pid)
