"""aider: the line that it prints after every answer, the history of its chats, and its analytics log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from fleetgate.signals.agents.agent import decode
from fleetgate.signals.agents.settings_files import folders_up
from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords, wall_ms
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, count, field, usage_of

# `Tokens: 4.1k sent, 2.0k cache write, 1.0k cache hit, 1.2k received. Cost: $0.02 message, $0.05 session.`
_SPENT = (
    rb"(?:> )?Tokens: ([0-9.]+[kM]?) sent(?:, ([0-9.]+[kM]?) cache write)?(?:, ([0-9.]+[kM]?) cache hit)?, "
    rb"([0-9.]+[kM]?) received\.(?: Cost: \$([0-9]+(?:\.[0-9]+)?) message\b)?"
)
_CHAT = rb"# aider chat started at ([0-9-]{10} [0-9:]{8})\s*$"
_HISTORY = ".aider.chat.history.md"


class _Logged(Struct):
    """A line of its analytics log."""

    event: Any = None
    time: Any = None
    properties: Any = None


class AiderUsage(UsageRecords):
    marks = (b"Tokens: ",)
    record_marks = (b"> Tokens: ", b"# aider chat started at ", b'"message_send"')
    reports_in_text = True

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        found = re.match(_SPENT, line)
        if found is None:
            return None
        sent, written, read, received = (_tokens(each) for each in found.groups()[:4])
        dollars = None if found[5] is None else float(found[5])
        return RecordedUsage(
            (ModelUsage("", usage_of(max(sent - written - read, 0), read, written, received, dollars=dollars)),)
        )

    def prefers_files(self, args: Sequence[str]) -> bool:
        return self.agent.option(args, "--analytics-log") is not None

    def files(self, start: AgentStart) -> Iterator[str]:
        """Its analytics log, which has the exact numbers, where it is told to write one; else the chat's history."""
        log = self.agent.option(start.args, "--analytics-log")
        if log:
            yield os.path.join(start.folder, log)
            return
        own = self.agent.option(start.args, "--chat-history-file")
        if own:
            yield os.path.join(start.folder, own)
            return
        places = (f"{place}/{_HISTORY}" for place in folders_up(start.folder))
        yield from [path for path in places if os.path.isfile(path)][:1]

    def recorded(self, line: bytes) -> RecordedUsage | None:
        """The history has the time only where a chat begins, to the second."""
        if began := re.match(_CHAT, line):
            at = wall_ms(began[1].decode())
            return None if at is None else RecordedUsage(at_ms=at + 999)
        if line.startswith(b"> "):
            return self.reported(line, False)
        found = decode(line, _Logged)
        if found is None or found.event != "message_send":
            return None
        told = found.properties
        used = usage_of(
            field(told, "prompt_tokens"), 0, 0, field(told, "completion_tokens"), dollars=field(told, "cost")
        )
        return RecordedUsage((ModelUsage("", used),), at_ms=count(found.time) * 1000 + 999)


def _tokens(said: bytes | None) -> int:
    """`4.1k` is 4100."""
    if not said:
        return 0
    times = {b"k": 1000, b"M": 1_000_000}.get(said[-1:], 1)
    try:
        return round(float(said.rstrip(b"kM")) * times)
    except ValueError:
        return 0


RECORDS = AiderUsage
