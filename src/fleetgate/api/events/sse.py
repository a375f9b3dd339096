"""`GET /v1/events`: the events of the log as server-sent events (rule H2).

A stream begins where its reader was: first the events since then, then new ones as they come. A notice says when events
are no longer kept, or when the log is another one. A reader that does not keep up gets a notice and is disconnected: it
connects again and continues from its last `id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta

from fleetgate.api.errors import RequestRefused
from fleetgate.api.events.feed import FeedEvent, FeedListener, Notice, words
from fleetgate.api.history_reader import unhurried
from fleetgate.api.router.route import DocumentedAnswer, Header, get
from fleetgate.api.routes.read import Types, event_types
from fleetgate.api.security.caller import Caller
from fleetgate.api.service import Service
from fleetgate.core.access.keys import AccessKey
from fleetgate.front.asgi import Receive, Scope, Send, request_of
from fleetgate.front.request import ClientRequest
from fleetgate.log.protocol import Log
from fleetgate.present.json.events import TYPES
from fleetgate.present.log_time import LogTimes

HEARTBEAT_S = 15.0
KEY_CHECK_S = 1.0
STUCK_S = 30.0  # a reader that takes nothing for this long is disconnected
_AT_ONCE = 500

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
Since = Annotated[int, Meta(ge=0, le=2**53, description="resume after this sequence number")]
LastEventId = Annotated[
    str,
    Header("Last-Event-ID"),
    Meta(max_length=20, pattern="^[0-9]*$", description="resume after this one"),
]


@get(
    "/v1/events",
    summary="Follow events as they happen: server-sent events",
    media_type="text/event-stream",
    answers={200: DocumentedAnswer(str, "A stream without end", "text/event-stream")},
    headers=("cache-control",),
)
async def events(
    service: Service,
    caller: Caller,
    since: Since | None = None,
    types: Types = "",
    last_event_id: LastEventId | None = None,
) -> Stream:
    wanted = event_types(types)
    service.check_room_to_listen()
    if last_event_id:
        if not last_event_id.isdecimal():
            raise RequestRefused(400, "bad_request", "Last-Event-ID: valid is a sequence number of the log")
        since = int(last_event_id)
    return Stream(service, since, frozenset(tag for tag, each in TYPES.items() if each in wanted), caller.key)


class Stream:
    """One reader's stream, as an ASGI application."""

    def __init__(
        self, service: Service, since: int | None, wanted: frozenset[str], key: AccessKey | None = None
    ) -> None:
        self._service = service
        self._key = key  # of the reader; the stream ends with it
        self._key_checked_at = asyncio.get_running_loop().time()
        self._since = since
        self._wanted = wanted
        self._seq = 0  # reached, sent or not
        self._request: ClientRequest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request = request_of(scope)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        listener = self._service.feed.listen()
        telling = asyncio.ensure_future(self._tell(listener))
        left = asyncio.get_running_loop().create_future()
        stop = request.watch_client(lambda: left.set_result(None))
        try:
            await asyncio.wait({telling, left}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done() and not telling.cancelled() and telling.exception() is None:
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._service.feed.leave(listener)
            stop()
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell(self, listener: FeedListener) -> None:
        service = self._service
        last = listener.seq
        since = last if self._since is None else self._since
        hello = {"seq": last, "since": since, "version": service.version, "started_at": service.started_at}
        await self._put(notice("hello", hello))
        if since > last and since > (await service.gate.read()).seq:  # else it is the feed that has not read so far
            text = f"the log ends at {last}, before {since}: it is another log, or a restored one; read the state again"
            await self._put(notice("reset", {"seq": last, "text": text}))
            since = last
        self._seq = since
        await self._catch_up(last)
        await self._follow(listener)

    async def _catch_up(self, last: int) -> None:
        """What the log has from where the reader was to where the live part begins."""
        first = True
        while self._seq < last:
            events = await self._service.archive.read(self._part(last))
            start = events[0].seq if events else last + 1
            if first and start > self._seq + 1:
                text = f"events {self._seq + 1} to {start - 1} are no longer kept: read the state again"
                await self._put(notice("pruned", {"from": self._seq + 1, "to": start - 1, "text": text}))
            first = False
            self._seq = events[-1].seq if events else last
            await self._put(b"".join(map(self._line, events)))

    def _part(self, last: int) -> Callable[[Log], list[FeedEvent]]:
        """The next events up to `last`, put into words."""
        since, moments = self._seq, LogTimes(self._service.gate)

        def read(log: Log) -> list[FeedEvent]:
            part = islice(unhurried(log.history(since)), _AT_ONCE)
            return [words(seq, at, event, moments) for seq, at, event in part if seq <= last]

        return read

    async def _follow(self, listener: FeedListener) -> None:
        while self._key_is_valid():
            if not listener.pending and not listener.behind:
                listener.ready.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await listener.ready.wait()
                except TimeoutError:
                    await self._put(b": still here\nid: %d\n\n" % self._seq)
                continue
            if listener.behind:
                text = "you read too slowly, and the stream ends: connect again to continue from your last id"
                await self._put(notice("behind", {"seq": self._seq, "text": text}))
                return
            lines = []
            stops = False
            for some in listener.take():
                if isinstance(some, Notice):
                    lines.append(notice(some.type, some.data))
                    stops = stops or some.type == "stopping"
                    self._seq = int(str(some.data.get("seq", self._seq)))
                elif (new := some.after(self._seq)) is not None:
                    self._seq = new.last
                    lines.append(b"".join(map(self._line, new.events)) if self._wanted else new.lines)
            await self._put(*lines)
            if stops:
                return

    def _key_is_valid(self) -> bool:
        """Whether the reader's key is still what it was, looked up once a second; so it is without a key."""
        now = asyncio.get_running_loop().time()
        if self._key is None or now - self._key_checked_at < KEY_CHECK_S:
            return True
        self._key_checked_at = now
        return self._service.access.named_key(self._key.name) == self._key

    def _line(self, event: FeedEvent) -> bytes:
        if self._wanted and event.type not in self._wanted:
            return b""
        return event.lines

    async def _put(self, *lines: bytes) -> None:
        """Send these. The same bytes are written to all readers: a copy for each would cost as much as sending."""
        request = self._request
        if not any(lines):
            return
        if request.paused:
            async with asyncio.timeout(STUCK_S):
                await request.drain()
        if not request.gone:
            request.write_parts(lines)


def notice(name: str, data: dict[str, object]) -> bytes:
    """A notice that is not in the log: it has no id."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
