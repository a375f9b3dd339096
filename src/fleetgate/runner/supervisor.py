"""Supervision of a child until it ends: signals, stops, deadlines, its output.

Without a terminal the child has a process group of its own, and gets every signal that the wrapper gets. With
one, it shares the wrapper's group, as the members of a pipeline do: the terminal itself signals both, and only
signals to the wrapper alone are passed on (rule R2).

Rules:
- The wrapper never dies of a signal that it can pass on, as long as the child lives.
- The wrapper stops only when the child does: the user's shell watches the wrapper, and should see what it would see
  without it. So a child that ignores Ctrl-Z is not left alone in the background, and one that
  stops itself gives the user the prompt back.
- The child is looked at when the kernel reports that something happened to it; nothing is polled. A pid is
  signalled only before it is reaped.
- Deadlines are on the boot clock: a laptop that slept is on time when it wakes.
- A child that we end is ended with its whole group, and is gone when the group is: no process that ignores TERM keeps
  working without a slot (rule R5). In a group that it shares with us, that is the child and its descendants.

We do not wait for orphans of a child that ends on its own.
"""

from __future__ import annotations

import os
import time

from fleetgate.core.errors import InternalError
from fleetgate.gate.liveness.process_group import KILL_AFTER_S, AgentProcesses
from fleetgate.runner.signal_listener import OUT_OF_TURN, Signal, let_go, listen
from fleetgate.runner.terminal_foreground import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    import signal
    from collections.abc import Callable

    from fleetgate.runner.child import Child
    from fleetgate.runner.early_stop import EarlyStop
    from fleetgate.runner.output_tap import Taps
else:
    import _signal as signal

STOPPED = "stopped"  # the reason of an end that a user requested (rule L6)
_GONE_WITHIN_S = 5  # how long we wait for the killed: one that hangs in the kernel does not die at all
_PATIENCE_S = 2  # with a reader that takes nothing, for the output of a child that a signal ended
_LOOK_FOR_GROUP_MS = (10, 200)  # nothing reports when a group of other processes is gone: look soon, then less often
# Counts while the machine sleeps: on Linux the boot clock, on macOS the raw monotonic one.
_CLOCK = int(getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)))
# The clock that poll() waits by stands still while the machine sleeps: look at the boot clock this often.
_LOOK_AGAIN_MS = 30_000
_NEVER = float("inf")

# Of those that we listen to, what a terminal sends to its whole foreground group.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)


_INTERRUPTS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class ProcessEnd:
    """How a child ended: with an exit code, or by a signal.

    `ended_because` says why we ended it: "" (we did not), "overstayed", "rate_limited", "no_record", "silent",
    "cut_off", "budget" or "stopped". `interrupted` is the signal by which another process ended it, 0 if none did.
    `not_passed` is why its output could not be passed on to the end, `not_read` what made reading it on the way fail.
    """

    __slots__ = ("ended_because", "exit_code", "interrupted", "not_passed", "not_read", "signal")

    def __init__(
        self, exit_code: int | None, signal: int | None, overstayed: bool = False, ended_because: str = ""
    ) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.ended_because = "overstayed" if overstayed else ended_because
        self.interrupted = 0
        self.not_passed: OSError | None = None
        self.not_read: Exception | None = None

    @property
    def overstayed(self) -> bool:
        """Whether it had to be ended for staying too long."""
        return self.ended_because == "overstayed"

    @property
    def code(self) -> int:
        """As a shell reports it: the child's code, or 128 + the signal (rule R3)."""
        return 128 + (self.signal or 0) if self.exit_code is None else self.exit_code

    def __repr__(self) -> str:
        how = f"signal {self.signal}" if self.exit_code is None else f"exit {self.exit_code}"
        return f"<End {how}{self.ended_because and ', '}{self.ended_because}>"


