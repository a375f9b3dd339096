"""Fair shares: which project gets the next slot of a pool (rule A4).

This is start-time fair queueing. Each grant has a virtual start and costs what it is expected to hold, in slot
milliseconds; the next grant of its project starts where this one ends. The project with the smallest virtual start
goes first. When a lease ends, the difference between what was charged and what it really held is settled with the
project's next grant. A project with no waiting tickets gets no credit for that time: it continues at the pool's
virtual time, which is the start of the latest grant.

A project with a weight of 3 is charged a third (rule W6). Where the tokens of a call are known, they are charged
instead of its time: as much time as calls of this pool took lately for as many tokens. So the unit stays the same, and
a project whose calls are heavy for their time pays for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetgate.core.queue.queue import Queue

HALF_LIFE_MS: Final = 60_000

# Sorts what goes first: virtual start of the project (-1: moved to the front), order and arrival of the ticket.
Rank = tuple[int, int, int]


class ProjectShare:
    """One project's part in a pool."""

    __slots__ = ("debit", "latest", "latest_at", "start", "waiting")

    def __init__(self, start: int = 0) -> None:
        self.start = start  # virtual start of its next grant
        self.debit = 0  # held longer (or shorter) than charged, settled with the next grant
        self.latest = 0  # the largest order granted while others waited, and when: it shows who was overtaken
        self.latest_at = 0
        self.waiting = 0  # queues that have a ticket


class FairShare:
    """The shares of one pool."""

    __slots__ = ("_weights", "projects", "token_ms", "tokens", "tokens_at", "virtual")

    def __init__(self, weights: dict[str, int] | None = None) -> None:
        self._weights = {} if weights is None else weights  # by project; 1 for one that is not there
        self.projects: dict[str, ProjectShare] = {}
        self.virtual = 0  # virtual time: start of the latest grant
        self.tokens = 0  # that calls used lately: half of it counts after a minute
        self.token_ms = 0  # and the time that they took
        self.tokens_at = 0

    def cost_of(self, tokens: int, held_ms: int, now: int) -> int:
        """What a call costs that used so many tokens in this time, in ms: by what others took for as many."""
        periods, rest = divmod(max(now - self.tokens_at, 0), HALF_LIFE_MS)
        shift = min(periods, 60)
        for_tokens, for_ms = self.tokens >> shift, self.token_ms >> shift
        self.tokens = for_tokens - for_tokens * rest // (2 * HALF_LIFE_MS) + tokens
        self.token_ms = for_ms - for_ms * rest // (2 * HALF_LIFE_MS) + held_ms
        self.tokens_at = now
        return tokens * self.token_ms // self.tokens

    @property
    def is_awaited(self) -> bool:
        """Whether a ticket waits for this pool."""
        return any(share.waiting for share in self.projects.values())

    def of(self, project: str) -> ProjectShare:
        share = self.projects.get(project)
        if share is None:
            share = self.projects[project] = ProjectShare(self.virtual)
        return share

    def settled(self, project: str) -> ProjectShare:
        """A project's share, settled up to now if no ticket of the project is waiting."""
        share = self.projects.get(project)
        if share is None:
            share = self.projects[project] = ProjectShare(self.virtual)
        elif not share.waiting:
            start = share.start + share.debit
            share.start = start if start > self.virtual else self.virtual
            share.debit = share.latest = share.latest_at = 0
        return share

    def charge(self, project: str, cost_ms: int, order: int, now: int) -> None:
        """Charge a project for a grant that is expected to cost this much."""
        share = self.projects.get(project)
        if share is None or not share.waiting:
            share = self.settled(project)
        elif order >= share.latest:
            share.latest = order
            share.latest_at = now
        start = share.start
        if start > self.virtual:
            self.virtual = start
        else:  # it waited for something else while this pool went to others: no credit for that either
            start = self.virtual
        cost_ms = cost_ms // self._weights.get(project, 1) + share.debit
        if cost_ms > 0:
            share.start = start + cost_ms
            share.debit = 0
        else:
            share.start = start
            share.debit = cost_ms

    def adjust(self, project: str, difference_ms: int) -> None:
        """A lease ended and cost this much more (or less) than was charged."""
        share = self.projects.get(project)
        if share is None or not share.waiting:
            share = self.settled(project)
        share.debit += difference_ms // self._weights.get(project, 1)

    def refund(self, project: str, cost_ms: int) -> None:
        """A grant was never used: give back what was charged."""
        self.settled(project).debit -= cost_ms // self._weights.get(project, 1)

    def rank(self, queue: Queue) -> Rank:
        """Sorts queues: the project with the smallest virtual start, then the oldest head. A bump beats both."""
        order, arrival, _ = queue.place
        return (self.of(queue.project).start if order >= 0 else -1, order, arrival)
