"""One target: its position in the log, the messages of the last hour, and the open incidents.

Rules: messages are sent in order; one that could not be sent is retried, and later ones wait for it; messages over the
limit of an hour are counted, and sent as one summary when there is room again. `now` is an argument, in seconds of wall
time.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from fleetgate.config.settings import Notify
from fleetgate.notify.messages import ANY, Message
from fleetgate.notify.senders import NotSent

HOUR_S = 3600.0
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
GIVE_UP_S = 6 * HOUR_S  # a message that could not be sent for this long is counted as left out


_UNTIL = " until "  # of a limit that was learned: the level at which it is over


class Saved(Struct, omit_defaults=True):
    """The state of a target, saved between two starts."""

    commit: int = 0
    id: str = ""
    seq: int = 0
    done: int = 0  # the last event that was handled, within the next commit
    sent: list[float] = field(default_factory=list)  # when, in the last hour
    open: list[str] = field(default_factory=list)  # incidents that were reported
    left_out: dict[str, int] = field(default_factory=dict)  # by kind
    since: int = 0  # the first event that was left out


class Target:
    """One target. `deliver` sends a message or raises NotSent; `trouble` is called when that begins to fail."""

    def __init__(
        self, config: Notify, saved: Saved, deliver: Callable[[Message], None], trouble: Callable[[str], None]
    ) -> None:
        self.config = config
        self.saved = saved
        self.retry_at = 0.0
        self._deliver = deliver
        self._trouble = trouble
        self._failing_since = 0.0
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Target {self.config.name} at {self.saved.seq}, {len(self.saved.sent)} sent in the last hour>"

    def offer(self, message: Message, now: float) -> bool:
        """Handle one message. False: it could not be sent, and must be offered again at `retry_at`."""
        saved = self.saved
        if message.seq <= saved.done:
            return True
        if not self._is_news(message) or not message.kind:
            self._note(message)
        elif self._full(now):
            self._leave_out(message)
        elif not self._try(message, now):
            return False
        else:
            self._note(message)
        saved.done = message.seq
        return True

    def sum_up(self, now: float) -> bool:
        """Send a summary of the messages that were left out, once there is room. Returns whether it was sent."""
        saved = self.saved
        if not saved.left_out or self._full(now) or now < self.retry_at:
            return False
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(saved.left_out.items()))
        text = f"not sent in the last hour because of the limit per hour: {kinds}"
        text += f"; see fleetgate history --since {saved.since - 1}"
        if not self._try(Message("summary", text), now):
            return False
        saved.left_out, saved.since = {}, 0
        return True

    def _is_news(self, message: Message) -> bool:
        if message.opens:
            return not any(_incident(known) == message.opens for known in self.saved.open)
        return not message.closes or bool(self._closed(message))

    def _closed(self, message: Message) -> list[str]:
        """The incidents that this message closes."""
        if not message.level:
            return [message.closes] if message.closes in self.saved.open else []
        return [known for known in self.saved.open if _is_over(known, message)]

    def _note(self, message: Message) -> None:
        if message.opens:
            if self._is_news(message):
                until = f"{_UNTIL}{message.level}" if message.level else ""
                self.saved.open.append(message.opens + until)
        elif message.closes:
            closed = self._closed(message)
            self.saved.open = [known for known in self.saved.open if known not in closed]

    def _full(self, now: float) -> bool:
        self.saved.sent = [at for at in self.saved.sent if now - HOUR_S < at <= now]
        return len(self.saved.sent) >= self.config.per_hour

    def _leave_out(self, message: Message) -> None:
        saved = self.saved
        saved.left_out[message.kind] = saved.left_out.get(message.kind, 0) + 1
        saved.since = saved.since or message.seq
        self._note(message)

    def _try(self, message: Message, now: float) -> bool:
        try:
            self._deliver(message)
        except NotSent as error:
            if not self._failures:
                self._failing_since = now
                self._trouble(f"{self.config.name}: {error} (will retry)")
            self._failures += 1
            self.retry_at = now + min(FIRST_RETRY_S * 2 ** min(self._failures - 1, 10), LONGEST_RETRY_S)
            if now - self._failing_since < GIVE_UP_S:
                return False
            self._failing_since = now
            self._leave_out(message)
            return True
        self._failures, self.retry_at = 0, 0.0
        self.saved.sent.append(now)
        return True


def _incident(known: str) -> str:
    return known.partition(_UNTIL)[0]


def _is_over(known: str, message: Message) -> bool:
    """Whether an incident of a learned limit is over, now that this many calls at once were accepted."""
    incident, until, level = known.partition(_UNTIL)
    pool = incident.partition(" ")[2]
    return bool(until) and message.closes in (pool, ANY) and int(level) <= message.level