def supervise(
    child: Child,
    *,
    ends_in_s: float | None = None,
    every_s: float | None = None,
    on_tick: Callable[[], str | None] | None = None,
    fd: int | None = None,
    on_readable: Callable[[], str | None] | None = None,
    on_bytes: Callable[[int, bytes], None] | None = None,
    ends: EarlyStop | None = None,
    on_ending: Callable[[str], None] | None = None,
    on_lingering: Callable[[], None] | None = None,
    on_end: Callable[[ProcessEnd], None] | None = None,
) -> ProcessEnd:
    """Supervise a started child until it ends. Returns how it ended.

    `ends_in_s` is the longest it may stay: then TERM, and KILL 10 s later (rule L5). `ends` may want that earlier
    (rule R5), if stdout is read. `on_tick` is called every `every_s`, and if it names a reason the child is ended for
    it; `on_readable` while `fd` has something to read, and the same holds for it. An exception of theirs ends the
    supervision, not the child.
    Signals are passed on between such calls, so they should be short.

    Of a child that was prepared with taps, `on_bytes` is shown the output. `on_ending` is called with the reason just
    before a child is told to end, `on_lingering` again and again while that child is dead and others of its group are
    not. `on_end` is called when the child is gone and all its output was shown, and before a slow reader has taken the
    last of it, which may be long after; from there on signals are the wrapper's own again.
    """
    if child.mask is None:
        raise InternalError(f"{child!r} cannot be supervised: it is not running")
    mask, child.mask = child.mask, None
    try:
        watch = _Supervision(child)
        try:
            watch.tap(on_bytes)
            watch.end_when(ends_in_s, ends, on_ending, on_lingering)
            if every_s is not None and on_tick is not None:
                watch.tick_every(every_s * 1000, on_tick)
            if fd is not None and on_readable is not None:
                watch.read_from(fd, on_readable)
            end = watch.until_it_ends()
        finally:
            watch.close()
    finally:
        let_go(mask)
    try:
        if on_end is not None:
            on_end(end)
    finally:
        if watch.taps is not None:
            _finish(watch.taps, end)
    return end


def _finish(taps: Taps, end: ProcessEnd) -> None:
    """Wait for the reader, as the child would have had to; not for long if the child did not wait either."""
    try:
        taps.finish(_PATIENCE_S if end.signal or end.ended_because else None)
    finally:
        taps.close()
        end.not_passed = taps.not_passed


