"""The gate for commands that only read: opening it, its current state, and output for programs and people.

The rule: reading never waits for a lock. Changes that any request would record first (an edited config file, new
credentials, foreign agents, dead processes, deadlines that have passed) are recorded if the lock is free, and otherwise
left for later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import msgspec

from fleetgate.cli.open_gate import load_to_read, open_gate
from fleetgate.cli.output.table import can_show, say
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import NORMAL
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.protocol import StoreError
from fleetgate.present.text import printable, printable_json

_OVERDUE_MS = 500  # a deadline that passed this long ago is acted on by a reader


@contextmanager
def opened(*, configured: bool = True, strict: bool = False) -> Iterator[DirectGate]:
    """The gate, for reading. An invalid config file is mentioned, and not used; with `strict` it is an error.

    With `configured` off the file is not read at all.
    """
    loaded = None if strict or not configured else load_to_read(note)
    with closing(open_gate(loaded, configured=strict)) as gate:
        yield gate


def current(gate: DirectGate, *, reap: bool = False, warn: Callable[[str], None] | None = None) -> State:
    """The state as the next request would find it; with `reap`, without the leases of dead processes.

    `warn` gets what could not be recorded; by default it is printed on stderr.
    """
    warn = warn or note
    state = gate.replica.catch_up()
    loaded = gate.loaded
    news = [*gate.news(), *gate.observations(dead=reap)]
    due = gate.replica.due
    if not news and (due is None or gate.now() - due < _OVERDUE_MS):
        return state
    try:
        recorded = gate.replica.try_decide(news)
    except StoreError as error:
        warn(f"showing the last known state: {error}")
    else:
        if recorded is None:
            if loaded is not None and news and isinstance(news[0], cmd.LoadFile):
                warn(f"{loaded.path} is not in force yet: another process holds the store's lock")
            return _with(gate.replica.catch_up(), news, gate.now())
    return gate.replica.catch_up()


def _with(state: State, news: list[cmd.Command], now: int) -> State:
    """A copy of the state with observations of agents and processes that cannot be recorded now."""
    seen = [command for command in news if isinstance(command, cmd.Observe | cmd.Lost)]
    if not seen:
        return state
    engine = Engine(State.restore(state.export()))
    for command in seen:
        engine.handle(command, now)
    return engine.state


# Output for programs.


def say_json(document: object) -> bool:
    """Print one line of JSON; False when the reader has left."""
    return say(json_text(document) + "\n")


def json_text(document: object) -> str:
    """JSON in one line; characters that do not print, or that the locale does not have, are escaped."""
    text = printable_json(msgspec.json.encode(document).decode())
    if text.isascii() or can_show(text):
        return text
    import json

    return json.dumps(msgspec.json.decode(text), separators=(",", ":")).replace("\x7f", "\\u007f")


# Output for people.


def note(text: str) -> None:
    """Print a note on stderr."""
    sys.stdout.flush()
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(f"fleetgate: {printable(text)}\n".encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


def models_shown(models: tuple[str, ...]) -> str:
    return ", ".join(models) or "-"


def pid_shown(process: str) -> str:
    return str(process_identity.pid_of(process) or "?")


def class_shown(work_class: str) -> str:
    """The class of a request in a listing; empty for the usual one."""
    return "" if work_class == NORMAL else work_class


def session_shown(session: str) -> str:
    """The beginning of a session's id: enough to tell it from others."""
    return session[:8]


def whole_number(option: str, text: str | None) -> int | None:
    """The value of an option, checked; None when it was not given."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise BadRequest(f"{option} {shown(text)}: valid is a whole number, 0 or more")
    return int(text)
