"""A worker: the processes that run jobs, and the loop that supervises them.

Each worker process runs one job at a time, so a process that is killed takes only its own job with it. The worker
itself runs nothing: it restarts processes that died, ends agents whose process was killed, handles ends of jobs
without a worker, and deletes old jobs.

Stopping: the first SIGTERM or SIGINT lets running jobs finish; a second one, or `--now`, requeues them. If the worker
itself is killed, its processes finish their jobs and leave.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from time import monotonic, time_ns
from typing import NamedTuple

from fleetgate.config.file import ConfigWatch
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.process_group import signal_group
from fleetgate.gate.outage_log import Trouble
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.wakeup import mailbox
from fleetgate.jobs import actions, unattended_ends
from fleetgate.jobs.worker.worker_process import Wants, WorkerProcess
from fleetgate.log.protocol import LogReplaced, Position, StoreMoved
from fleetgate.log.store_files import only_writer
from fleetgate.runner.signal_pipe import SignalPipe

LOOK_S = 1.0
CLEAN_S = 300.0
UPKEEP_S = 10.0
_TELL_AGAIN_S = 0.2
_ORPHAN_S = 3.0  # from TERM to KILL
_RESTART_S = 1.0
_UNAVAILABLE = 69
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

OpenGate = Callable[[], DirectGate]
Say = Callable[[str], None]


class SideProcess(NamedTuple):
    """Other work in a process of its own, while the worker lives and wants it.

    `run` is the whole life of that process. If it starts with the worker, it gets the log's position at that time.
    """

    run: Callable[[Position | None], None]
    is_wanted: Callable[[], bool]


class Worker:
    """`fleetgate worker`. With `now`, it requeues running jobs when it stops.

    It stops when `ends_with`, a file, ends (-1: no file). `on_count` is called with the number of processes when that
    changes.
    """

    def __init__(
        self,
        open_gate: OpenGate,
        number: int,
        wants: Wants,
        say: Say,
        *,
        now: bool = False,
        beside: SideProcess | None = None,
        ends_with: int = -1,
        on_count: Callable[[int], None] | None = None,
        config: ConfigWatch | None = None,
    ) -> None:
        self._on_count = on_count
        self._reported_count = 0
        self._cannot_start = ""  # why there are fewer processes than there should be
        self._ends_with = ends_with
        self._beside = beside
        self._aside = 0  # the pid of that process
        self._begins: Position | None = None  # where the log was when we started; None once it is not needed
        self._open_gate = open_gate
        self._config = config
        self._number = number
        self._wants = wants
        self._say = say
        self._now = now
        self._processes: set[int] = set()
        self._signals = 0
        self._told_at = 0.0
        self._started_at = 0.0
        self._moved = False  # the gate was, to another store
        self._termed: dict[int, float] = {}  # orphans that got SIGTERM, and when

    def run(self) -> int:
        """Run until a signal stops it and all worker processes have left."""
        self._life = os.pipe()
        pipe = SignalPipe((*_STOP_SIGNALS, signal.SIGCHLD))
        try:
            with closing(self._open_gate()) as gate:
                gate.replica.catch_up()
                self._begins = gate.replica.position
                self._stay(gate, pipe)
        except StoreMoved as moved:
            self._end_with(moved)
        finally:
            if self._aside:
                signal_group(self._aside, signal.SIGTERM)
            pipe.close()
            for fd in self._life:
                if fd >= 0:
                    os.close(fd)
        return _UNAVAILABLE if self._moved else 0

    def _stay(self, gate: DirectGate, pipe: SignalPipe) -> None:
        look_at = clean_at = upkeep_at = 0.0
        trouble = Trouble(self._say)
        while self._processes or not self._signals:
            self._reap()
            if not self._signals:
                self._fill()
                self._report_count()
            else:
                self._tell_to_stop(gate)
            now = monotonic()
            try:
                if now >= look_at:
                    look_at = now + LOOK_S
                    self._follow_config(gate)
                    self._look_after(gate)
                    trouble.worked()
                if now >= upkeep_at:
                    upkeep_at = now + UPKEEP_S
                    gate.maintain()
                if now >= clean_at:
                    clean_at = now + CLEAN_S
                    before_ms = time_ns() // 1_000_000 - gate.settings.jobs.keep_ms
                    actions.clean(gate, before_ms)
                    actions.clean_runs(gate, before_ms)
            except StoreMoved as moved:
                self._end_with(moved)
            except (FleetgateError, LogReplaced, OSError) as error:
                trouble.failed(error)
            if self._processes or not self._signals:
                self._rest(pipe)

    def _end_with(self, moved: StoreMoved) -> None:
        """Stop: the user must start the worker again with the new store."""
        if not self._moved:
            self._moved = True
            self._say(f"{moved}, and start the worker again")
            self._signals += 1

    def _rest(self, pipe: SignalPipe) -> None:
        files = [pipe.fd, self._ends_with] if self._ends_with >= 0 else [pipe.fd]
        ready, _, _ = select.select(files, [], [], _TELL_AGAIN_S if self._signals else LOOK_S)
        self._signals += sum(number != signal.SIGCHLD for number in pipe.read())
        if self._ends_with in ready and not os.read(self._ends_with, 64):
            self._ends_with = -1
            self._signals += 1

    # Worker processes.

    def _fill(self) -> None:
        missing = self._number - len(self._processes)
        beside = self._beside if not self._aside and self._beside is not None and self._beside.is_wanted() else None
        if not missing and beside is None:
            return
        if monotonic() - self._started_at < _RESTART_S:
            return
        self._started_at = monotonic()
        begins, self._begins = self._begins, None
        try:
            if beside is not None:
                self._aside = start_beside(lambda: beside.run(begins), self._say, self._life[1])
            for _ in range(missing):
                self._processes.add(
                    start_worker_process(self._open_gate, self._wants, self._life, self._say, config=self._config)
                )
        except OSError as error:
            why = f"cannot start another process ({error.strerror})"
            if why != self._cannot_start:
                self._say(f"{why}: {len(self._processes)} of {self._number} worker processes are running; still trying")
            self._cannot_start = why
            return
        if self._cannot_start:
            self._cannot_start = ""
            self._say(f"all {self._number} worker processes are running again")

    def _report_count(self) -> None:
        if self._on_count is not None and len(self._processes) != self._reported_count:
            self._reported_count = len(self._processes)
            self._on_count(self._reported_count)

    def _reap(self) -> None:
        while self._processes or self._aside:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._processes.clear()
                self._aside = 0
                return
            if not pid:
                return
            if pid == self._aside:
                self._aside = 0
            elif pid in self._processes:
                self._processes.discard(pid)
                if status and not self._signals:
                    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an error"
                    self._say(f"a worker process was ended by {how}; starting another")

    def _tell_to_stop(self, gate: DirectGate) -> None:
        if monotonic() - self._told_at < _TELL_AGAIN_S:
            return
        if not self._told_at and self._processes:
            finish = "finishing running jobs, then stopping; Ctrl-C or SIGTERM again requeues them"
            self._say("requeueing running jobs, then stopping" if self._now else finish)
            os.close(self._life[1])
            self._life = (self._life[0], -1)
        self._told_at = monotonic()
        message = b"now" if self._now or self._signals > 1 else b"finish"
        for address in mailbox.worker_processes(gate.folder):
            if any(f"-{pid}-" in os.path.basename(address) for pid in self._processes):
                mailbox.send(address, message)

    # Upkeep.

    def _follow_config(self, gate: DirectGate) -> None:
        """Go by a config file that has changed; its caps are in force at once."""
        loaded = self._config.news() if self._config is not None else None
        if loaded is not None:
            gate.use(loaded)
            gate.decide([])
            self._say(f"{loaded.path} has changed: jobs that start from now on go by it")

    def _look_after(self, gate: DirectGate) -> None:
        if gate.turns.take():
            gate.run_checks()
        gate.act_if_overdue()  # all worker processes may be busy
        self._end_orphans(gate)
        unattended_ends.see_to_ends(gate)

    def _end_orphans(self, gate: DirectGate) -> None:
        """End agents whose worker process was killed: their output and their end would be lost."""
        orphans = set()
        shared = bool(gate.folder) and only_writer(gate.folder) is None
        for lease in gate.replica.catch_up().leases.values():
            pid = process_identity.local_pid(lease.child) if lease.ticket.job and lease.child else None
            if (
                pid is None
                or process_identity.is_gone(lease.ticket.holder) is not True
                or process_identity.is_gone(lease.child)
            ):
                continue
            if shared and not process_identity.has_variable(pid, f"FLEETGATE_JOB={lease.id}"):
                continue  # whatever the log contains, only a job's own process is ended
            orphans.add(pid)
            told_at = self._termed.setdefault(pid, monotonic())
            signal_group(pid, signal.SIGKILL if monotonic() - told_at > _ORPHAN_S else signal.SIGTERM)
        self._termed = {pid: at for pid, at in self._termed.items() if pid in orphans}


def start_worker_process(
    open_gate: OpenGate,
    wants: Wants,
    life: tuple[int, int] | None,
    say: Say | None,
    first: Callable[[WorkerProcess], bool] | None = None,
    config: ConfigWatch | None = None,
) -> int:
    """Fork a worker process; its pid. `first` is what it does before it begins, and whether it is to begin at all.

    Without a worker (`life`, `say`) it lives for itself, and keeps no file of its parent's.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 70
    tell = say or _unheard
    try:
        os.setsid()  # so that Ctrl-C at the worker's terminal does not reach its agents
        if life is not None:
            os.close(life[1])
        _reset_signals()
        tell = _own_files(say)
        gate = open_gate()
        gate.replica.catch_up()
        gc.freeze()  # all that is known by now stays: looking through it for garbage would take long, again and again
        process = WorkerProcess(gate, wants, -1 if life is None else life[0], tell, config)
        if first is None or first(process):
            process.work()
        code = 0
    except StoreMoved:
        code = 0  # the worker says so
    except FleetgateError as error:
        tell(str(error))
    except BaseException:
        tell(traceback.format_exc())
    finally:
        os._exit(code)


def start_beside(beside: Callable[[], None], say: Say, life_fd: int) -> int:
    """Fork a process for other work while the worker lives. Returns its pid."""
    worker = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(life_fd)
        os.setsid()
        _reset_signals()
        if os.getppid() == worker:
            beside()
    except FleetgateError as error:
        say(str(error))
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(0)


def _reset_signals() -> None:
    """Signals have their default effect again in a forked process."""
    signal.set_wakeup_fd(-1)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _own_files(say: Say | None) -> Say:
    """Detach the worker's files: agents get none of them, and their output goes to files of its own."""
    errors = -1 if say is None else os.dup(2)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.stdin = sys.stdout = None
    if say is None:
        return _unheard

    def tell(text: str) -> None:
        os.dup2(errors, 2)
        try:
            say(text)
        finally:
            os.dup2(null, 2)

    return tell


def _unheard(text: str) -> None:
    """No output."""
