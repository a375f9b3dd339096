"""One reader of the log for everybody who listens: streams, metrics, charts (rule H2).

An event is put into words once, and only while there are listeners. A listener that does not keep up is let go with a
sentence; it resumes by the sequence number that it has seen.

While there are no listeners, metrics and charts hear events as the gate applies them, and the log need not be read
again. It is read if some were missed, because the gate has loaded its state from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from fleetgate.core import events as ev
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.protocol import LogReplaced, Position, StoreError, StoreMoved
from fleetgate.present.event_text import sentence
from fleetgate.present.json.events import event_json
from fleetgate.present.log_time import LogTimes

POLL_S = 0.5
_PAUSE_S = 0.02  # between two reads while there are listeners: what is committed meanwhile is read together
_PAUSE_EACH_S = 0.004  # and this for each who listens: writing to many takes its time
_IDLE_PAUSE_S = 0.25
_COMMITS_AT_ONCE = 100
_EVENTS_AT_ONCE = 200  # a millisecond or so in which no other request is served
_TOLD_AT_ONCE = 2_000  # what was read in several turns is written to each who listens in one
_MOST_PENDING = 5_000
_TROUBLE_S = 1.0


class FeedEvent(NamedTuple):
    """One event of the log, ready to be sent."""

    seq: int
    type: str
    lines: bytes


class Batch:
    """Events that were read together, in order: all who listen share it."""

    __slots__ = ("_lines", "events", "first", "last")

    def __init__(self, events: Sequence[FeedEvent]) -> None:
        self.events = events
        self.first, self.last = events[0].seq, events[-1].seq
        self._lines = b""

    def __len__(self) -> int:
        return len(self.events)

    @property
    def lines(self) -> bytes:
        """All of them as they are sent; put together once."""
        if not self._lines:
            self._lines = b"".join([one.lines for one in self.events])
        return self._lines

    def after(self, seq: int) -> Batch | None:
        """Those that came after."""
        if self.first > seq:
            return self
        left = [one for one in self.events if one.seq > seq]
        return Batch(left) if left else None


class Notice(NamedTuple):
    """Something that is not in the log: reset, trouble, stopping."""

    type: str
    data: dict[str, object]


class FeedListener:
    """What one stream has yet to send."""

    def __init__(self, seq: int) -> None:
        self.seq = seq  # the last that was put here
        self.behind = False
        self.pending: deque[Batch | Notice] = deque()
        self.ready = asyncio.Event()
        self._events = 0  # in what is pending

    def put(self, one: Batch | Notice) -> None:
        self._events += len(one) if isinstance(one, Batch) else 1
        if self._events > _MOST_PENDING:
            self.behind = True
            self.pending.clear()
        if not self.behind:
            self.pending.append(one)
        self.ready.set()

    def take(self) -> list[Batch | Notice]:
        """All that is pending; it is no longer."""
        taken = list(self.pending)
        self.pending.clear()
        self._events = 0
        return taken

    def tell(self, some: Batch) -> None:
        """What it does not have yet of these."""
        new = some.after(self.seq)
        if new is not None:
            self.put(new)
            if not self.behind:
                self.seq = new.last


class Feed:
    """Reads the log as it grows."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._position: Position | None = None
        self._at_once = _COMMITS_AT_ONCE // 10  # commits: more where each has few events, as those last read
        self._untold: list[FeedEvent] = []
        self._listeners: set[FeedListener] = set()
        self._hearers: list[Callable[[ev.Event], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._in_trouble = False
        self._reloads = 0  # of the gate, when the position was last known to be in its log
        self.on_moved: Callable[[StoreMoved], None] = lambda _: None  # called when there is nothing left to read

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def seq(self) -> int:
        """How far the log was read."""
        return 0 if self._position is None else self._position.seq

    def hear(self, hearer: Callable[[ev.Event], None]) -> None:
        """Call a function of this process with every event."""
        self._hearers.append(hearer)

    async def start(self) -> None:
        self._position = await self._gate.position()
        self._gate.core.on_events = self._hear_applied
        self._task = asyncio.get_running_loop().create_task(self._run())

    def say_goodbye(self) -> None:
        self._tell_all(Notice("stopping", {"text": "the service stops: connect again"}))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def listen(self) -> FeedListener:
        """From what was read last."""
        listener = FeedListener(self.seq)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: FeedListener) -> None:
        self._listeners.discard(listener)

    async def _run(self) -> None:
        while True:
            try:
                read, asked = await self._read()
                if not read:
                    await self._gate.wait_for_change(POLL_S)
                # More is there: go on at once, but let others have their turn.
                await asyncio.sleep(0 if read >= asked else self._pause_s())
            except LogReplaced:
                self._position, self._untold = await self._gate.position(), []
                text = "the log was replaced, perhaps by a restored backup: read the state again"
                self._tell_all(Notice("reset", {"seq": self.seq, "text": text}))
            except StoreError as error:
                if not self._in_trouble:
                    self._tell_all(Notice("trouble", {"text": str(error)}))
                self._in_trouble = True
                if isinstance(error, StoreMoved):
                    self.on_moved(error)
                await asyncio.sleep(_TROUBLE_S)
            except FleetgateError:
                return  # the gate is closed

    def _hear_applied(self, events: list[ev.Event]) -> None:
        """Hear what the gate has just applied, if it follows what was heard before, and no listener needs its words."""
        replica = self._gate.core.replica
        if self._listeners or self._untold or self._position is None or self._reloads != replica.reloads:
            return
        if replica.position.seq - self._position.seq == len(events):
            for event in events:
                for hearer in self._hearers:
                    hearer(event)
            self._position = replica.position

    def _pause_s(self) -> float:
        listening = len(self._listeners)
        return min(_PAUSE_S + _PAUSE_EACH_S * listening, _IDLE_PAUSE_S) if listening else _IDLE_PAUSE_S

    async def _read(self) -> tuple[int, int]:
        """Take in the next commits: how many there were, and how many were asked for."""
        assert self._position is not None
        start, asked = self._position, self._at_once
        commits = await self._gate.commits(start, asked)
        self._in_trouble = False
        if self._position is not start:
            return 0, asked  # what was read has been heard meanwhile
        self._reloads = self._gate.core.replica.reloads
        moments = LogTimes(self._gate) if self._listeners else None
        for commit in commits:
            first = commit.seq - len(commit.events) + 1
            for seq, event in enumerate(commit.events, first):
                for hearer in self._hearers:
                    hearer(event)
                if moments is not None:
                    self._untold.append(words(seq, commit.at, event, moments))
            self._position = commit.position
        if self._untold and (len(commits) < asked or len(self._untold) >= _TOLD_AT_ONCE):
            batch, self._untold = Batch(self._untold), []
            for listener in self._listeners:
                listener.tell(batch)
        if commits:
            each = max((self._position.seq - start.seq) / len(commits), 1)
            self._at_once = min(max(int(_EVENTS_AT_ONCE / each), 1), _COMMITS_AT_ONCE)
        return len(commits), asked

    def _tell_all(self, notice: Notice) -> None:
        for listener in self._listeners:
            listener.put(notice)
            if notice.type == "reset":
                listener.seq = self.seq


def words(seq: int, at: int, event: ev.Event, moments: LogTimes) -> FeedEvent:
    """An event as it is sent."""
    document = event_json(seq, at, event, moments)
    document["text"] = sentence(event, at)
    type = str(document["type"])
    return FeedEvent(
        seq, type, b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, type.encode(), msgspec.json.encode(document))
    )
