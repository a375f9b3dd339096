"""What the commands that only look share: the gate opened to be read, times, and the shapes of SPEC O1-O4.

Looking takes no lock and waits for nobody. What any request would bring into the books first (a config file that is
news, changed credentials, foreign agents, processes that are gone, deadlines that have passed) is brought in if the
lock is free at once, and else left for later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import msgspec

from fleetgate.cli.open_gate import open_gate
from fleetgate.cli.output.table import can_show, say
from fleetgate.config.file import Loaded
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.protocol import StoreError
from fleetgate.present.text import printable, printable_json

_OVERDUE_MS = 500  # a deadline that nobody has acted on for so long is acted on by whoever looks


@contextmanager
def opened(*, configured: bool = True) -> Iterator[DirectGate]:
    """The gate, to look at. What does not need the config file does not stumble over it."""
    with closing(open_gate(configured=configured)) as gate:
        yield gate


@contextmanager
def opened_with(loaded: Loaded | None) -> Iterator[DirectGate]:
    """The same by ourselves in any case, with a config file that was already read, or found to be bad (None)."""
    with closing(open_gate(loaded, configured=False, alone=True)) as gate:
        yield gate


def current(gate: DirectGate, *, reap: bool = False, tell: Callable[[str], None] | None = None) -> State:
    """The state as the next request would find it; with `reap`, without what the dead hold.

    `tell` hears what could not be brought in; without it, it is noted on stderr.
    """
    tell = tell or note
    state = gate.replica.catch_up()
    loaded = gate.loaded
    news = [*gate.news(), *gate.observations(dead=reap)]
    due = gate.replica.due
    if not news and (due is None or gate.now() - due < _OVERDUE_MS):
        return state
    try:
        taken_in = gate.replica.try_decide(news)
    except StoreError as error:
        tell(f"shown as it was last known: {error}")
    else:
        if taken_in is None:
            if loaded is not None and news and isinstance(news[0], cmd.LoadFile):
                tell(f"the store's lock is taken: {loaded.path} is newer than what is shown, and not in force yet")
            return _with(gate.replica.catch_up(), news, gate.now())
    return gate.replica.catch_up()


def _with(state: State, news: list[cmd.Command], now: int) -> State:
    """A copy of the state with what was seen of agents and processes, where it cannot be written down now."""
    seen = [command for command in news if isinstance(command, cmd.Observe | cmd.Lost)]
    if not seen:
        return state
    engine = Engine(State.restore(state.export()))
    for command in seen:
        engine.handle(command, now)
    return engine.state


# Output for programs.


def say_json(document: object) -> bool:
    """One line of JSON; False when nobody reads any more."""
    return say(json_text(document) + "\n")


def json_text(document: object) -> str:
    """JSON in one line, escaped where something does not print, or the locale has not all of its characters."""
    text = printable_json(msgspec.json.encode(document).decode())
    if text.isascii() or can_show(text):
        return text
    import json

    return json.dumps(msgspec.json.decode(text), separators=(",", ":")).replace("\x7f", "\\u007f")


# Output for people.


def note(text: str) -> None:
    """Something beside the answer, on stderr."""
    sys.stdout.flush()
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(f"fleetgate: {printable(text)}\n".encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def models_shown(models: tuple[str, ...]) -> str:
    return ", ".join(models) or "-"


def pid_shown(process: str) -> str:
    return str(process_identity.pid_of(process) or "?")


def whole_number(option: str, text: str | None) -> int | None:
    """The value of an option, checked; None when it was not given."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise BadRequest(f"{option} {shown(text)}: valid is a whole number, 0 or more")
    return int(text)
