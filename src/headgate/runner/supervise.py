"""Stays with a child until it ends.

Without a terminal the child has a process group of its own, and gets every signal that the wrapper gets. With
one, it shares the wrapper's group, as the members of a pipeline do: the terminal itself tells both, and only
what was sent to the wrapper alone is passed on (SPEC R2).

Rules:
- The wrapper never dies of a signal that it can pass on, as long as the child lives.
- The wrapper never stops by itself, it follows the child: the user's shell watches the wrapper, and should see
  what it would see without it. So a child that ignores Ctrl-Z is not left alone in the background, and one that
  stops itself gives the user the prompt back.
- The child is looked at when the system says that something happened to it; nothing is polled. A pid is
  signalled only before it is reaped.
- Deadlines are on the boot clock: a laptop that slept is on time when it wakes.

Orphans that the child leaves behind are not waited for.
"""

from __future__ import annotations

import os
import time

from headgate.core.errors import InternalError
from headgate.runner.heard import OUT_OF_TURN, Signal, let_go, listen
from headgate.runner.terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    import signal
    from collections.abc import Callable

    from headgate.runner.child import Child
else:
    import _signal as signal

KILL_AFTER_S = 10  # how long a child that was told to end may take
# Counts while the machine sleeps: on Linux the boot clock, on macOS the raw monotonic one.
_CLOCK = int(getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)))
# The clock that poll() waits by stands still while the machine sleeps: look at the boot clock this often.
_LOOK_AGAIN_MS = 30_000
_NEVER = float("inf")

# Of those that we listen to, what a terminal sends to its whole foreground group.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)


class End:
    """How a child ended: with an exit code, or by a signal; and whether it had to be ended for staying too long."""

    __slots__ = ("exit_code", "overstayed", "signal")

    def __init__(self, exit_code: int | None, signal: int | None, overstayed: bool = False) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.overstayed = overstayed

    @property
    def code(self) -> int:
        """What a shell would say: the child's code, or 128 + the signal (SPEC R3)."""
        return 128 + (self.signal or 0) if self.exit_code is None else self.exit_code

    def __repr__(self) -> str:
        how = f"signal {self.signal}" if self.exit_code is None else f"exit {self.exit_code}"
        return f"<End {how}{', overstayed' if self.overstayed else ''}>"


def supervise(
    child: Child,
    *,
    ends_in_s: float | None = None,
    every_s: float | None = None,
    on_tick: Callable[[], None] | None = None,
    fd: int | None = None,
    on_readable: Callable[[], None] | None = None,
) -> End:
    """Stay with a started child until it ends, and say how it ended.

    `ends_in_s` is the longest it may stay: then TERM, and KILL 10 s later (SPEC L5). `on_tick` is called every
    `every_s`, `on_readable` while `fd` has something to read. An exception of theirs ends the watching, not the
    child. Signals are passed on between such calls, so they should be short.
    """
    if child.mask is None:
        raise InternalError(f"{child!r} cannot be supervised: it is not running")
    mask, child.mask = child.mask, None
    try:
        watch = _Watch(child)
        try:
            if ends_in_s is not None:
                watch.ends_at = _now_ms() + ends_in_s * 1000
            if every_s is not None and on_tick is not None:
                watch.tick_every(every_s * 1000, on_tick)
            if fd is not None and on_readable is not None:
                watch.read_from(fd, on_readable)
            return watch.until_it_ends()
        finally:
            watch.close()
    finally:
        let_go(mask)