class _Supervision:
    """One child, its known state, and its deadlines."""

    def __init__(self, child: Child) -> None:
        import select  # here, as the child runs already

        self._ends_at = _NEVER  # in _now_ms, as all of these
        self._kill_at = _NEVER
        self._gone_by = _NEVER
        self._look_for_group_ms = _LOOK_FOR_GROUP_MS[0]
        self._tick_at = _NEVER
        self._tick_ms = 0.0
        self._on_tick: Callable[[], str | None] | None = None
        self._fd = -1
        self._on_readable: Callable[[], str | None] | None = None
        self._child = child
        self.taps: Taps | None = None
        self._ends: EarlyStop | None = None
        self._on_ending: Callable[[str], None] | None = None
        self._on_lingering: Callable[[], None] | None = None
        self._because = ""
        self._processes: AgentProcesses | None = None  # of a child that we end
        self._interrupted = 0
        self._end: ProcessEnd | None = None
        self._stopped_by = 0
        self._stopped_at = 0.0  # in _awake_ms
        self._followed = False
        self._group = os.getpgrp()
        self._opened_terminal: Terminal | None = None
        self._handed_to = 0  # the group that we have put in the foreground instead of ours
        self._hand_again = False
        self._heard = listen(senders=not child.own_group)
        self._poll: select.poll = select.poll()
        self._poll.register(self._heard.fd, select.POLLIN)
        self._pollin = select.POLLIN

    def tap(self, on_bytes: Callable[[int, bytes], None] | None) -> None:
        """Read the child's output on the way, if it is to be."""
        if not self._child.taps:
            return
        from fleetgate.runner.output_tap import OutputTap, Taps

        given, self._child.taps = self._child.taps, []
        self.taps = Taps((OutputTap(stream, fd, on_bytes) for stream, fd in given), self._poll)

    def end_when(
        self,
        ends_in_s: float | None,
        ends: EarlyStop | None,
        on_ending: Callable[[str], None] | None,
        on_lingering: Callable[[], None] | None,
    ) -> None:
        self._on_ending, self._on_lingering = on_ending, on_lingering
        if ends_in_s is not None:
            self._ends_at = _now_ms() + ends_in_s * 1000
        if ends is not None and self.taps is not None and any(tap.stream == 1 for tap in self.taps.taps):
            self._ends = ends
            ends.begin(_awake_ms(), self._child.pid if self._child.own_group else 0)

    def tick_every(self, tick_ms: float, on_tick: Callable[[], str | None]) -> None:
        self._tick_at, self._tick_ms, self._on_tick = _now_ms() + tick_ms, tick_ms, on_tick

    def read_from(self, fd: int, on_readable: Callable[[], str | None]) -> None:
        self._fd, self._on_readable = fd, on_readable
        self._poll.register(fd, self._pollin)

    def until_it_ends(self) -> ProcessEnd:
        while True:
            self._look()
            if self._end is not None:
                if not self._group_lingers():
                    self._take_terminal_back()
                    return self._complete(self._end)
                if self._on_lingering is not None:
                    self._on_lingering()
            elif self._stopped_by and not self._followed:
                self._followed = True
                self._follow_stop(self._stopped_by)
                continue  # and look again: much may have happened meanwhile
            self._wait()

    def _wait(self) -> None:
        """Until a signal tells that something happened, or time does; meanwhile files are served."""
        told = False
        while True:
            ready = self._poll.poll(self._timeout_ms())
            for fd, event in ready:
                if fd == self._heard.fd:
                    told = True
                elif fd == self._fd:
                    self._read(event)
                elif self.taps is not None:
                    self._serve(self.taps, fd, event)
            if told:
                self._hear()
            self._keep_time()
            if told or not ready or self._end is not None:
                return

    def close(self) -> None:
        self._heard.close()
        if self.taps is not None and self._end is None:
            self.taps.close()
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
                self._stopped_at = self._stopped_at if self._stopped_by else _awake_ms()
                self._stopped_by, self._followed = os.WSTOPSIG(status), False
            elif os.WIFCONTINUED(status):
                if self._stopped_by and self._ends is not None:
                    self._ends.stood_still(_awake_ms() - self._stopped_at)
                self._stopped_by = 0
            elif os.WIFSIGNALED(status):
                self._end = ProcessEnd(None, os.WTERMSIG(status), ended_because=self._because)
            else:
                self._end = ProcessEnd(os.WEXITSTATUS(status), None, ended_because=self._because)

    def _group_lingers(self) -> bool:
        """Whether the child that we ended is dead, and some of its group are not."""
        return self._processes is not None and _now_ms() < self._gone_by and self._processes.live()

    def _complete(self, end: ProcessEnd) -> ProcessEnd:
        """The end, when everything that the child wrote was shown."""
        end.interrupted = self._interrupted
        if self.taps is not None:
            self.taps.take_the_rest()
            end.not_read = self.taps.not_read
        return end

    def _follow_stop(self, by: int) -> None:
        if by == signal.SIGSTOP and self._child.own_group:
            return  # another process froze the agent; no shell needs to know
        group = os.getpgid(self._child.pid)
        foreground = self._terminal().foreground()
        elsewhere = group != self._group
        if elsewhere and by in OUT_OF_TURN and foreground == self._group:
            # It is in a group of its own and wants the terminal, which is ours to hand over.
            self._hand_to(group)
            _send(os.killpg, group, signal.SIGCONT)
            return
        self._hand_again = elsewhere and (by in OUT_OF_TURN or foreground == group)
        self._stop_too(by if by in OUT_OF_TURN else signal.SIGTSTP)

    def _stop_too(self, by: int) -> None:
        """Stop as the child did, and return when continued.

        Not by SIGSTOP: a job-control signal has no effect in a group that no shell watches (an orphaned one),
        where no process would continue us.
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
            return  # our whole group was continued; a stop not followed yet is newer than that
        group = os.getpgid(self._child.pid)
        if self._hand_again and self._terminal().foreground() == self._group:
            self._hand_to(group)
        self._hand_again = False
        if group == self._group:
            _send(os.kill, self._child.pid, signal.SIGCONT)
        else:
            _send(os.killpg, group, signal.SIGCONT)

    # --- signals

    def _hear(self) -> None:
        for one in self._heard.read():
            self._pass_on(one)

    def _pass_on(self, one: Signal) -> None:
        if one.number == signal.SIGCHLD:
            return  # the child is looked at after every wait
        if one.number in _INTERRUPTS and self._end is None and not self._because:
            by_family = one.sender and _descends(one.sender, self._child.pid)
            self._interrupted = self._interrupted if by_family else one.number
        if self._end is not None:
            self._signal_child(one.number)
        elif one.number == signal.SIGCONT:
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
        # Once reaped, its pid may belong to another process; not so while it is the number of a group.
        if self._processes is not None:
            if self._end is None or self._group_lingers():
                self._processes.signal(number)
        elif self._end is None:
            _send(os.killpg if self._child.own_group else os.kill, self._child.pid, number)

    # --- the terminal

    def _terminal(self) -> Terminal:
        if self._opened_terminal is None:
            self._opened_terminal = Terminal()
        return self._opened_terminal

    def _hand_to(self, group: int) -> None:
        self._handed_to = group
        self._terminal().hand_to(group)

    def _take_terminal_back(self) -> None:
        """Take the terminal back from an interactive shell that was killed and could not return it."""
        if self._child.own_group and not self._handed_to:
            return
        foreground = self._terminal().foreground()
        if foreground and foreground in (self._child.pid, self._handed_to):
            self._terminal().hand_to(self._group)

    # --- time and files

    def _timeout_ms(self) -> float | None:
        if self._end is not None:
            self._look_for_group_ms = min(self._look_for_group_ms * 2, _LOOK_FOR_GROUP_MS[1])
            return self._look_for_group_ms
        due = min(self._ends_at, self._kill_at, self._tick_at)
        left = due - _now_ms() if due < _NEVER else _NEVER
        if self._ends is not None and not self._stopped_by:
            left = min(left, self._ends.next_deadline() - _awake_ms())
        return None if left == _NEVER else min(max(left, 0) + 1, _LOOK_AGAIN_MS)

    def _keep_time(self) -> None:
        now = _now_ms() if min(self._ends_at, self._kill_at, self._tick_at) < _NEVER else 0
        if now >= self._ends_at:
            self._tell_to_end("overstayed")
        elif now >= self._kill_at:
            self._kill_at, self._gone_by = _NEVER, now + _GONE_WITHIN_S * 1000
            self._signal_child(signal.SIGKILL)
        elif self._ends is not None and not self._stopped_by:
            self._ask(self._ends, _awake_ms())
        if now >= self._tick_at and self._on_tick is not None:
            self._tick_at = now + self._tick_ms
            self._end_for(self._on_tick())

    def _end_for(self, why: str | None) -> None:
        """A callback may name a reason to end the child."""
        if why and not self._because:
            self._tell_to_end(why)

    def _ask(self, ends: EarlyStop, now: float) -> None:
        """Whether it is to be ended early."""
        if self.taps is not None and self.taps.hold:
            ends.held_up(now)
        if now >= ends.next_deadline() and (why := ends.verdict(now)):
            self._tell_to_end(why)

    def _tell_to_end(self, why: str) -> None:
        self._ends_at, self._ends = _NEVER, None
        self._look()
        if self._end is not None:
            return  # it was quicker
        self._because, self._processes = why, AgentProcesses(self._child.pid)
        self._kill_at = _now_ms() + KILL_AFTER_S * 1000
        if self._on_ending is not None:
            self._on_ending(why)
        self._signal_child(signal.SIGTERM)
        self._signal_child(signal.SIGCONT)  # one that is stopped could not obey

    def _serve(self, taps: Taps, fd: int, event: int) -> None:
        wrote = taps.serve(fd, event)
        if self._ends is None:
            return
        if wrote:
            self._ends.wrote(_awake_ms())
        if taps.not_passed is not None:
            self._ends = None  # what the child says can be heard no more
        elif taps.not_read is not None:
            self._ends.records_unread()

    def _read(self, event: int) -> None:
        if self._on_readable is not None:
            self._end_for(self._on_readable())
        if not event & self._pollin:  # an error or the far end closed: it would be reported for ever
            self._poll.unregister(self._fd)


def _now_ms() -> float:
    return time.clock_gettime_ns(_CLOCK) / 1e6


def _awake_ms() -> float:
    """Stands still while the machine sleeps: that is no silence of the agent."""
    return time.monotonic() * 1000


def _send(how: Callable[[int, int], None], to: int, number: int) -> None:
    try:
        how(to, number)
    except OSError:
        pass  # it is gone, or became another user's (sudo)


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
