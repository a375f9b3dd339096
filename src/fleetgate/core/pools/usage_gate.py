"""The usage gate of a pool: what its provider itself says is in flight (SPEC G1-G5).

The engine says when a question is wanted, a process that has the key asks it (gate/providers/usage_questions.py), and
its answer is a command. An answer is used in the instant that it comes: `room` is set while the line is settled for it,
and is 0 otherwise, so a queued ticket never enters on an old answer. Newcomers who find nobody waiting are not asked
for.

Whoever was let in by one answer must be in the next: after somebody entered, the next question waits a little. Else it
overtakes the call, and the provider's count lets one too many in.

Where the limit is learned (`adapt`), the count also says which level an admission brings the provider to: what it
sees, and what was lent since it was asked. That replaces our guess how long finished calls are counted. Questions are
then half a second apart.
"""

from __future__ import annotations

from typing import Final

EVERY_MS: Final = 1_000  # while anybody waits
APART_MS: Final = 500  # between questions where their answers tell levels
ARRIVE_MS: Final = 250  # between questions where the answer to the first has let somebody in
ANSWER_MS: Final = 6_000  # a question, or one that nobody asks, is given up then: decide without the gate
WITHDRAWN: Final = "withdrawn"  # the process that asked is gone: another asks at once


class Upstream:
    """What is known and being asked of one pool's provider."""

    __slots__ = (
        "answered_at",
        "apart_ms",
        "asked_at",
        "asked_by",
        "askers",
        "cooled_at",
        "count",
        "error",
        "lent",
        "prompt_at",
        "room",
    )

    def __init__(self) -> None:
        self.askers = 0  # tickets in the queue whose process can ask
        self.asked_by = ""  # the process whose answer is awaited
        self.asked_at = 0
        self.prompt_at = 0  # a slot was released, and nobody has asked since; 0: not so
        self.cooled_at = 0  # when the slot that was released last has cooled down
        self.count: int | None = None  # the last answer; None: unknown
        self.error = ""  # why it is unknown
        self.answered_at = 0  # 0: never
        self.lent = 0  # slots since the question was asked that was answered last, or that is under way
        self.apart_ms = 0  # the least time between two questions
        self.room = 0  # how many slots the answer that is being acted on allows

    def joined(self, now: int) -> None:
        """Somebody who can ask waits in the queue."""
        self.askers += 1
        if self.askers == 1:
            self.begin(now)

    def begin(self, now: int) -> None:
        """From now on there is somebody to ask for: a question that was wanted long ago is none that lapses now."""
        if now >= self.asked_at + ANSWER_MS:
            self.asked_by = ""
        if not self.asked_by:
            self.asked_at = max(self.asked_at, now - EVERY_MS)  # a question is wanted now, not since long ago
            self.prompt_at = 0

    def left(self) -> None:
        """Somebody who can ask waits in the queue no more."""
        self.askers -= 1
        if not self.askers:
            self.prompt_at = self.cooled_at = 0  # nobody waits: no questions

    def recount(self, askers: int, now: int) -> None:
        """The line was made anew."""
        if askers and not self.askers:
            self.joined(now)
        elif self.askers and not askers:
            self.askers = 1
            self.left()
        self.askers = askers

    def freed(self, now: int, cooldown_ms: int) -> None:
        """A slot was released: ask at once, and again when it can be lent."""
        if self.askers:
            self.prompt_at = self.prompt_at or now
            self.cooled_at = now + cooldown_ms

    def asked(self, by: str, now: int) -> None:
        self.asked_by, self.asked_at, self.prompt_at, self.lent = by, now, 0, 0

    def answered(self, count: int | None, error: str, now: int) -> None:
        asked, self.asked_by = self.asked_by, ""
        if error == WITHDRAWN:
            self.prompt_at = now
            return
        self.count, self.error, self.answered_at = count, error, now
        if not asked:  # nobody did, and that counts as a question
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
        if apart_ms < ARRIVE_MS and self.lent and self.count is not None:
            apart_ms = ARRIVE_MS
        earliest = asked_at + apart_ms
        return moment if moment > earliest else earliest

    def seen(self, now: int) -> int | None:
        """What counts at the provider by an answer of this very moment; None: there is none."""
        return self.count + self.lent if self.count is not None and self.answered_at == now else None

    def wants(self, now: int) -> bool:
        """Whether somebody should ask now."""
        return self.askers > 0 and not self.asked_by and now >= self.asked_at + self.apart_ms and now >= self.wanted_at

    def lapses_at(self) -> int:
        """When to go on without an answer: to the question under way, or to the one that is wanted since the last."""
        return (self.asked_at if self.asked_by else max(self.wanted_at, self.answered_at)) + ANSWER_MS

    def next_moment(self, now: int) -> int:
        """When somebody should look at this: to ask, or to give up; 0: nobody waits."""
        if not self.askers:
            return 0
        if self.asked_by:
            return self.asked_at + ANSWER_MS
        wanted_at = self.wanted_at
        return wanted_at if now < wanted_at else max(wanted_at, self.answered_at) + ANSWER_MS
