"""What is said over a node's socket: one frame asks, one answers (docs/node.md).

A frame is four bytes of length and JSON. Each question carries the version of this protocol; a node that does not
speak it answers with a sentence, and the client does without. Nothing is pushed: who waits in the queue is woken by a
datagram as ever, and asks then.

Every command that a client sends can be sent again: what a request or lease is to become is known by its id.
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
    """Ask for a slot. `first` goes before it: what the client knows of its file and credentials."""

    command: cmd.Acquire
    first: list[cmd.LoadFile | cmd.Credential] = []
    file_digest: str = ""  # of the client's config file
    file_modified: int = 0
    told: bool = False  # `first` is all that there is to tell
    rules: list[Rule] = []  # of the client's config file, where that has no say: which of them are not in force?
    budgets: list[BudgetRule] = []  # the same


class Decide(Struct, tag="decide", omit_defaults=True):
    """Run commands in one transaction; `side` is written beside the log with it."""

    commands: list[cmd.Command]
    durable: bool = False
    side: list[SideWrite] = []
    wait: bool = True  # False: only if it can be done at once


class Look(Struct, tag="look", omit_defaults=True):
    """What has become of a request; a grant is claimed. `granted`: so its holder was told."""

    id: str
    granted: bool = False


class Side(Struct, tag="side", omit_defaults=True):
    """A value beside the log; with `first`, that is written if there is none."""

    table: str
    key: str
    first: bytes | None = None


class About(Struct, tag="about", omit_defaults=True):
    """What a client wants to know of a lease, a model, or the provider's usage."""

    lease: str = ""
    model: str = ""
    questions: bool = False
    beat: bool = False  # for how long the store has not heard of this host; nothing else


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
    """What became of one command; its events are decoded by who wants to see them."""

    events: msgspec.Raw = msgspec.Raw(b"[]")
    wrong: Wrong | None = None


class Answer(Struct, omit_defaults=True):
    """All answers in one: what does not apply is left out."""

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
    """Of the frame that such four bytes begin; ValueError for what is none."""
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