class _Watch:
    """One child, what is known of it, and what is to happen when."""

    def __init__(self, child: Child) -> None:
        import select  # here, as the child runs already

        self.ends_at = _NEVER  # in _now_ms, as all of these
        self._kill_at = _NEVER
        self._tick_at = _NEVER
        self._tick_ms = 0.0
        self._on_tick: Callable[[], None] | None = None
        self._fd = -1
        self._on_readable: Callable[[], None] | None = None
        self._child = child
        self._overstayed = False
        self._end: End | None = None
        self._stopped_by = 0
        self._followed = False
        self._group = os.getpgrp()
        self._opened_terminal: Terminal | None = None
        self._lent_to = 0  # the group that we have put in the foreground instead of ours
        self._lend_again = False
        self._heard = listen(senders=not child.own_group)
        self._poll: select.poll = select.poll()
        self._poll.register(self._heard.fd, select.POLLIN)
        self._pollin = select.POLLIN

    def tick_every(self, tick_ms: float, on_tick: Callable[[], None]) -> None:
        self._tick_at, self._tick_ms, self._on_tick = _now_ms() + tick_ms, tick_ms, on_tick

    def read_from(self, fd: int, on_readable: Callable[[], None]) -> None:
        self._fd, self._on_readable = fd, on_readable
        self._poll.register(fd, self._pollin)

    def until_it_ends(self) -> End:
        while True:
            self._look()
            if self._end is not None:
                self._take_terminal_back()
                return self._end
            if self._stopped_by and not self._followed:
                self._followed = True
                self._follow_stop(self._stopped_by)
                continue  # and look again: much may have happened meanwhile
            for fd, event in self._poll.poll(self._timeout_ms()):
                if fd == self._fd:
                    self._read(event)
            self._hear()
            self._keep_time()

    def close(self) -> None:
        self._heard.close()
        if self._opened_terminal is not None:
            self._opened_terminal.close()

    # --- what happened to the child

    def _look(self) -> None:
        """Take note of all that happened to the child since the last look."""
        while self._end is None:
            pid, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._stopped_by, self._followed = os.WSTOPSIG(status), False
            elif os.WIFCONTINUED(status):
                self._stopped_by = 0
            elif os.WIFSIGNALED(status):
                self._end = End(None, os.WTERMSIG(status), self._overstayed)
            else:
                self._end = End(os.WEXITSTATUS(status), None, self._overstayed)

    def _follow_stop(self, by: int) -> None:
        if by == signal.SIGSTOP and self._child.own_group:
            return  # somebody froze the agent; no shell is to be told
        group = os.getpgid(self._child.pid)
        foreground = self._terminal().foreground()
        elsewhere = group != self._group
        if elsewhere and by in OUT_OF_TURN and foreground == self._group:
            # It is in a group of its own and wants the terminal, which is ours to lend.
            self._lend_to(group)
            _send(os.killpg, group, signal.SIGCONT)
            return
        self._lend_again = elsewhere and (by in OUT_OF_TURN or foreground == group)
        self._stop_too(by if by in OUT_OF_TURN else signal.SIGTSTP)

    def _stop_too(self, by: int) -> None:
        """Stop as the child did, and return when continued.

        Not by SIGSTOP: a job-control signal has no effect in a group that no shell watches (an orphaned one),
        where nobody would continue us.
        """
        # Blocked, the terminal's own signal, if it is on its way, and ours become one and stop us once.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (by,))
        before = signal.signal(by, signal.SIG_DFL)
        self._hear()  # now, as after the stop the terminal may be another's and tell us nothing about these
        self._look()
        if self._stopped_by and self._end is None:
            self._followed = True
            os.kill(os.getpid(), by)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (by,))  # here we stand still
        signal.signal(by, signal.SIG_DFL if before is None else before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _go_on(self) -> None:
        """We were continued: so is the child, with the terminal if it had it."""
        self._look()  # it may have been continued with us
        if self._end is not None:
            return
        if not self._child.own_group and not (self._stopped_by and self._followed):
            return  # whoever continued us continued our whole group; a stop not followed yet is newer than that
        group = os.getpgid(self._child.pid)
        if self._lend_again and self._terminal().foreground() == self._group:
            self._lend_to(group)
        self._lend_again = False
        if group == self._group:
            _send(os.kill, self._child.pid, signal.SIGCONT)
        else:
            _send(os.killpg, group, signal.SIGCONT)

    # --- signals

    def _hear(self) -> None:
        for one in self._heard.read():
            self._pass_on(one)

    def _pass_on(self, one: Signal) -> None:
        if one.number == signal.SIGCHLD or self._end is not None:
            return  # the child is looked at after every wait; once reaped, its pid may be somebody else's
        if one.number == signal.SIGCONT:
            self._go_on()
        elif self._child.own_group:
            self._signal_child(one.number)
        elif not self._from_terminal(one):
            if not (one.sender and _descends(one.sender, self._child.pid)):  # the family signals its whole group
                self._signal_child(one.number)
        elif (group := os.getpgid(self._child.pid)) != self._group:
            _send(os.killpg, group, one.number)  # it left our group: do as the terminal did

    def _from_terminal(self, one: Signal) -> bool:
        """Whether a signal went to our whole group.

        A stranger's signal to the group (`kill %1`) looks like one to us alone, and the child gets it twice:
        better than not at all.
        """
        if one.number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return False  # a terminal that hangs up tells the session's leader alone
        if one.by_kernel is None:
            return one.number in _FROM_TERMINAL and self._terminal().foreground() == self._group
        return one.by_kernel

    def _signal_child(self, number: int) -> None:
        if self._end is None:
            _send(os.killpg if self._child.own_group else os.kill, self._child.pid, number)

    # --- the terminal

    def _terminal(self) -> Terminal:
        if self._opened_terminal is None:
            self._opened_terminal = Terminal()
        return self._opened_terminal

    def _lend_to(self, group: int) -> None:
        self._lent_to = group
        self._terminal().hand_to(group)

    def _take_terminal_back(self) -> None:
        """An interactive shell takes the terminal for itself, and if it was killed nobody is there to give it back."""
        if self._child.own_group and not self._lent_to:
            return
        foreground = self._terminal().foreground()
        if foreground and foreground in (self._child.pid, self._lent_to):
            self._terminal().hand_to(self._group)

    # --- time and files

    def _timeout_ms(self) -> float | None:
        due = min(self.ends_at, self._kill_at, self._tick_at)
        if due == _NEVER:
            return None
        return min(max(due - _now_ms(), 0) + 1, _LOOK_AGAIN_MS)

    def _keep_time(self) -> None:
        now = _now_ms() if min(self.ends_at, self._kill_at, self._tick_at) < _NEVER else 0
        if now >= self.ends_at:
            self.ends_at, self._kill_at = _NEVER, now + KILL_AFTER_S * 1000
            self._overstayed = True
            self._signal_child(signal.SIGTERM)
            self._signal_child(signal.SIGCONT)  # one that is stopped could not obey
        elif now >= self._kill_at:
            self._kill_at = _NEVER
            self._signal_child(signal.SIGKILL)
        if now >= self._tick_at and self._on_tick is not None:
            self._tick_at = now + self._tick_ms
            self._on_tick()

    def _read(self, event: int) -> None:
        if self._on_readable is not None:
            self._on_readable()
        if not event & self._pollin:  # an error or the far end closed: it would be reported for ever
            self._poll.unregister(self._fd)


def _now_ms() -> float:
    return time.clock_gettime_ns(_CLOCK) / 1e6


def _send(how: Callable[[int, int], None], to: int, number: int) -> None:
    try:
        how(to, number)
    except OSError:
        pass  # it is gone, or became another user's (sudo): there is nobody else to tell


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor` or descends from it, as far as /proc shows."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b") ")[2].split()[1])
        except OSError:
            return False
    return False
