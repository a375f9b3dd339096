"""The commands that come before a decision: changed credentials, dead holders, foreign agents and free memory.

The engine cannot see these for itself. They are looked for outside the lock and handed to it as commands, in the same
transaction as the request. Every gate goes through `commands_first`: `run` and `acquire`, the library, the service, the
node, jobs, `dispatch`, listings and the checks that are made every second. So nothing is decided about agents on a
census that is older than a second, and no request is refused because of processes that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.state.state import State

if TYPE_CHECKING:
    from fleetgate.gate.liveness.host_beats import HostBeats
    from fleetgate.gate.liveness.host_observer import HostObserver


def always(_: State) -> bool:
    return True


def commands_first(
    current: Callable[[], State],
    host: str,
    *,
    news: Iterable[cmd.Command] = (),
    observer: HostObserver | None = None,
    beats: HostBeats | None = None,
    is_refused: Callable[[State], bool] = always,
) -> list[cmd.Command]:
    """The commands that come first. `current` reads the state. The callers differ in these ways only:

    - `news` is what else has changed. As a rule that is the credentials of this process; a node passes on what its
      client sent, since the login files are the client's.
    - `observer` is None for a request for model calls, in which foreign agents do not count.
    - `beats` is None where dead holders are left for the next check: a worker that offers to run a job, which may do so
      many times a second, and a listing that is not asked to reclaim.
    - `is_refused` tells whether a request would be refused as things are. Judging every holder takes time, so a request
      looks for dead ones only then, or if something else has changed; a check that is made every second always looks.
    """
    first = list(news)
    observed = observer.observe(current, host) if observer is not None else None
    state = current()
    if beats is not None and (first or observed is not None or is_refused(state)):
        gone = beats.lost(state)
        if gone is not None:
            first.append(gone)
    if observed is not None and (observed.room is not None or observed.foreign != state.foreign.get(host, ())):
        first.append(observed)
    return first


def would_be_refused(engine: Engine, command: cmd.Acquire, now: int) -> Callable[[State], bool]:
    """Whether a request finds no room, or its key or session taken."""

    def is_refused(state: State) -> bool:
        session = (command.spec.host, command.session)
        return command.key in state.keys or session in state.sessions or not engine.fits(command.spec, now)

    return is_refused
