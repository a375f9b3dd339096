"""What the engine is told before it decides on a request: changed credentials, foreign agents, holders that are gone.

Every way to ask goes through `before_deciding`: `run` and `acquire`, the library, the service, the node, jobs and
`dispatch`, and those who only want to know. So nothing is decided on agents without a census that is younger than a
second, and nothing is refused for the sake of processes that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.state.state import State

if TYPE_CHECKING:
    from fleetgate.gate.liveness.dead_holders import Observer
    from fleetgate.gate.liveness.host_beats import HostBeats


def before_deciding(
    current: Callable[[], State],
    host: str,
    surroundings: Observer,
    beats: HostBeats,
    *,
    agents: bool,
    refused: Callable[[State], bool],
    news: Iterable[cmd.Command] = (),
) -> list[cmd.Command]:
    """The commands that come first. `current` reads the state, `news` is what else has changed.

    `agents`: whether the request is for agents, so that foreign ones count. `refused`: whether it would be refused as
    things are, so that it is worth a look whether the holders are still there.
    """
    first = list(news)
    if agents:
        observed = surroundings.observe(current, host)
        if observed is not None:
            first.append(observed)
    state = current()
    if first or refused(state):
        gone = beats.lost(state)
        if gone is not None:
            first.append(gone)
    return first


def would_be_refused(engine: Engine, command: cmd.Acquire, now: int) -> Callable[[State], bool]:
    """Whether a request finds no room, or its key or session taken."""

    def refused(state: State) -> bool:
        session = (command.spec.host, command.session)
        return command.key in state.keys or session in state.sessions or not engine.fits(command.spec, now)

    return refused
