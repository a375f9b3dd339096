"""The parts of the runner that need no process: words for ends and refusals, where a program is looked for."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.runner import signal_listener
from fleetgate.runner.child import CannotRun, Command
from fleetgate.runner.supervisor import ProcessEnd, _descends
from fleetgate.runner.terminal_foreground import Terminal, has_terminal


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ProcessEnd(0, None), 0),
        (ProcessEnd(75, None), 75),
        (ProcessEnd(255, None), 255),
        (ProcessEnd(None, signal.SIGTERM), 143),
        (ProcessEnd(None, signal.SIGKILL, overstayed=True), 137),
    ],
)
def test_R3_the_code_of_an_end_is_the_childs_or_128_plus_its_signal(end, code):
    assert end.code == code


def test_an_end_reads_as_what_happened():
    assert repr(ProcessEnd(3, None)) == "<End exit 3>"
    assert repr(ProcessEnd(None, 15, overstayed=True)) == "<End signal 15, overstayed>"


def test_R1_a_command_becomes_the_bytes_it_was_given_as():
    command = Command(["a b", "", "\udcff", "é"], {"K": "\udcfe", "": "x"})
    assert command.argv == [b"a b", b"", b"\xff", "é".encode()]
    assert command.env == {b"K": b"\xfe", b"": b"x"}


@pytest.mark.parametrize(
    ("name", "env", "paths"),
    [
        ("tool", {"PATH": "/a:/b"}, [b"/a/tool", b"/b/tool"]),
        ("tool", {"PATH": "/a::b"}, [b"/a/tool", b"tool", b"b/tool"]),
        ("tool", {"PATH": ""}, [b"tool"]),
        ("tool", {}, [os.fsencode(folder) + b"/tool" for folder in os.defpath.split(":")]),
        ("./tool", {"PATH": "/a"}, [b"./tool"]),
        ("/x/tool", {"PATH": "/a"}, [b"/x/tool"]),
        ("", {"PATH": "/a"}, [b""]),
    ],
)
def test_R3_a_program_is_looked_for_in_the_childs_own_path(name, env, paths):
    assert Command([name], env).paths == paths


@pytest.mark.parametrize(
    ("argv", "env"), [(["a\0b"], {}), (["a", "\0"], {}), (["a"], {"K": "\0"}), (["a"], {"\0": ""}), (["\ud800"], {})]
)
def test_Q1_what_no_program_can_be_given_is_refused_with_a_sentence(argv, env):
    with pytest.raises(CannotRun, match="cannot run") as caught:
        Command(argv, env)
    assert caught.value.exit_code == 126
    assert isinstance(caught.value, FleetgateError)


def test_Q1_no_command_is_a_bad_request():
    with pytest.raises(BadRequest, match="after --"):
        Command([], {})


def test_R3_other_errors_are_told_in_the_systems_words(tmp_path):
    refusal = Command([str(tmp_path / "x")], {}).refusal(errno.ELOOP, 0)
    assert (refusal.exit_code, str(refusal)) == (126, f"cannot run {str(tmp_path / 'x')!r}: {os.strerror(errno.ELOOP)}")


def test_R2_who_descends_from_whom():
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc here")
    assert _descends(os.getpid(), os.getpid())
    assert _descends(os.getpid(), os.getppid())
    assert not _descends(os.getppid(), os.getpid())
    assert not _descends(0, os.getpid())
    assert not _descends(2**30, os.getpid())


def test_R2_a_file_is_no_terminal_and_a_pseudo_terminal_is_one(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    assert not has_terminal()
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2)
    assert has_terminal()


def test_R2_without_a_terminal_nobody_is_in_the_foreground(monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENXIO, "no terminal")

    monkeypatch.setattr(os, "tcgetpgrp", refuse)
    monkeypatch.setattr(os, "open", refuse)
    terminal = Terminal()
    assert terminal.foreground() == 0
    terminal.hand_to(os.getpgrp())
    terminal.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who sent a signal")
def test_R2_a_signal_is_heard_with_its_sender_and_then_gone():
    mask = signal_listener.hold()
    listener = signal_listener.listen(senders=True)
    try:
        assert isinstance(listener, signal_listener.WithSenders)
        assert listener.read() == []
        os.kill(os.getpid(), signal.SIGUSR1)
        (one,) = listener.read()
        assert (one.number, one.by_kernel, one.sender) == (signal.SIGUSR1, False, os.getpid())
        os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        listener.close()
        signal_listener.let_go(mask)
    assert signal.sigpending() == set()


def test_R2_where_senders_are_unknown_a_signal_is_heard_by_its_number(monkeypatch):
    def refuse():
        raise OSError(errno.ENOSYS, "no signalfd")

    monkeypatch.setattr(signal_listener, "WithSenders", refuse)
    mask = signal_listener.hold()
    os.kill(os.getpid(), signal.SIGTERM)  # one that came while signals were held back is not lost
    listener = signal_listener.listen(senders=True)
    try:
        assert isinstance(listener, signal_listener.Numbers)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [(one.number, one.by_kernel) for one in listener.read()] == [
            (signal.SIGTERM, None),
            (signal.SIGUSR1, None),
        ]
        assert listener.read() == []
    finally:
        listener.close()
        signal_listener.let_go(mask)


def test_the_runner_imports_next_to_nothing():
    body = """
import sys, fleetgate.core.errors
before = set(sys.modules)
import fleetgate.runner.child, fleetgate.runner.supervisor, fleetgate.runner.terminal_foreground
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("fleetgate")))
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {"errno", "gc", "time"}
