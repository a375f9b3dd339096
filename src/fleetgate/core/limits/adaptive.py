"""The adaptive limit (`adapt`): finds the provider's limit and follows it, at nearly no rate limits (rule P4).

Theory of operation
===================

*The problem.* A provider refuses a call when too many are in flight, but does not say how many are allowed, and the
number may change. Each refusal costs, so the limit should be found with about one, however many calls are waiting.

*What is believed.* Four things (limits/adaptive_state.py): the limit, between the highest level that was accepted
(*proven*) and the lowest that was refused; how often the limit moves (limits/adaptive_pace.py); how long the provider
counts a call that is over, the *lag* (limits/adaptive_lag.py); and which calls in flight may still be refused. All of
it changes only in `admitted`, `accepted`, `refused`, `released`, `answered`, `sync_calls` and `forgive`, which follow
events, so that every replica of the log believes the same (docs/decisions/0006).

*The level* of a call is how many slots the provider may count when the call arrives: those in flight, those released
less than the lag ago, and its own.

*When a call may go* (`admits_at`):

- Up to the proven level: at once. After a refusal, only up to what was accepted since; above that at a pace, so that
  a pause is not followed by a burst.
- Above it, within the limit: one at a time, at a moment at which a refusal would mean something: nothing is cooling
  down, and nothing was sent just before. After 10 s it goes anyway. From 12 on, a part of the level is tried at
  a pace instead (limits/adaptive_levels.py).
- Above the limit: one *probe* now and then, while the limit is below the ceiling (limits/adaptive_pace.py).
- Where calls are short (under 1.75 s on average) there is no quiet moment. There the pool climbs in *rounds*: all wait
  until nothing cools down, then as many as are proven go at once, and one more.

*What a success teaches.* A call is accepted when its answer begins, when it ends well, or after 2 s without a refusal.
Then the proven level is its level, and the next call may try one more. A probe that is accepted says that the limit has
risen, but not how far: the limit is raised in strides that double.

*What a refusal teaches.* It starts an *incident* (`epoch` + 1) and is judged once (limits/adaptive_verdicts.py). A
refused level that was not proven is one too many. A level near the limit that was found before is that limit, met
again. Otherwise a proven level that is refused means that the limit has fallen, unless the lag was just shortened.
Further refusals of calls that were sent before belong to the same incident: they can fit the limit to what was
accepted, but never cut it again.

*When a probe is worth its price.* A refused probe costs what the owner of the account says. A limit that has risen
unnoticed costs slots. The time between probes balances the two by how often the limit has moved so far.

*Why it is right.* In small pools one call is uncertain at a time, in large ones about as many as are sent in the time
of an answer. A cut is never repeated for calls that were in flight when it was made, because their epoch is older. The
limit cannot stay too low, because probes continue until the ceiling is reached; it cannot stay too high, because
every refusal is either explained (probe, alone, lag) or lowers it. An explanation by lag is a guess: the next refusal
is not explained by it.

*Example.* The cap is 16, the provider allows 8. Calls 1 to 8 go one after another, each after the one before was
accepted: proven 1, 2, ... 8. The ninth is refused: `exact`, limit 8. From now on eight calls go at once whenever
slots are free. Eight minutes later a probe at level 9 is refused: `probe`, limit 8, and the next one comes later. If
the provider then drops to 4, a call at the proven level 8 is refused: `drop`, limit 6, nothing is proven. At level 6 a
call is refused again: limit 4. That is accepted, and the climb tries 5, just below the 6 that was refused: `exact`,
limit 4. When the provider allows 8 again, a probe at 5 is accepted, and the limit rises to 6, 8 and 12, where 9 is
refused.
"""

from __future__ import annotations

from bisect import bisect_right
from math import isqrt

from fleetgate.core.limits.adaptive_lag import ghosts_at, lag_of, lengthen, shorten
from fleetgate.core.limits.adaptive_levels import prove, tried
from fleetgate.core.limits.adaptive_pace import plan_probe, rise, settle
from fleetgate.core.limits.adaptive_state import Belief, Call
from fleetgate.core.limits.adaptive_tuning import (
    ANY_SLOTS,
    CALM_MS,
    CLEAN,
    CLEAN_SMALL,
    FLOOR,
    FRESH_MS,
    GRACE_MS,
    HASTE_MS,
    KEPT_MS,
    LOOK_MS,
    MOST_CEILING,
    MOST_HOLD_MS,
    MOST_LAG_MS,
    NEVER,
    PACE_MS,
    PATIENCE_MS,
    PROOF_MS,
    REORDER_MS,
    SELDOM_MS,
    SHORT_HASTE_MS,
    SHORT_MS,
    SPACING_MS,
    STRIDE,
    USUAL_LAG_MS,
)
from fleetgate.core.limits.adaptive_verdicts import verdict_on
from fleetgate.core.limits.policy import REFUSED, Verdict


