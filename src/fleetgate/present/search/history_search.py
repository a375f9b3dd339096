"""A search in the history, newest event first: by time, type, and words of the sentence or of an ID.

The log is read from its end in spells. One search looks at no more than `MOST_SEARCHED` events, so that it ends; its
answer says where the next one continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from fleetgate.core.events import Event
from fleetgate.log.protocol import Log
from fleetgate.present.event_text import sentence
from fleetgate.present.json.events import event_json
from fleetgate.present.log_time import Json, LogTimes
from fleetgate.present.request_text import label

SPELL = 2_000
MOST_SEARCHED = 20_000

Row = tuple[int, int, Event]  # sequence number, log time, event


def _events(log: Log, after: int, before: int) -> Iterator[Row]:
    return takewhile(lambda row: row[0] < before, log.history(after))


class Found(NamedTuple):
    """The events, newest first; `next_before` is where an older part was not searched, None at the beginning."""

    events: list[Json]
    searched: int
    next_before: int | None


class HistorySearch(NamedTuple):
    """What an event must have. Times are log times; 0 and empty values match all."""

    words: tuple[str, ...] = ()
    types: tuple[type, ...] = ()
    since: int = 0
    until: int = 0

    def find(
        self,
        log: Log,
        before: int,
        limit: int,
        moments: LogTimes,
        resting: Callable[[Iterator[Row]], Iterator[Row]],
    ) -> Found:
        """At most `limit` events with a sequence number below `before`."""
        found: list[Json] = []
        searched = 0
        while before > 1 and searched < MOST_SEARCHED:
            first = max(before - 1 - SPELL, 0)
            spell = list(resting(_events(log, first, before)))
            for seq, at, event in reversed(spell):
                if at < self.since:
                    return Found(found, searched, None)
                searched += 1
                document = self._document(seq, at, event, moments)
                if document is None:
                    continue
                if len(found) == limit:
                    return Found(found, searched, seq + 1)
                found.append(document)
            if first == 0 or not spell or spell[0][0] > first + 1:  # older ones are no longer kept
                return Found(found, searched, None)
            before = first + 1
        return Found(found, searched, before if before > 1 else None)

    def _document(self, seq: int, at: int, event: Event, moments: LogTimes) -> Json | None:
        """The event as JSON with its sentence; None where it does not match."""
        if (self.types and not isinstance(event, self.types)) or (self.until and at >= self.until):
            return None
        text = sentence(event, at)
        if self.words:
            ticket = getattr(event, "ticket", None)
            names = (ticket.id, ticket.spec.project, label(ticket), *ticket.spec.models) if ticket is not None else ()
            inside = "\n".join((text, getattr(event, "id", ""), *names)).lower()
            if not all(word in inside for word in self.words):
                return None
        return {**event_json(seq, at, event, moments), "text": text}
