"""The checks of `fleetgate doctor` on the open gate: writing, clock, holders, counts, caps and sockets."""

from __future__ import annotations

import os
from contextlib import closing
from shlex import quote
from time import monotonic, sleep

from fleetgate.cli.doctor import check_store
from fleetgate.cli.doctor.check_providers import backoffs, providers
from fleetgate.cli.doctor.check_store import Visit
from fleetgate.cli.doctor.finding import ELSEWHERE, Finding, Findings, named
from fleetgate.cli.open_gate import open_gate
from fleetgate.config.file import Loaded
from fleetgate.config.paths import config_path
from fleetgate.core.entities import Rule
from fleetgate.core.errors import FleetgateError
from fleetgate.core.invariants import check_invariants
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import unapplied_caps, unapplied_text
from fleetgate.gate.wakeup import mailbox
from fleetgate.log.clock import boot_id, boot_ms, wall_ms
from fleetgate.present.text import count, span

_SLOW_MS = 1000
_DRIFT_MS = 5000


def books(visit: Visit) -> Findings:
    """All findings for which the gate must be open."""
    if visit.locked and visit.anchor is None:
        yield Finding("warn", "not checked: the first check after a restart of the machine needs the lock")
        return
    with closing(open_gate(visit.loaded, configured=False, alone=True)) as gate:
        gate.replica.catch_up()
        inside = Inside(visit, gate)
        checks = (
            inside.writing,
            inside.clock,
            inside.holders,
            inside.counts,
            inside.census,
            inside.caps,
            inside.sockets,
        )
        yield from visit.look(*checks, inside.providers, inside.backoffs)


class Inside:
    """The checks of one open gate."""

    def __init__(self, visit: Visit, gate: DirectGate) -> None:
        self.visit = visit
        self.gate = gate

    def writing(self) -> Findings:
        """An empty commit, synced to disk."""
        log, replica = self.gate.log, self.gate.replica
        if self.visit.locked or not self._take_lock():
            yield Finding("warn", "not tried: another process holds the store's lock")
            return
        began = monotonic()
        try:
            log.begin(durable=True)
            state = replica.catch_up()
            log.append(replica.position, max(log.now(), state.at), [], replica.due)
        finally:
            log.unlock()
        took_ms = int((monotonic() - began) * 1000)
        if took_ms > _SLOW_MS:
            text = f"a commit took {took_ms}ms to reach the disk: every agent that starts or finishes waits that long"
            yield Finding("warn", text, ELSEWHERE)
        else:
            yield Finding("ok", f"a commit reached the disk in {took_ms}ms")

    def _take_lock(self) -> bool:
        until = monotonic() + check_store.LOCK_PATIENCE_S
        while not self.gate.log.try_lock():
            if monotonic() > until:
                return False
            sleep(0.01)
        return True

    def clock(self) -> Findings:
        anchor = self.visit.anchor
        if self.gate.log.is_shared:
            drift = self.visit.ahead_ms
            way = "ahead of" if drift > 0 else "behind"
            off = f"the server's clock is {span(abs(drift))} {way} this machine's; harmless: times are shown corrected"
            yield Finding("ok", off if abs(drift) > _DRIFT_MS else "the clocks of the server and this machine agree")
            return
        if not boot_id():
            yield Finding("warn", "this system has no boot ID, so the log uses the wall clock: do not set it back")
            return
        if anchor is None:
            yield Finding("ok", "anchored just now: the first command since the machine started")
            return
        now = boot_ms() + anchor
        head = self.gate.log.head()
        ahead = head.at - now if head is not None else 0
        drift = wall_ms() - now
        if ahead > _DRIFT_MS:
            text = (
                f"the log's last entry is {span(ahead)} ahead of this machine: until then the log's time stands still, "
                "and pauses and cooldowns do not end. Was it copied from a machine whose clock is ahead? Restart this "
                "one when its clock is right, or restore a backup"
            )
            yield Finding("bad", text, "date -u")
        elif abs(drift) > _DRIFT_MS:
            way = "forward" if drift > 0 else "back"
            text = f"the wall clock was set {way} by {span(abs(drift))}; harmless: times are shown corrected"
            yield Finding("ok", text)
        else:
            yield Finding("ok", "the log's clock and the wall clock agree")

    def holders(self) -> Findings:
        """Leases and tickets whose process has exited, is stopped, or cannot be seen from here."""
        state = self.gate.state
        leases = {ident: lease.lives_with for ident, lease in state.leases.items()}
        tickets = {ident: ticket.holder for ident, ticket in state.tickets.items()}
        found = [
            *_judged(leases, "lease", "fleetgate release {} --force"),
            *_judged(tickets, "ticket", "fleetgate cancel {}"),
            *_stopped({*leases.values(), *tickets.values()}),
        ]
        yield from found
        if not found:
            text = f"{count(len(leases), 'lease')} and {count(len(tickets), 'ticket')}, all of live processes"
            yield Finding("ok", text if leases or tickets else "nothing is running or waiting")

    def census(self) -> Findings:
        """Agents that were started outside Fleetgate, where the config says how to see them."""
        gate = self.gate
        if not gate.settings.census:
            return
        observed = gate.observer.observe(gate.replica.catch_up, gate.host)
        if gate.observer.trouble:
            yield Finding("warn", gate.observer.trouble, "fleetgate config show")
            return
        foreign = observed.foreign if observed is not None else ()
        listed = ", ".join(
            f"{number} of {model}" if model else f"{number} without a model" for model, number in foreign
        )
        yield Finding("ok", f"agents started outside Fleetgate: {listed or 'none'}")

    def counts(self) -> Findings:
        state = self.gate.state
        try:
            check_invariants(state)
        except FleetgateError as error:
            yield Finding("bad", f"{error}: a bug in Fleetgate, please report it with `fleetgate history --json`")
            return
        yield Finding("ok", f"leases, tickets and {count(len(state.pools), 'pool')} add up")

    def caps(self) -> Findings:
        """Whether the file is in force, and which of its caps are hidden by run-time values (rule C2)."""
        state, loaded = self.gate.state, self.visit.loaded
        if self.gate.log.is_shared:
            text = "a shared gate uses the caps set at run time and with `fleetgate config apply`"
            text += f", last from {state.file_path}" if state.file_path else ""
            missing = list(_not_in_force(self.gate, loaded))
            yield from missing or [Finding("ok", text)]
            return
        if loaded is None:
            if state.rules.file and self.visit.readable:
                path = config_path()
                text = f"the caps of {state.file_path} are still in force, but there is no file at {path}"
                how = f"mkdir -p {quote(os.path.dirname(path))} && touch {quote(path)}"
                yield Finding("warn", f"{text}. An empty file removes them:", how)
            return
        if loaded.digest == state.file_digest:
            hidden = list(_hidden(state, loaded))
            yield from hidden or [Finding("ok", f"{loaded.path} is in force")]
        elif loaded.mtime_ms > state.file_modified:
            yield Finding("ok", f"{loaded.path} is newer than what is in force; the next command applies it")
        else:
            other = "" if state.file_path == loaded.path else f" of {state.file_path}"
            yield Finding("warn", f"{loaded.path} is not in force: a newer version{other} is", "fleetgate config apply")

    def sockets(self) -> Findings:
        try:
            folder = mailbox.runtime_folder(self.visit.home)
        except OSError as error:
            place = str(error.filename or self.visit.home)
            text = f"{place}: {error.strerror}; until that is fixed, waiting agents notice a free slot a second late"
            yield Finding("warn", text, f"rm -r {quote(place)}")
            return
        swept = mailbox.sweep(folder)
        text = f"removed {count(swept, 'wake socket')} that killed processes left behind" if swept else "none left over"
        yield Finding("ok", text)

    def providers(self) -> Findings:
        yield from providers(self.gate)

    def backoffs(self) -> Findings:
        yield from backoffs(self.gate)