class AdaptiveLimit:
    """The policy of one pool."""

    __slots__ = ("belief", "cap", "ceiling", "fixed_lag_ms", "gated", "lag_ms", "limit", "refusals")

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = Belief() if belief is None else belief
        self.cap = self.ceiling = 1
        self.fixed_lag_ms: int | None = None
        self.gated, self.refusals = False, "normal"
        self._derive()

    def configure(
        self, cap: int, explore: bool, fixed_lag_ms: int | None, gated: bool = False, *, refusals: str = "normal"
    ) -> None:
        """Take over what a person set: cap, whether it may be exceeded, a fixed cooldown, a usage gate, a price."""
        self.cap = cap
        self.gated, self.refusals = gated, refusals
        self.ceiling = MOST_CEILING if explore else cap
        self.fixed_lag_ms = fixed_lag_ms
        self._derive()

    def _derive(self) -> None:
        """Work out what every decision needs from cap and belief."""
        belief = self.belief
        self.limit = min(belief.limit or self.cap, self.ceiling)
        self.lag_ms = lag_of(self)

    @property
    def reduced(self) -> bool:
        """Whether refusals hold the limit below the cap."""
        return self.limit < self.cap

    def proven(self, live: int, now: int) -> int:
        """The level that is proven now; an old proof is worth no more than what is live."""
        belief = self.belief
        return belief.proven if now < belief.proven_at + PROOF_MS else min(belief.proven, live)

    @property
    def busy(self) -> bool:
        """Whether on average more than two slots were released within the lag: then there is never a quiet moment.

        A shorter lag that was set by hand makes no moment quieter: what was sent may still be on its way.
        """
        return self.belief.gap_ms * 2 < max(self.lag_ms, USUAL_LAG_MS) * 16

    # Queries.

    def admits(
        self, level: int, limit: int, now: int, live: int = 0, cooling: int = 0, *, counted: bool = False
    ) -> bool:
        """Whether an admission that brings the pool to `level` may be made now; `counted`: the provider said so."""
        return self.admits_at(level, limit, now, live, cooling, counted) <= now

    def admits_at(
        self, level: int, limit: int, now: int, live: int = 0, cooling: int = 0, counted: bool = False
    ) -> int:
        """From when on it may, if nothing else happens; NEVER: only after something else has happened."""
        if level > limit:
            if self.limit >= self.ceiling or level > self.limit + 1 or limit < self.limit:
                return NEVER
            return self.probe_at() or NEVER
        if level <= FLOOR:
            return 0
        belief = self.belief
        if level <= belief.proven and (now < belief.proven_at + PROOF_MS or level <= live):  # an old proof is none
            moment = 0
            if level > belief.proven - belief.ahead and level > tried(belief):
                pace_ms = 4 * PACE_MS if belief.settled else PACE_MS
                moment = belief.tried_at + pace_ms // isqrt(level)
            elif level > belief.since and belief.last_at:
                moment = belief.since_at + PACE_MS // isqrt(level)
            if (
                level >= limit and belief.gap_ms >= SELDOM_MS * 16
            ):  # a refusal of the last call must be able to arrive first
                moment = belief.sent_at + SPACING_MS
            return max(moment, self._round_until(now)) if cooling and belief.hold_ms < SHORT_MS else moment
        if belief.unproven:
            return NEVER
        if counted:
            return belief.sent_at + REORDER_MS
        if self.short:
            return self._in_round_at(level, cooling, now)
        if self.busy:
            return 0
        at_last = belief.tried_at + HASTE_MS
        return at_last if cooling else min(at_last, self._calm_at(level))

    def _in_round_at(self, level: int, cooling: int, now: int) -> int:
        """From when on an unproven call is sent where calls are short: with its round, or after a while."""
        belief = self.belief
        at_last = belief.tried_at + SHORT_HASTE_MS + 4 * belief.hold_ms
        if cooling and (level > 2 * belief.firm + 2 or not self._fresh(now)):
            return at_last
        return 0 if now == belief.sent_at else min(at_last, self._heard_at())

    @property
    def short(self) -> bool:
        """Whether calls are so short that something cools down nearly always."""
        return self.belief.hold_ms < SHORT_MS

    def _round_until(self, now: int) -> int:
        """Where calls are short: until when calls of a proven level wait too, so that all are sent at once.

        Only for a while after an unproven call: a round later there was another, or no higher level is needed.
        """
        belief = self.belief
        if belief.proven >= self.limit or self._fresh(now):
            return 0
        return belief.tried_at + self.lag_ms + 4 * belief.hold_ms

    def _fresh(self, now: int) -> bool:
        """Whether the provider certainly still counts everything that cools down."""
        freed = self.belief.freed
        first = bisect_right(freed, (now - self.lag_ms, ANY_SLOTS))
        return first == len(freed) or freed[first][0] >= now - FRESH_MS

    def _heard_at(self) -> int:
        """When nothing that was sent can still be refused; 0: all of it was accepted."""
        belief = self.belief
        return 0 if all(call.decided for call in belief.calls.values()) else belief.sent_at + REORDER_MS

    def _calm_at(self, level: int) -> int:
        """When a refusal would mean most: what was sent has arrived, and no finished call is counted any more."""
        belief = self.belief
        arrived = belief.sent_at + REORDER_MS
        if belief.clean >= CLEAN or self.fixed_lag_ms is not None:
            return arrived
        return max(arrived, min(belief.freed_at + MOST_LAG_MS, belief.tried_at + min(CALM_MS, 60_000 // level)))

    def probe_at(self) -> int:
        """When a call above the limit is admitted; 0: only after something else has happened."""
        belief = self.belief
        if belief.unproven or self.limit >= self.ceiling:
            return 0
        quiet = max(1_000, 2 * self.lag_ms)
        at_last = min(belief.freed_at + quiet, belief.next_probe + PATIENCE_MS)
        return max(belief.next_probe, at_last, belief.sent_at + REORDER_MS)

    @property
    def lag_is_learned(self) -> bool:
        """Whether the lag rests on experience: it was lengthened, or slots were granted again without trouble."""
        return self.belief.lag_at > 0 or self.belief.clean >= CLEAN

    @property
    def accepted_at(self) -> int:
        """When the unproven call counts as accepted if no refusal arrives; 0: there is none."""
        call = self.belief.calls.get(self.belief.unproven)
        return call.at + GRACE_MS if call is not None else 0

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        """What it means that the provider refused this call."""
        return verdict_on(self, ident, now)

    # What happened.

    def admitted(self, ident: str, level: int, now: int, live: int = 0, *, counted: bool = False) -> None:
        belief = self.belief
        if not belief.began_at:
            belief.began_at = now
        if now >= belief.proven_at + PROOF_MS:
            belief.proven, belief.ahead = self.proven(live, now), 0
        # A probe counts though its level is proven from before the cap was lowered.
        bold = level > belief.proven or (self.limit < level and self.limit < self.ceiling and not belief.unproven)
        if bold or (belief.ahead and level == belief.proven and not belief.unproven):
            belief.unproven = ident
            belief.probing = level > self.limit
        if bold or level > belief.proven - belief.ahead:
            if bold or level > tried(belief):
                belief.tried_at, belief.tried = now, level
            bold = True
        if level > belief.since:
            belief.since_at = now
        ghosts, age = (0, 0) if counted else ghosts_at(self, now)
        belief.calls[ident] = Call(belief.epoch, level, now, bold, ghosts, age, False, False, live + 1)
        belief.sent_at = now

    def accepted(self, ident: str, now: int) -> None:
        call = self.belief.calls.get(ident)
        if call is not None and not call.decided:
            self._learn_acceptance(call, ident, now)

    def _learn_acceptance(self, call: Call, ident: str, now: int) -> None:
        """The provider accepted a call; learn from it once."""
        belief = self.belief
        call.decided = True
        probing = False
        if belief.unproven == ident:
            probing = belief.probing
            belief.unproven, belief.probing = "", False
        if call.epoch != belief.epoch:
            return
        level = call.level
        belief.in_a_row = 0
        if level > belief.since:
            belief.since = level
        if call.ghosts and level >= self.limit:
            belief.clean += 1
            if belief.clean >= CLEAN_SMALL and now >= belief.lag_at + 2 * belief.lag_ms:
                shorten(self, now)
                self._derive()
        if call.live > belief.firm:
            belief.firm = call.live
        if level >= belief.proven - belief.ahead:
            belief.proven_at = now
            prove(self, level)
        elif not probing:
            return
        if not call.bold:
            return
        if probing or level >= (belief.failed or NEVER) or (belief.stride and level >= self.limit):
            rise(self, level, probing, now)
        self._derive()

    def refused(self, ident: str, verdict: Verdict, now: int) -> None:
        """The provider refused a call. What that means was decided; every replica learns the same from it."""
        belief = self.belief
        call = belief.calls.get(ident)
        why = verdict.why
        if call is not None:
            call.decided = call.refused = True
        if belief.unproven == ident or why != "fit":
            belief.unproven, belief.probing = "", False
        belief.rejected = [*belief.rejected[-31:], now if call is None else call.at]
        if why == "fit":
            if verdict.limit < self.limit:
                belief.limit = self.limit = verdict.limit
            return
        belief.epoch += 1
        belief.since = 0
        belief.in_a_row += 1
        belief.rejected = belief.rejected[-1:]
        if why == "drop" and belief.last_why == "lag" and belief.clean < CLEAN:
            belief.lag_low = 0
        first = not belief.last_at and not belief.lag_at
        belief.last_why, belief.last_level, belief.last_at = why, verdict.level, now
        if why == "probe":
            belief.failed = 0
            plan_probe(self, now)
        elif why == "lag":
            lengthen(belief, 0 if first else self.lag_ms, now)
            if first:  # the levels were those of another lag
                belief.proven = belief.ahead = 0
        elif why == "exact" or why == "again":
            self._remember()
            belief.again = min(belief.again + 1, 2) if why == "again" else belief.again
            known = belief.proven - belief.ahead
            belief.failed, belief.limit, belief.ahead, belief.stride = verdict.level, verdict.limit, 0, 0
            belief.proven = 0 if why == "again" or verdict.level <= belief.settled else min(known, verdict.limit)
            belief.firm = min(belief.firm, verdict.limit)
            settle(belief, verdict.limit)
            plan_probe(self, now)
        elif why == "drop":
            self._remember()
            belief.again = 0
            belief.limit, belief.failed, belief.proven, belief.firm = verdict.limit, verdict.level, 0, 0
            belief.ahead, belief.stride = 0, max(1, verdict.limit // STRIDE)
            plan_probe(self, now)
        self._derive()

    def _remember(self) -> None:
        """Remember what is believed before a cut, to restore it if the provider's own count shows a neighbour."""
        belief = self.belief
        if not self.gated:
            return
        belief.before = (self.limit, belief.proven)
        belief.failed_before, belief.probe_before = belief.failed, belief.next_probe

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        belief = self.belief
        call = belief.calls.pop(ident, None)
        if call is not None and not call.decided and outcome == "ok":
            self._learn_acceptance(call, ident, now)
        if belief.unproven == ident:
            belief.unproven, belief.probing = "", False
        if call is None or outcome in REFUSED:
            return  # the provider never counted it
        if outcome == "ok":
            hold_ms = now - call.at
            belief.hold_ms += ((hold_ms if hold_ms < MOST_HOLD_MS else MOST_HOLD_MS) - belief.hold_ms) // 8
            if not belief.lag_at:
                self.lag_ms = lag_of(self)  # what is assumed depends on how long calls take
        if belief.freed_at:
            gap_ms = now - belief.freed_at
            belief.gap_ms += ((gap_ms if gap_ms < 60_000 else 60_000) * 16 - belief.gap_ms) // 16
        belief.freed_at = now
        freed, old = belief.freed, now - KEPT_MS
        freed.append((now, slots))
        if freed[0][0] <= old:
            if freed[1][0] > old:
                del freed[0]
            else:
                del freed[: bisect_right(freed, (old, ANY_SLOTS))]

    def answered(self, count: int | None, now: int, asked_at: int) -> None:
        """Learn from the calls of neighbours, which the provider counts and took: its limit is not below them."""
        belief = self.belief
        if count is None:
            return
        ours = len(belief.calls) + sum(slots for at, slots in belief.freed if at > now - KEPT_MS)
        limit, proven = belief.before
        if limit and asked_at >= belief.last_at:  # the first answer after a cut
            belief.before = (0, 0)
            if count >= limit and count > ours and now < belief.last_at + LOOK_MS:
                # A neighbour took the slot: undo the cut.
                belief.limit, belief.proven = limit, proven
                belief.failed, belief.next_probe = belief.failed_before, belief.probe_before
                belief.last_why = "neighbour"
                self._derive()
        if not belief.calls and count - ours > self.limit:  # or nothing would be sent until the neighbours have gone
            belief.limit, belief.stride = min(count - ours, self.ceiling), 0
            if belief.failed <= belief.limit:
                belief.failed = 0
            self._derive()

    def sync_calls(self, live: dict[str, int], now: int) -> None:
        """Synchronise with the leases that exist: some are older than this policy, some no longer need the pool."""
        belief = self.belief
        if live.keys() != belief.calls.keys():
            level = sum(live.values())
            new = {ident: Call(belief.epoch, level, now, False, 0, 0, decided=True) for ident in live}
            belief.calls = {ident: belief.calls.get(ident, call) for ident, call in new.items()}
            if belief.unproven not in live:
                belief.unproven, belief.probing = "", False

    def forgive(self) -> None:
        """A person set the cap: undo what refusals did to the limit; what was proven stays."""
        belief = self.belief
        belief.limit = belief.failed = belief.next_probe = belief.stride = 0
        belief.last_why = ""
        self._derive()
