"""A run inside a run: `fleetgate run -- sh -c 'fleetgate run -- …'`.

The outer run keeps its slot while it waits for the inner one. If the inner run needs that very slot, it would wait
forever: it is refused at once, with advice. With `--share-slot` it uses the slot of the outer run, one at a time.
"""

from __future__ import annotations

import os
from time import monotonic, sleep

from fleetgate.cli.run.acquire_slot import Request
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.queue.queue import Candidate
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.slot_gate import with_own_host_cap
from fleetgate.present.request_text import label

VARIABLE = "FLEETGATE_LEASE"
_LOOK_S = 0.1


def hindrance(gate: DirectGate, request: Request) -> Reason | None:
    """Why a run can never start while its enclosing runs continue; None if it can, or if there are none."""
    state = gate.read()
    outer = _outer(state)
    if not outer:
        return None
    spec = _spec(gate, request)
    found = [_shut(state, candidate, spec, outer) for candidate in state.queue(spec).candidates]
    if not all(found):
        return None
    pool, lease = next(each for each in found if each)
    of_host = pool.startswith("host:")
    other = "start the outer run with --supervisor" if of_host else f"raise the cap of {pool}"
    text = (
        f"the enclosing run {lease.id} ({label(lease) or 'a process'}) holds the slot of {pool} that this one "
        f"needs, and waits for it: {other}, or use --share-slot here to run in that slot"
    )
    return Reason("nested", text, pool, [pool], model=spec.models[0] if spec.models else "")


def shared_lease(gate: DirectGate, request: Request) -> Lease:
    """The lease of the enclosing run, if its slot is enough for this one. BadRequest if not."""
    state = gate.read()
    lease = state.leases.get(os.environ.get(VARIABLE, ""))
    if lease is None:
        raise BadRequest("--share-slot: there is no enclosing `fleetgate run`, so there is no slot to share")
    spec = _spec(gate, request)
    if spec.slots > lease.ticket.spec.slots:
        raise BadRequest(f"--share-slot --slots {spec.slots}: the run {lease.id} has {lease.ticket.spec.slots}")
    has = {pool.key for pool, _ in state.lease_candidates[lease.id].needs}
    wanted = state.queue(spec).candidates
    for candidate in wanted:
        missing = [pool.id for pool, _ in candidate.needs if pool.key not in has and pool.limit < UNLIMITED]
        if not missing and candidate.model in ("", lease.model):
            return lease
    needs = f"{wanted[0].model or 'it'} needs a slot of {', '.join(missing)}" if missing else "it has another model"
    raise BadRequest(f"--share-slot: {needs}, and the run {lease.id} has that of {lease.model or 'no model'}")


class NestedShare:
    """A lock on a shared slot. It is held by this process and all processes that it starts."""

    def __init__(self, folder: str, lease: str) -> None:
        self._path = os.path.join(folder, f"shared-{lease}.lock")
        self._fd = -1

    def take(self, wait_s: float | None) -> bool:
        """Take the lock, waiting for the process that has it. False when it was not free in time."""
        import fcntl

        until = None if wait_s is None else monotonic() + wait_s
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(self._path) and os.fstat(fd).st_ino == os.stat(self._path).st_ino:
                    os.set_inheritable(fd, True)  # a child that outlives this process keeps it
                    self._fd = fd
                    return True
            except OSError:
                pass
            os.close(fd)
            if until is not None and monotonic() >= until:
                return False
            sleep(_LOOK_S)

    def release(self) -> None:
        os.unlink(self._path)
        os.close(self._fd)


def _spec(gate: DirectGate, request: Request) -> Spec:
    spec = request.spec(gate.host)
    return with_own_host_cap(spec, gate.loaded) if gate.log.is_shared else spec


def _outer(state: State) -> list[Lease]:
    """The leases of the enclosing runs, the nearest first."""
    named = os.environ.get(VARIABLE, "")
    above: dict[int, None] = {}
    pid = os.getpid()
    while pid > 0 and pid not in above:
        above[pid] = None
        pid = process_identity.parent_of(pid)
    found = [
        lease
        for lease in state.leases.values()
        if lease.id == named or (lease.child and process_identity.local_pid(lease.child) in above)
    ]
    return sorted(found, key=lambda lease: lease.id != named)


def _shut(state: State, candidate: Candidate, spec: Spec, outer: list[Lease]) -> tuple[str, Lease] | None:
    """A pool in which the enclosing runs leave no slot for this candidate, and one of those runs."""
    for pool, own in candidate.needs:
        inside = [lease for lease in outer if any(each is pool for each, _ in state.lease_candidates[lease.id].needs)]
        limit = pool.limit_for(own)
        taken = sum(lease.ticket.spec.slots for lease in inside)
        if inside and limit < UNLIMITED and limit - taken < spec.slots:
            return pool.id, inside[0]
    return None