def _judged(holders: dict[str, str], what: str, remedy: str) -> Findings:
    """Entries of processes that have exited, and of those that cannot be seen from here."""
    judged = {process: process_identity.is_gone(process) for process in set(holders.values())}
    gone = [ident for ident, process in holders.items() if judged[process]]
    unseen = [ident for ident, process in holders.items() if judged[process] is None]
    if gone:
        text = f"{named(gone, what)} of processes that have exited: the next request removes them automatically"
        yield Finding("warn", text, remedy.format(gone[0]))
    if unseen:
        hosts = ", ".join(sorted({process_identity.host_of(holders[ident]) for ident in unseen}))
        text = f"{named(unseen, what)} whose process cannot be seen from here (another machine or container: {hosts})"
        yield Finding("warn", f"{text}. If it has exited for good:", remedy.format(unseen[0]))


def _stopped(holders: set[str]) -> Findings:
    pids = {
        pid
        for holder in holders
        if process_identity.is_gone(holder) is False and (pid := process_identity.local_pid(holder))
    }
    for pid in sorted(pid for pid in pids if process_identity.is_stopped(pid)):
        text = f"process {pid} ({process_identity.describe(pid)}) is stopped, and keeps its slots or its place"
        yield Finding("warn", text, f"kill -CONT {pid}")


def _not_in_force(gate: DirectGate, loaded: Loaded | None) -> Findings:
    if loaded is not None and (missing := unapplied_caps(gate.state, loaded.settings.rules, loaded.settings.budgets)):
        yield Finding("warn", unapplied_text(loaded.path, missing), f"fleetgate config apply {loaded.path}")


def _hidden(state: State, loaded: Loaded) -> Findings:
    """Caps of the file that a run-time value hides."""
    for rule in loaded.settings.rules:
        over = state.rules.runtime.get((rule.kind, rule.selector))
        if over is None or not (over.cap is not None or over.auto or over.unlimited) or _cap(over) == _cap(rule):
            continue
        text = (
            f"{rule.selector} ({rule.kind}): the file says {_cap(rule)}; {_cap(over)} was set at run time and hides it"
        )
        yield Finding("warn", text, f"fleetgate cap reset '{rule.selector}' --kind {rule.kind}")


def _cap(rule: Rule) -> str:
    return "auto" if rule.auto else "no cap" if rule.cap is None else str(rule.cap)
