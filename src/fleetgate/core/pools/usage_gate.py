"""The usage gate of a pool: what its provider itself says is in flight (rules G1 to G5).

The engine decides when a question is wanted, a process that has the key asks it (gate/providers/usage_questions.py),
and its answer is a command. An answer is used in the instant it arrives: `room` is set while waiting tickets are
admitted for it, and is 0 otherwise, so a queued ticket never enters on an old answer. A new request that finds no
waiting ticket causes no question.

A call that was admitted by one answer must be counted in the next. So after an admission the next question waits a
little; otherwise it could overtake the call, and the provider's count would let one too many in.

Where the limit is learned (`adapt`), the count also gives the level of an admission: what the provider sees, and what
was granted since it was asked. That replaces our guess of how long finished calls are counted. Questions are then at
least half a second apart.
"""

from __future__ import annotations

from typing import Final

EVERY_MS: Final = 1_000  # between questions while a ticket waits
APART_MS: Final = 500  # at least this between questions where the answers give levels
ARRIVE_MS: Final = 250  # at least this between questions when the first answer admitted a ticket
ANSWER_MS: Final = 6_000  # a question without an answer is given up then: decide without the gate
WITHDRAWN: Final = "withdrawn"  # the process that asked is gone: another asks at once


class UsageGate:
    """What is known about one pool's provider, and what is being asked."""

    __slots__ = (
        "answered_at",
        "apart_ms",
        "asked_at",
        "asked_by",
        "askers",
        "cooled_at",
        "count",
        "error",
        "granted",
        "prompt_at",
        "room",
        "timer_at",
    )

    def __init__(self) -> None:
        self.askers = 0  # tickets in the queue whose process can ask
        self.asked_by = ""  # the process whose answer is awaited
        self.asked_at = 0
        self.prompt_at = 0  # a slot was released, and no question was asked since; 0: not so
        self.cooled_at = 0  # when the slot that was released last has cooled down
        self.count: int | None = None  # the last answer; None: unknown
        self.error = ""  # why it is unknown
        self.answered_at = 0  # 0: never
        self.granted = 0  # slots granted since the question that was answered last, or that is under way
        self.apart_ms = 0  # the minimum time between two questions
        self.room = 0  # how many slots the answer that is being acted on allows
        self.timer_at = 0  # a deadline is set for then; 0: none

    def joined(self, now: int) -> None:
        """A ticket whose process can ask joined the queue."""
        self.askers += 1
        if self.askers == 1:
            self.begin(now)

    def begin(self, now: int) -> None:
        """From now on a process can ask. A question that was wanted before that does not lapse now."""
        if now >= self.asked_at + ANSWER_MS:
            self.asked_by = ""
        if not self.asked_by:
            self.asked_at = max(self.asked_at, now - EVERY_MS)  # a question is wanted from now on
            self.prompt_at = 0

    def left(self) -> None:
        """A ticket whose process can ask left the queue."""
        self.askers -= 1
        if not self.askers:
            self.prompt_at = self.cooled_at = 0  # no ticket to ask for

    def recount(self, askers: int, now: int) -> None:
        """The tickets were counted again, after a change of rules."""
        if askers and not self.askers:
            self.joined(now)
        elif self.askers and not askers:
            self.askers = 1
            self.left()
        self.askers = askers

    def freed(self, now: int, cooldown_ms: int) -> None:
        """A slot was released: ask at once, and again when it can be granted."""
        if self.askers:
            self.prompt_at = self.prompt_at or now
            self.cooled_at = now + cooldown_ms

    def asked(self, by: str, now: int) -> None:
        self.asked_by, self.asked_at, self.prompt_at, self.granted = by, now, 0, 0

    def answered(self, count: int | None, error: str, now: int) -> None:
        asked, self.asked_by = self.asked_by, ""
        if error == WITHDRAWN:
            self.prompt_at = now
            return
        self.count, self.error, self.answered_at = count, error, now
        if not asked:  # the question lapsed before a process asked it; that counts as asked
            self.asked_at, self.prompt_at = now, 0

    @property
    def wanted_at(self) -> int:
        """From when on a question is wanted, if none is under way."""
        asked_at = self.asked_at
        moment = asked_at + EVERY_MS
        if 0 < self.prompt_at < moment:
            moment = self.prompt_at
        if asked_at < self.cooled_at < moment:
            moment = self.cooled_at
        apart_ms = self.apart_ms
        if apart_ms < ARRIVE_MS and self.granted and self.count is not None:
            apart_ms = ARRIVE_MS
        earliest = asked_at + apart_ms
        return moment if moment > earliest else earliest

    def seen(self, now: int) -> int | None:
        """How many calls the provider counts, by an answer of this very moment; None: there is none."""
        return self.count + self.granted if self.count is not None and self.answered_at == now else None

    def wants(self, now: int) -> bool:
        """Whether a process should ask now."""
        return self.askers > 0 and not self.asked_by and now >= self.asked_at + self.apart_ms and now >= self.wanted_at

    def lapses_at(self) -> int:
        """When to go on without an answer to the question that is under way or wanted."""
        return (self.asked_at if self.asked_by else max(self.wanted_at, self.answered_at)) + ANSWER_MS

    def next_moment(self, now: int) -> int:
        """When there is something to do: to ask, or to give up; 0: no ticket waits."""
        if not self.askers:
            return 0
        if self.asked_by:
            return self.asked_at + ANSWER_MS
        wanted_at = self.wanted_at
        return wanted_at if now < wanted_at else max(wanted_at, self.answered_at) + ANSWER_MS
