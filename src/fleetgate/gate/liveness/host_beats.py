"""Beats of the hosts that share a store, and the hosts that were silent for too long.

Processes of this host are judged by their identity, and beats do not count (gate/liveness/process_identity.py). A
process that cannot be seen from here is judged by the beat of its site, which is a host's boot and pid namespace: after
45 s of silence, counted while the store answered (log/host_beats.py), what its processes hold is reclaimed.

On PostgreSQL every site beats. On SQLite a site does as soon as it sees that another shares the store (a container, as
a rule); on a machine with one site there are no beats.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from fleetgate.core import commands as cmd
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.dead_holders import lost
from fleetgate.gate.liveness.turns import Turns
from fleetgate.log.host_beats import BEAT_S, GAP_MS
from fleetgate.log.protocol import Log

LOST_MS = int(BEAT_S * 4500)
CUT_OFF_MS = int(BEAT_S * 3000)  # 30 s: an agent that is stopped then is gone before another host declares it lost


class HostBeats:
    """The beats of this site, and what is known about those of other sites."""

    def __init__(self, log: Log, folder: str = "") -> None:
        self.site = process_identity.this_site()
        self._log = log  # of a program with a loop, from the first `look_up` on: the one of the thread that looks
        self._always = log.is_shared
        mark = process_identity.site_mark(self.site)
        self._turns = Turns(f"{folder}/beaten.{mark}" if folder else "", BEAT_S * 0.9)
        self._next = 0.0
        self._heard_at = monotonic()  # when the store last heard of this site, as far as is known here
        self._hear_at = 0.0
        self._silent: frozenset[str] | None = None  # as a thread has found it, for a loop that must not wait

    def beat_if_due(self, state: State) -> None:
        """Beat, if it is time and another site shares the store."""
        if self.is_due(state):
            self.beat()

    def is_due(self, state: State) -> bool:
        """Whether it is time to beat, and another site shares the store."""
        return self._is_time() and (self._always or self.has_others(state)) and self._turns.take()

    def _is_time(self) -> bool:
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + BEAT_S / 2
        return True

    def beat(self) -> None:
        try:
            self._log.beat(self.site, GAP_MS)
        except FleetgateError:
            self._turns.give_back()
            raise

    def leave_to_thread(self) -> None:
        """From now on a thread calls `look_up`; until it has done so, no host counts as silent."""
        self._silent = frozenset()

    def look_up(self, log: Log, state: State | None) -> None:
        """Beat, and read the beats of other sites. Called by a thread with its own connection.

        So a loop that must not wait knows which hosts are silent until the next look. `state` may change meanwhile.
        """
        self._log = log
        self._silent = frozenset()  # what was found before does not outlast a store that is away
        if self._is_time() and self._turns.take():
            self.beat()
        if state is not None:
            self._silent = self.silent(state)
        self.hear()

    def hear(self) -> None:
        """Look up, now and then, when the store last heard from any process of this site."""
        if monotonic() >= self._hear_at:
            silence_ms = self._log.beats(GAP_MS).get(self.site)
            self._hear_at = monotonic() + BEAT_S / 4
            if silence_ms is not None:
                self._heard_at = monotonic() - silence_ms / 1000

    def silent_ms(self) -> int:
        """How long this site has been silent for the store."""
        return int((monotonic() - self._heard_at) * 1000)

    def lost(self, state: State) -> cmd.Lost | None:
        """The command about holders that are gone, if there are any."""
        silent = self.silent(state) if self._silent is None else self._silent
        found = lost(state, lambda process: self.is_gone(process, silent))
        if found is not None and silent:
            found.silent = tuple(process for process in found.processes if process_identity.site_of(process) in silent)
        return found

    def silent(self, state: State) -> frozenset[str]:
        """The sites of holders that were silent for too long. A site without any beat yet gets its time."""
        others = self._others(state)
        if not others:
            return frozenset()
        known = self._log.beats(GAP_MS)
        for site in others - known.keys():
            self._log.beat(site, GAP_MS)
        return frozenset(site for site in others if known.get(site, 0) >= LOST_MS)

    def is_gone(self, process: str, silent: frozenset[str]) -> bool:
        """Whether a process is certainly gone, or its site has been silent for too long."""
        site = process_identity.site_of(process)
        if not site:
            return False
        if site in silent:
            return True
        if self._always and site != self.site:
            return False  # two machines may have one name
        return process_identity.is_gone(process) is True

    def has_others(self, state: State) -> bool:
        """Whether another site shares the store, or did in the last days."""
        return any(site and site != self.site for site in _sites(state)) or bool(self._log.beats(GAP_MS))

    def _others(self, state: State) -> frozenset[str]:
        """The sites that can be judged only by their beats."""
        others = {site for site in _sites(state) if site and site != self.site}
        if self._always:
            return frozenset(others)
        # Of an earlier boot of this machine: gone, which is known without a beat.
        return frozenset(site for site in others if process_identity.is_gone(f"{site}|1|") is not True)


def still_lost(log: Log, told: cmd.Lost) -> cmd.Lost:
    """The part of it that is still true, under the lock: a silent host may have sent a beat since."""
    known = log.beats(GAP_MS)
    back = {process for process in told.silent if known.get(process_identity.site_of(process), 0) < LOST_MS}
    if not back:
        return told
    return cmd.Lost(
        tuple(process for process in told.processes if process not in back),
        tuple(process for process in told.silent if process not in back),
    )


def _sites(state: State) -> Iterable[str]:
    """The sites with tickets or leases now. A copy, because another thread may be deciding."""
    for lease in list(state.leases.values()):
        yield process_identity.site_of(lease.ticket.holder)
        yield process_identity.site_of(lease.lives_with)
    for process in list(state.ticket_index.processes):
        yield process_identity.site_of(process)
    for pool in list(state.gates):
        yield process_identity.site_of(pool.usage_gate.asked_by)
