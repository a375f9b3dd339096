"""A plan window: how much of it is used, whom it holds back, and when that ends (rules W1, W2).

Theory of operation
===================

*State.* The provider says how much is used, and when the window resets. Nothing else changes `used`; when the reset has
passed, it counts as zero until the provider speaks of a new window.

*The question.* `opens_at(work_class, now)` answers when work of a class may start. Interactive work is never held back
here. Normal work may use all but the reserve; in the last moments before the reset, the drain, and where
batch work is on, all but the last 2 %.

*Batch work* is on or off. It is switched on when one of these holds:

1. *Behind.* The used part is behind the elapsed part by more than a band.
2. *It lasts.* What is left lasts until the reset even if batch work goes on as fast as it did when it was on before
   (burn.py). So slow agents are never held back, and fast ones use the rest just before the reset.

It is switched off when the used part has caught up with the elapsed part and (2) is far from true, or when what people
need until the reset is all that is left: their share by the reserve, or three times what is used while batch work is
off. What comes after batch work was switched off counts as used in all of this.

*Hysteresis without a flag.* Between two readings `used` stays as it is and time passes. So a pace that is open stays
open, and one that is closed opens at a moment that is known: `pace_opens_at`. Each reading computes it, from what was
true just before. So it follows from the events, and time needs no event of its own. What batch work that was switched
off leaves under way is counted first: it stays off for 4 % of the window, or half of the time that remains.

*After a reset* nothing is known until the next reading. A fleet that can use a window up in less than its time waits
for the band as at the beginning of any window.

*Example.* A window of 5 h with a band of 90 minutes. After 2 h, 8 % are used: batch work is on. It uses 32 % at once,
and 2 % more when its last calls end. That is the pace of 2 h 6 min: batch work stops. It starts again after 3 h 36 min.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetgate.core.entities import BATCH, CLASSES, INTERACTIVE
from fleetgate.core.limits.adaptive_tuning import NEVER
from fleetgate.core.model_names import glob
from fleetgate.core.plans.burn import Burn
from fleetgate.core.plans.reading import FULL, HOUR_MS
from fleetgate.core.pools.parking import ParkingLot
from fleetgate.core.pools.resource import Resource

if TYPE_CHECKING:
    from fleetgate.core.entities import PlanRule
    from fleetgate.core.queue.queue import Queue

_LAST: Final = 200  # of a window, in hundredths of a percent
_WORTH: Final = 300  # less than that is not worth a start of batch work
_PAUSE: Final = 25  # batch work stays off for this part of the window, so that what comes after it is counted
_BURSTS: Final = 3  # people use so much more than on average for a while
_MOST_SAMPLES: Final = 256
_IN_RUN: Final = 1  # the second half of the key of a lot: its queues have calls of runs
SAME_MS: Final = 300_000  # resets that differ by less are the same: they are rounded
_CLOCKS: Final = 20  # so are those that differ by less than this part of the window: the clocks of hosts differ


class PlanWindow(Resource):
    """One window of one account's plan."""

    __slots__ = (
        "account",
        "burn",
        "family",
        "length_ms",
        "pace_opens_at",
        "resets_at",
        "rule",
        "samples",
        "seen_at",
        "used_then",
        "warned",
        "window",
    )

    def __init__(self, account: str, window: str, family: str, rule: PlanRule | None) -> None:
        super().__init__(window_key(account, window), f"{account} {window}")
        self.account = account
        self.window = window
        self.family = family
        self.rule = rule
        self.used_then = 0  # when it was seen last, in hundredths of a percent
        self.resets_at = 0
        self.length_ms = HOUR_MS
        self.seen_at = 0
        self.pace_opens_at = 0  # from when on batch work keeps to the pace; 0: it does
        self.samples: list[tuple[int, int]] = []  # when it was seen and how much was used, in this window
        self.burn = Burn()
        self.warned = False  # it was reported that it runs dry before its reset

    def __repr__(self) -> str:
        return f"<PlanWindow {self.id}: {self.used_then / 100:g} % until {self.resets_at}>"

    # What is used.

    def used(self, now: int) -> int:
        """How much is used, in hundredths of a percent; nothing once it was reset."""
        return self.used_then if now < self.resets_at else 0

    @property
    def starts_at(self) -> int:
        return self.resets_at - self.length_ms

    def concerns(self, model: str) -> bool:
        """Whether calls of a model count in it. `model` is without its provider."""
        return not self.family or glob(self.family, model)

    def observe(self, used: int, resets_at: int, length_ms: int, seen_at: int, now: int) -> None:
        """The provider said this."""
        same = self.is_same(resets_at, now)
        was_on = self._keeps_pace(now)
        is_on = same and was_on
        # Of a new window, all that was used since its beginning is heard of at once.
        before, since = (self.used_then, self.seen_at) if same else (0, resets_at - length_ms)
        since = max(since, self.pace_opens_at) if was_on else since
        if self.seen_at:
            self.burn.hear(used, used - before, since, seen_at, is_on=was_on, length_ms=length_ms)
        if not same:
            self.samples, self.warned = [], False
        self.used_then, self.resets_at, self.length_ms, self.seen_at = used, resets_at, length_ms, seen_at
        self._sample(seen_at, used)
        self.pace_opens_at = self._pace_moment(self.used_then, is_on, now)
        if self.pace_opens_at > now and was_on:
            self.burn.switched_off(used, seen_at)

    def is_same(self, resets_at: int, now: int) -> bool:
        """Whether this reset is that of the window that is known."""
        most_ms = max(SAME_MS, self.length_ms // _CLOCKS)
        return now < self.resets_at and abs(resets_at - self.resets_at) <= most_ms

    def _sample(self, at: int, used: int) -> None:
        """Remember what was used when; of the last hour all, of the time before it the last."""
        samples = self.samples
        samples.append((at, used))
        while len(samples) > 1 and (samples[1][0] <= at - HOUR_MS or len(samples) > _MOST_SAMPLES):
            samples.pop(0)

    def configure(self, rule: PlanRule | None, now: int) -> None:
        """Another rule is in force."""
        if rule != self.rule:
            is_open = self._keeps_pace(now)
            self.rule = rule
            self.pace_opens_at = self._pace_moment(self.used_then, is_open, now)

    # Pace.

    def _keeps_pace(self, now: int) -> bool:
        return self.pace_opens_at <= now

    def _pace_moment(self, used: int, is_on: bool, now: int) -> int:
        """From when on batch work is on if so much is used, given whether it was on until now; 0: it is."""
        moment = self._moment_by_usage(used, is_on, now)
        if is_on and not moment:
            return 0
        off_at = now if is_on else self.burn.off_at
        settled_at = off_at + min(self.length_ms // _PAUSE, max(self.resets_at - off_at, 0) // 2)
        return max(moment, settled_at) if settled_at > now else moment

    def _moment_by_usage(self, used: int, is_on: bool, now: int) -> int:
        """The same by what is used alone."""
        length_ms, left_ms = self.length_ms, max(self.resets_at - now, 0)
        left = FULL - used - self.burn.after
        if left <= self.last_part:
            return self.resets_at
        kept_rate = self._kept_rate
        if left <= kept_rate * left_ms // length_ms:  # people need it; it starts again when they need a quarter of it
            return self.resets_at - left * length_ms // (4 * kept_rate) if left > _WORTH else self.resets_at
        needs_ms = self._needs_ms(left)
        level_at = self.starts_at + (FULL - left) * length_ms // FULL  # when as much has elapsed as is used
        if is_on and (level_at < now or 2 * left_ms <= 3 * needs_ms):
            return 0
        moment, lasts_at = self.starts_at + used * length_ms // FULL + self.band_ms + 1, self.resets_at - needs_ms
        if moment > lasts_at - self.band_ms // 2:
            moment = lasts_at  # otherwise it would be on for a moment only
        return 0 if moment <= now else moment

    def _needs_ms(self, left: int) -> int:
        """How long before the reset batch work starts, to use what is left; while its rate is not known, the drain."""
        rate = self.burn.on_rate(self.length_ms)
        if not rate:
            return self.resets_at - self.drains_at
        return 11 * left * self.length_ms // (10 * rate) + self.length_ms // 50

    @property
    def _kept_rate(self) -> int:
        """What is kept for people, in a whole window: the reserve, or what they use if that is more."""
        reserve = 0 if self.rule is None else self.rule.reserve
        return max(reserve, _BURSTS * self.burn.off_rate(self.length_ms)) if reserve else 1

    @property
    def band_ms(self) -> int:
        """How far behind the pace batch work must be to start: as the rule says, at most three tenths of the window."""
        band_ms = 0 if self.rule is None else self.rule.band_ms
        return min(band_ms, 3 * self.length_ms // 10)

    @property
    def drains_at(self) -> int:
        """From when on what is left is free for normal work: as the rule says, in the last tenth of the window."""
        drain_ms = 0 if self.rule is None else self.rule.drain_ms
        return self.resets_at - min(drain_ms, self.length_ms // 10)

    # Whether work may start.

    def opens_at(self, work_class: str, now: int) -> int:
        """From when on work of a class may start, 0: now."""
        return self._opens_at(work_class, self.used_then, self.pace_opens_at, now)

    def _opens_at(self, work_class: str, used: int, pace_opens_at: int, now: int) -> int:
        rule = self.rule
        if rule is None or work_class == INTERACTIVE:
            return 0
        is_paced = work_class == BATCH and rule.pace
        if now >= self.resets_at:
            waits = is_paced and self.burn.on_rate(self.length_ms) > FULL
            opens_at = self.resets_at + self.band_ms if waits else 0
            return opens_at if opens_at > now else 0
        if used >= FULL - self.last_part:
            return self.resets_at
        if not is_paced:
            if used < FULL - rule.reserve or now >= self.drains_at:
                return 0
            if not rule.pace or pace_opens_at > self.drains_at:
                return self.drains_at
        return pace_opens_at if pace_opens_at > now else 0  # normal work never waits for longer than batch work

    def opens_for_runs_at(self, work_class: str, now: int) -> int:
        """The same for the calls of work that is running: it goes on, but the last part is not for it."""
        closed = self.rule is not None and work_class != INTERACTIVE and self.used(now) >= FULL - self.last_part
        return self.resets_at if closed and now < self.resets_at else 0

    @property
    def last_part(self) -> int:
        """What is left to interactive work to the very end, the drain included."""
        return 0 if self.rule is None else min(_LAST, self.rule.reserve)

    def differs(self, used: int, now: int) -> bool:
        """Whether other work may start if so much were used."""
        pace = self._pace_moment(used, self._keeps_pace(now), now)
        limits = FULL, FULL - self.last_part  # the calls of runs stop at the second
        return any((used < limit) != (self.used_then < limit) for limit in limits) or any(
            (self._opens_at(each, used, pace, now) > now) != (self.opens_at(each, now) > now) for each in CLASSES
        )

    # Parked queues.

    def park(self, queue: Queue, own_limit: int) -> None:
        needed = (CLASSES.index(queue.spec.work_class), _IN_RUN if queue.first().run else 0)
        lot = self.parking.lots.get(needed)
        if lot is None:
            lot = self.parking.lots[needed] = ParkingLot(self.shares)
        lot.add(queue)

    def changes_at(self, now: int) -> int:
        moments = [
            self._lot_opens_at(rank, in_run, now) for (rank, in_run), lot in self.parking.lots.items() if lot.projects
        ]
        return max(min(moments, default=NEVER), now + 1)

    def first_admissible(self, now: int) -> Queue | None:
        best: Queue | None = None
        self.parking.look_at = NEVER
        for lot in self._lots(now):
            first = lot.first()
            if first is not None and (best is None or self.shares.rank(first) < self.shares.rank(best)):
                best = first
        return best

    def first_admissible_of(self, project: str, now: int) -> Queue | None:
        if self.parking.holds_one_project():
            return None
        queues = [queue for lot in self._lots(now) if (queue := lot.of_project(project)) is not None]
        return min(queues, key=self.shares.rank, default=None)

    def _lots(self, now: int) -> list[ParkingLot]:
        """The lots of what may start; `look_at` says when the next one may."""
        found = []
        for (rank, in_run), lot in self.parking.lots.items():
            if not lot.projects:
                continue
            opens_at = self._lot_opens_at(rank, in_run, now)
            if opens_at <= now:
                found.append(lot)
            elif opens_at < self.parking.look_at:
                self.parking.look_at = opens_at
        return found

    def _lot_opens_at(self, rank: int, in_run: int, now: int) -> int:
        """From when on the queues of a lot may start, 0: now."""
        return self.opens_for_runs_at(CLASSES[rank], now) if in_run else self.opens_at(CLASSES[rank], now)


def window_key(account: str, window: str) -> str:
    """The key of its resource. No pool or budget has such a key."""
    return f"plan {account} {window}"
