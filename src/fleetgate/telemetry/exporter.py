"""The thread that exports: it reads what ended from the log, takes the calls of the proxy, and hands both to the SDK.

It has a gate of its own, only reads, and waits for no lock of the store. One process at a time exports the runs of a
state folder (`otel.lock`); every service exports its own calls. What does not fit into the queue is dropped.
"""

from __future__ import annotations

import fcntl
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fleetgate.core import events as ev
from fleetgate.core.views.pool_and_lease_views import PoolView, lasting_pool_views
from fleetgate.gate.outage_log import Trouble
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.store_files import make_file
from fleetgate.present.log_time import offset_ms
from fleetgate.telemetry.records import ProxiedCall, RunningAgents, RunRecord, run_record

MOST_CALLS = 10_000  # that wait for the thread
_EVERY_S = 0.5
_BEGIN_S = 2.0  # how long the first look at the log may hold up the start of the service


class Sink(Protocol):
    """Where runs and calls go: `otlp.Otlp`."""

    def add_run(self, run: RunRecord) -> None: ...
    def add_call(self, call: ProxiedCall) -> None: ...
    def observe_pools(self, pools: list[PoolView]) -> None: ...
    def close(self) -> None: ...


class Exporter:
    """Exports until it is closed."""

    def __init__(self, open_gate: Callable[[], DirectGate], sink: Sink, say: Callable[[str], None]) -> None:
        self._open_gate = open_gate
        self._sink = sink
        self._trouble = Trouble(say)
        self._calls: deque[ProxiedCall] = deque(maxlen=MOST_CALLS)
        self._agents = RunningAgents()
        self._gate: DirectGate | None = None
        self._seq = -1
        self._lock = -1
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin. What ends after this is exported, unless the store does not answer now."""
        self._thread.start()
        self._begun.wait(_BEGIN_S)

    def note_call(self, call: ProxiedCall) -> None:
        """A call has ended. Only appends."""
        self._calls.append(call)

    def close(self) -> None:
        """Send what is left, within a few seconds."""
        self._stop.set()
        self._thread.join(_EVERY_S + 2)
        self._sink.close()

    def _run(self) -> None:
        last = False
        while True:
            try:
                while self._calls:
                    self._sink.add_call(self._calls.popleft())
                self._read_log()
                self._trouble.worked()
            except Exception as error:  # whatever it is, the service goes on, and so does this thread
                self._trouble.failed(error)
                self._close_gate()
            self._begun.set()
            if last:
                break
            last = self._stop.wait(_EVERY_S)
        self._close_gate()

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    def _read_log(self) -> None:
        gate = self._gate = self._gate or self._open_gate()
        state = gate.replica.catch_up()
        self._sink.observe_pools(lasting_pool_views(state, gate.now(), gate.host))
        if self._seq < 0 or self._seq > state.seq:  # it begins now, or with another log
            self._seq = state.seq
            for lease in state.leases.values():
                self._agents.hear_ticket(lease.ticket)
                self._agents.hear_child(lease.id, lease.child)
            for ticket in state.tickets.values():
                self._agents.hear_ticket(ticket)
        if self._seq == state.seq:
            return
        exports = self._takes_lock(gate)
        to_wall = offset_ms(gate)
        for seq, at, event in gate.log.history(self._seq):
            self._seq = seq
            if isinstance(event, ev.Queued | ev.Granted):
                self._agents.hear_ticket(event.ticket)
            elif isinstance(event, ev.Claimed):
                self._agents.hear_child(event.id, event.child)
            elif isinstance(event, ev.Released | ev.Reclaimed) and event.kind == "agents":
                program, host = self._agents.take(event.id)
                if exports and (host == gate.host or not gate.log.is_shared):  # other hosts have services of their own
                    self._sink.add_run(run_record(event, at + to_wall, program))

    def _takes_lock(self, gate: DirectGate) -> bool:
        if self._lock < 0:
            self._lock = make_file(f"{gate.folder}/otel.lock", exclusive=False)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def tell_results(endpoint: str, say: Callable[[str], None]) -> Callable[[bool], None]:
    """What hears of every export: it says once that the endpoint fails, and once that it works again."""
    fails = [False]

    def hear(worked: bool) -> None:
        if worked == fails[0]:
            fails[0] = not worked
            say(
                f"telemetry is sent to {endpoint} again"
                if worked
                else f"telemetry cannot be sent to {endpoint} (still trying; nothing else is affected)"
            )

    return hear
