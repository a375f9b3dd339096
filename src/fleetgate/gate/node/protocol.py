"""The messages on a node's socket: one frame is a question, one is its answer (docs/node.md).

A frame is four bytes of length, then JSON. Each question carries the version of this protocol. A node that does not
know the version answers with an error, and the client uses the store directly. Nothing is pushed: a waiting process is
woken by a datagram, and asks then.

Every command can be sent again: each request and each lease is known by its ID, so nothing is done twice.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fleetgate.config.errors import ConfigError
from fleetgate.core import commands as cmd
from fleetgate.core.entities import BudgetRule, Lease, Reason, Rule
from fleetgate.core.errors import BadName, BadRequest, FleetgateError, InternalError, NotFound
from fleetgate.core.queue.positions import TicketView
from fleetgate.log.protocol import SideWrite, StoreAway, StoreError, StoreMoved

VERSION = 2  # 2: a Release may keep its lease
LONGEST = 64 << 20  # bytes of a question
LONGEST_ANSWER = 1 << 30  # the whole state may be in it
_HEAD = 4


class Enter(Struct, tag="enter", omit_defaults=True):
    """Request a slot. `first` comes before it: the client's config file and credentials."""

    command: cmd.Acquire
    first: list[cmd.LoadFile | cmd.Credential] = []
    file_digest: str = ""  # of the client's config file
    file_modified: int = 0
    told: bool = False  # `first` is all that there is to tell
    rules: list[Rule] = []  # of the client's config file, where that has no say: which of them are not in force?
    budgets: list[BudgetRule] = []  # the same


class Decide(Struct, tag="decide", omit_defaults=True):
    """Run commands in one transaction; `side` is written beside the log in the same transaction."""

    commands: list[cmd.Command]
    durable: bool = False
    side: list[SideWrite] = []
    wait: bool = True  # False: only if this is possible at once


class Look(Struct, tag="look", omit_defaults=True):
    """Look up a request; a grant is claimed. `granted`: its holder was told of a grant."""

    id: str
    granted: bool = False


class Side(Struct, tag="side", omit_defaults=True):
    """A value beside the log; with `first`, that is written if there is none."""

    table: str
    key: str
    first: bytes | None = None


class About(Struct, tag="about", omit_defaults=True):
    """A question about a lease, a model, or the provider's usage."""

    lease: str = ""
    model: str = ""
    questions: bool = False
    beat: bool = False  # how long this host has been silent for the store; nothing else


class Say(Struct, tag="say", omit_defaults=True):
    """A round trip to the database, by one of the node's connections (gate/node/connection_pool.py)."""

    text: str
    values: list[bytes | None] | None = None
    binary: bool = False
    bound: bool = False  # in the transaction that this connection has open, or not at all


Call = Enter | Decide | Look | Side | About | Say


class Question(Struct):
    version: int
    call: Call


class Wrong(Struct, omit_defaults=True):
    """A mistake or a failure, by the name of its exception."""

    kind: str
    text: str


class CommandResult(Struct, omit_defaults=True):
    """The result of one command; its events are decoded only where they are needed."""

    events: msgspec.Raw = msgspec.Raw(b"[]")
    wrong: Wrong | None = None


class Answer(Struct, omit_defaults=True):
    """Any answer: fields that do not apply are left out."""

    now: int = 0  # the log's time
    wrong: Wrong | None = None
    outcomes: list[CommandResult] = []
    lease: Lease | None = None
    reason: Reason | None = None
    view: TicketView | None = None
    hopeless: bool = False
    left: str = ""
    wants_file: bool = False
    unapplied: list[str] = []
    accounts: list[str] = []  # whose credentials may end a backoff
    value: bytes | None = None
    until: int = 0
    other: bool = False
    probe: bool = False
    has_calls: bool = False
    has_stops: bool = False  # whether one of its budgets stops agents when it is used up
    stopping: str = ""  # such a budget that is used up
    stop_by: str = ""  # the user who wants its agent stopped
    questions: list[tuple[str, str, str]] = []  # kind, pool, account
    busy: bool = False
    silent_ms: int = 0
    said: bytes = b""  # what the database said: `Results`
    lost: str = ""  # its connection was, and this is why
    refused: tuple[str, str, bool] | None = None  # code, text, whether something before it was committed
    in_transaction: bool = False


class Bare(Struct):
    """The part of a question that every version can read."""

    version: int = 0


_encode = msgspec.json.Encoder().encode
_KINDS = (BadName, BadRequest, NotFound, InternalError, StoreMoved, StoreAway, StoreError, FleetgateError)
_ERRORS: dict[str, type[FleetgateError]] = {kind.__name__: kind for kind in _KINDS}


def frame(message: Struct) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(_HEAD, "big") + data


def length(head: bytes, longest: int = LONGEST) -> int:
    """The length of the frame that starts with these four bytes; ValueError if it is invalid."""
    size = int.from_bytes(head, "big")
    if len(head) != _HEAD or size > longest:
        raise ValueError(f"a frame of {size} bytes")
    return size


def wrong(error: BaseException) -> Wrong:
    """An error as it is sent."""
    if isinstance(error, ConfigError):
        return Wrong("BadRequest", str(error))
    for kind in type(error).__mro__:
        if kind.__name__ in _ERRORS:
            return Wrong(kind.__name__, str(error))
    return Wrong("StoreError", f"the node failed: {type(error).__name__}: {error}")


def raised(told: Wrong) -> FleetgateError:
    """The error that was sent."""
    return _ERRORS.get(told.kind, FleetgateError)(told.text)
