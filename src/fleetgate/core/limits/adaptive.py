"""The adaptive limit (`adapt`): finds the provider's limit, follows it, and learns how often it moves (rule P4).

Theory of operation
===================

*The problem.* A provider refuses a call when too many are in flight. It does not say how many are allowed, the number
may move, and it goes on counting a finished call for a while (the *lag*). A refusal costs; so does a slot that is free.

*What is believed* (`Belief`). The *level* of a call is how many slots the provider may count when it arrives: those in
flight, those released less than the lag ago, and its own. The limit is between `proven`, the highest level that was
sent and not refused, and `failed`, the lowest that was refused. How often it moves (`move_ms`) and how far (`size`)
are learned from the moves that were seen, as geometric means, because nothing is known about their scale. The lag is
one of seven (`LAGS`). How soon a refusal is known (`echo_ms`) is measured.

*What a success teaches.* A call that was not refused within the echo was accepted, so its level works. `firm` is the
most calls that were accepted at the same time, finished ones not counted: the limit is at least that, whatever the lag.

*What a refusal teaches* (limits/adaptive_verdicts.py). A level that was tried for the first time: the limit is one
less. A level above `firm`: the limit is a little less than was thought. A level that worked before: a longer lag, if
that explains it and too few calls speak against it; else the limit has fallen. Then one call tests a lower level, each
time twice as far down; from the one that works, the pool climbs again, if what it can win is worth a refusal.

*How it climbs.* Calls that try one level more are an echo apart, so that a refusal of one can stop the next; in large
pools a part of the level is tried within an echo, so the level grows by a constant factor, and a limit of 400 is in use
within a minute. Near a level that was refused it goes slowly again.

*When a probe is worth its price.* A limit that moves is missed for half the time between two probes on average; a probe
costs a refusal if nothing has moved. So there are `PROBES` probes between two moves, fewer where moves are small. The
longer nothing moves, the longer the limit is expected to stay, so one that never moves is hardly ever probed.

*Why it is right.* The limit cannot stay too low: probes go on until the ceiling; nor too high: every refusal is
explained or lowers it, once an incident. All follows events, so every replica believes the same (decisions/0006).
"""

from __future__ import annotations

from math import isqrt

from fleetgate.core.limits.adaptive_neighbours import follow_count
from fleetgate.core.limits.adaptive_state import Belief
from fleetgate.core.limits.adaptive_tuning import (
    BIN_MS,
    BINS,
    CLEAN,
    CLIMB_MS,
    CROWD,
    FIRST_LAG,
    FLOOR,
    GRACE_MS,
    LAGS,
    LEAST_PROOF_MS,
    LEAST_SIZE,
    MOST_CEILING,
    MOST_ECHO_MS,
    NEVER,
    PROBES,
    PROOF_MS,
    RECENT,
    SIZE,
)
from fleetgate.core.limits.adaptive_verdicts import (
    explaining_lag,
    is_blurred,
    is_bold,
    lag_costs,
    levels_at,
    verdict_on,
)
from fleetgate.core.limits.policy import Verdict


class AdaptiveLimit:
    """The policy of one pool."""

    __slots__ = ("belief", "cap", "ceiling", "crowd", "fixed_lag_ms", "lag_ms", "limit", "probes")

    def __init__(self, belief: Belief | None = None) -> None:
        self.belief = Belief() if belief is None else belief
        self.cap = self.ceiling = 1
        self.fixed_lag_ms: int | None = None
        self.probes = PROBES["normal"]
        self.crowd = CROWD["normal"]
        self.derive()

    def configure(self, cap: int, explore: bool, fixed_lag_ms: int | None, refusals: str = "normal") -> None:
        """Take over what a person set: cap, whether it may be exceeded, a fixed cooldown, the price of a refusal."""
        self.cap = cap
        self.ceiling = MOST_CEILING if explore else cap
        self.fixed_lag_ms = fixed_lag_ms
        self.probes = PROBES[refusals]
        self.crowd = CROWD[refusals]
        self.derive()

    def derive(self) -> None:
        """Work out what every decision needs from cap and belief."""
        belief = self.belief
        self.limit = min(belief.limit or self.cap, self.ceiling)
        self.lag_ms = LAGS[belief.lag] * BIN_MS if self.fixed_lag_ms is None else self.fixed_lag_ms
        if self.ceiling == 1 and self.fixed_lag_ms is None and not belief.lag_known:
            self.lag_ms = 0  # one call after another would wait each time: no lag before a refusal shows one

    @property
    def reduced(self) -> bool:
        """Whether refusals hold the limit below the cap."""
        return self.limit < self.cap

    @property
    def proof_ms(self) -> int:
        """How long an accepted level is believed: the more often the limit moves, the shorter."""
        return min(max(self.belief.move_ms // 8, LEAST_PROOF_MS), PROOF_MS)

    def proven(self, live: int, now: int) -> int:
        """The level that may be used at once; an old one is worth no more than what is live."""
        belief = self.belief
        return belief.proven if now < belief.proven_at + self.proof_ms else min(belief.proven, live)

    # Queries.

    def admits(self, level: int, limit: int, now: int, live: int = 0) -> bool:
        """Whether an admission that brings the pool to `level` may be made now."""
        return self.admits_at(level, limit, now, live) <= now

    def admits_at(self, level: int, limit: int, now: int, live: int = 0) -> int:
        """From when on it may, if nothing else happens; NEVER: only after something else has happened."""
        if level > limit:
            if self.limit >= self.ceiling or level > self.limit + 1 or limit < self.limit:
                return NEVER
            at = self.probe_at()
            if at and live < self.belief.firm:  # rather when as many calls are in flight as ever
                at = max(at, self.belief.next_probe + self.belief.patience_ms)
            return at or NEVER
        if level <= FLOOR:
            return 0
        belief = self.belief
        if level <= belief.proven and (level <= live or now < belief.proven_at + self.proof_ms):
            if level < limit:
                return 0
            wait_ms = belief.release_ms // 4  # a refusal of the last call should be able to arrive first
            return belief.sent_at + (wait_ms if wait_ms < belief.echo_ms else belief.echo_ms)
        if belief.test and belief.unproven:
            return NEVER
        return belief.tried_at + self.spacing_ms(level)

    def spacing_ms(self, level: int) -> int:
        """Between two calls that each try one level more: so few are under way that few are refused."""
        belief = self.belief
        if self.crowd > MOST_CEILING and belief.unproven:
            return GRACE_MS
        at_once = max(level // self.crowd, 2 if level >= 16 else 1)
        if belief.failed > level:  # between what works and what was refused: the nearer, the slower
            at_once = min(at_once, (belief.failed - level) * 4 // self.crowd)
        return belief.echo_ms // at_once if at_once > 1 else belief.echo_ms

    def probe_at(self) -> int:
        """When a call above the limit is admitted; 0: only after something else has happened."""
        belief = self.belief
        if belief.unproven or self.limit >= self.ceiling:
            return 0
        return max(belief.next_probe, belief.sent_at + belief.echo_ms)

    @property
    def lag_is_learned(self) -> bool:
        """Whether the lag rests on experience."""
        return self.belief.lag != FIRST_LAG

    @property
    def accepted_at(self) -> int:
        """When the unproven call counts as accepted if no refusal arrives; 0: there is none."""
        return self.belief.tried_at + GRACE_MS if self.belief.unproven else 0

    def verdict(self, ident: str, limit: int, now: int, sent_at: int = 0, live: int = 1) -> Verdict:
        """What it means that the provider refused this call."""
        return verdict_on(self, ident, sent_at or now, live)

    # What happened.

    def admitted(self, ident: str, level: int, now: int, live: int = 0) -> None:
        belief = self.belief
        if now >= belief.proven_at + self.proof_ms:
            belief.proven = min(belief.proven, live)
            belief.firm = min(belief.firm, live)
            belief.recent = []
        bold = level > belief.proven
        if bold or (level > self.limit and not belief.unproven):
            belief.unproven = ident
            belief.tried_at, belief.tried = now, level
            belief.probing = level > self.limit
            belief.test = belief.cuts > 0 and not belief.probing
            if bold and not belief.probing:
                belief.proven, belief.proven_at = level, now
        elif level >= belief.proven:
            belief.proven_at = now
        belief.sent_at = now
        if not belief.moved_at:
            belief.moved_at = now
        if level * 4 >= min(self.limit, belief.proven) * 3:
            self._remember(level, now, live, bold)

    def _remember(self, level: int, now: int, live: int, bold: bool) -> None:
        """Note the level of a call for each lag. What was sent an echo ago was accepted."""
        belief = self.belief
        recent = belief.recent
        while recent and (len(recent) >= RECENT or recent[0][0] <= now - belief.echo_ms):
            if recent[0][0] > belief.last_at:
                self._accept_levels(recent[0])
            del recent[0]
        levels = [now, int(bold)]
        self.shift_bins(now)
        bins, total, first = belief.bins, live + 1, 0
        for lag in LAGS:
            while first < lag:
                total += bins[first]
                first += 1
            levels.append(total)
        levels[belief.lag + 2] = level
        recent.append(levels)

    def _accept_levels(self, levels: list[int]) -> None:
        belief = self.belief
        if levels[2] > belief.firm:
            belief.firm = levels[2]
        if levels[belief.lag + 2] >= self.limit:
            belief.clean[belief.lag] += 1
            if belief.clean[belief.lag] >= CLEAN << belief.lag_fails and lag_costs(self):
                belief.lag_before = belief.lag  # try a shorter one
                belief.lag -= 1
                belief.clean = [0] * len(LAGS)
                self.derive()
                return
            most = max(belief.firm, self.limit)
            for lag in range(belief.lag + 1, len(LAGS)):
                if levels[lag + 2] > most:
                    belief.clean[lag] += 1

    def shift_bins(self, now: int) -> None:
        """Bring the bins of releases up to now."""
        belief = self.belief
        number = now // BIN_MS
        passed = number - belief.bin_at
        if passed:
            belief.bin_at = number
            if passed >= BINS:
                belief.bins = [0] * BINS
            else:
                belief.bins = [0] * passed + belief.bins[: BINS - passed]

    def accepted(self, ident: str, now: int) -> None:
        """The provider accepted the call that tried one level more."""
        belief = self.belief
        if belief.unproven != ident or not ident:
            return
        belief.unproven = ""
        belief.in_a_row = 0
        level, probing = belief.tried, belief.probing
        belief.probing = False
        if belief.cuts:
            belief.cuts, belief.test, belief.blurred = 0, False, False
            self._climb(now)
        belief.proven, belief.proven_at = max(belief.proven, level), now
        if probing:
            self._works_again(level, now)
        elif level >= self.limit:
            self._settle(now)
        self.derive()

    def _climb(self, now: int) -> None:
        """After a drop a level works: go on up to the one that was refused, if that is worth a refusal."""
        belief = self.belief
        failed = belief.failed
        if failed - 1 > self.limit:
            gain_ms = (failed - self.limit) * self._stays_ms(now) // (2 * self.limit)
            if gain_ms * self.probes > CLIMB_MS + belief.pause_ms:
                belief.limit = failed - 1
                self.derive()

    def _works_again(self, level: int, now: int) -> None:
        """A level above the limit was accepted: the limit has risen, if there were more calls than ever before."""
        belief = self.belief
        levels = levels_at(self, belief.tried_at, NEVER)
        if levels[2] <= belief.firm:  # or else finished calls were no longer counted
            belief.limit = level
            belief.failed = 0
            self.derive()
            self.plan_probe(now)
            belief.next_probe = now + belief.patience_ms
            self._explore(level, now)
            return
        belief.moved_from = belief.moved_from or self.limit
        belief.failed = belief.base = belief.base_more = 0
        if level >= self.cap:
            belief.limit = level
        elif level < belief.good:
            belief.limit = belief.good
        else:
            belief.limit = 0
        belief.good = 0
        self.derive()
        self.plan_probe(now)
        self._explore(level, now)

    def _explore(self, level: int, now: int) -> None:
        """A person allowed the limit to grow above the cap: one more each minute."""
        if level >= self.cap:
            self.belief.next_probe, self.belief.patience_ms = now + LEAST_PROOF_MS, 0

    # Moves of the limit.

    def _stays_ms(self, now: int) -> int:
        """How long the limit stays, by all that was seen; the longer it has stayed, the longer it will."""
        belief = self.belief
        return max(belief.move_ms, now - belief.moved_at)

    def plan_probe(self, now: int) -> None:
        """The best time for the next call above the limit: what probes cost and what late ones lose is least."""
        belief = self.belief
        size = max(belief.size, 1000 // self.limit)
        interval_ms = self._stays_ms(now) * isqrt(SIZE * 10_000 // size) // (100 * self.probes) + 4 * belief.pause_ms
        belief.patience_ms = interval_ms // 8
        belief.next_probe = now + interval_ms

    def _settle(self, now: int) -> None:
        """The limit is found: learn from the move that ends here."""
        belief = self.belief
        belief.base = belief.base_more = 0
        before = belief.moved_from
        if before:
            belief.moved_from = 0
            size = abs(self.limit - before) * 1000 // max(min(self.limit, before), 1)
            if size >= LEAST_SIZE:
                belief.move_ms = isqrt(belief.move_ms * max(now - belief.moved_at, 1_000))
                belief.size = isqrt(belief.size * min(size, 2_000))
                belief.moved_at = now
        self.plan_probe(now)
        self._explore(self.limit, now)

    def refused(
        self, ident: str, verdict: Verdict, now: int, sent_at: int = 0, live: int = 1, pause_ms: int = 0
    ) -> None:
        belief = self.belief
        belief.pause_ms = pause_ms
        why = verdict.why
        sent_at = sent_at or now
        if sent_at < now:
            took_ms = min(now - sent_at, MOST_ECHO_MS)
            belief.echo_ms += took_ms - belief.echo_ms if took_ms > belief.echo_ms else (took_ms - belief.echo_ms) // 8
        if why == "fit":
            belief.rejected_calls += 1
            if belief.unproven == ident:
                belief.unproven, belief.probing = "", False
            if verdict.limit < self.limit:
                belief.limit = verdict.limit
                belief.proven = min(belief.proven, verdict.limit)
                belief.failed = verdict.limit + 1
                self.derive()
            return
        levels = levels_at(self, sent_at, live)
        lag = explaining_lag(self, levels)
        belief.incident += 1
        belief.in_a_row += 1
        belief.rejected_calls = 1
        for each in belief.recent:
            if belief.last_at < each[0] < sent_at:
                self._accept_levels(each)
        belief.last_why, belief.last_level, belief.last_at = why, verdict.level, now
        if belief.unproven == ident or is_bold(belief, ident, sent_at):
            belief.unproven, belief.probing = "", False
        if why == "alone":
            return
        if why == "drop":
            self._drop(verdict, now)
        elif why == "lag":
            if belief.lag < belief.lag_before:
                belief.lag, belief.lag_before = belief.lag_before, 0
                belief.lag_fails = min(belief.lag_fails + 3, 16)
            elif self.lag_ms or belief.lag_known:
                belief.lag_before = belief.lag_before or belief.lag
                belief.lag = lag or min(belief.lag + 1, len(LAGS) - 1)
            belief.lag_known = True
            belief.clean = [0] * len(LAGS)
        else:
            belief.failed = verdict.level
            if why == "exact":
                belief.limit = verdict.limit
                belief.proven = min(belief.proven, verdict.limit)
                belief.firm = min(belief.firm, verdict.limit)
                belief.clean = [0] * len(LAGS)
                self.derive()
                self._settle(now)
            else:
                self.plan_probe(now)
        self.derive()

    def _drop(self, verdict: Verdict, now: int) -> None:
        belief = self.belief
        if belief.lag_before and belief.clean[belief.lag] < CLEAN:  # this refusal disproves the guess
            if belief.lag < belief.lag_before:
                belief.lag_fails = min(belief.lag_fails + 3, 16)
            belief.lag = belief.lag_before
        belief.lag_before = 0
        blurred = is_blurred(self, verdict.level)
        if not belief.cuts and not blurred:
            belief.moved_from = belief.moved_from or self.limit
            belief.good = self.limit
        belief.blurred = blurred
        belief.cuts += 1
        belief.clean = [0] * len(LAGS)
        belief.limit, belief.proven = verdict.limit, 0
        belief.firm = 0
        belief.failed = verdict.limit + 1 if blurred else verdict.level
        self.derive()
        self.plan_probe(now)

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        belief = self.belief
        if belief.unproven == ident:
            if outcome == "ok":
                self.accepted(ident, now)
            else:
                belief.unproven, belief.probing = "", False
        if outcome == "rate_limited":
            return  # the provider never counted it
        if belief.in_a_row and outcome == "ok":
            belief.in_a_row = 0
        if belief.freed_at:
            gap_ms = now - belief.freed_at
            gap_ms = gap_ms if gap_ms < 60_000 else 60_000
            belief.release_ms += (gap_ms - belief.release_ms) // 16 if belief.release_ms else gap_ms
        belief.freed_at = now
        self.shift_bins(now)
        belief.bins[0] += slots

    def answered(self, count: int | None, now: int, ours: int = 0, asked_at: int = 0) -> None:
        """The provider's own count, asked when we had `ours` in flight."""
        follow_count(self, count, now, ours, asked_at)

    def sync_calls(self, live: dict[str, int], now: int) -> None:
        """Synchronise with the leases that exist: the unproven call may no longer need the pool."""
        if self.belief.unproven not in live:
            self.belief.unproven, self.belief.probing = "", False

    def forgive(self) -> None:
        """A person set the cap: undo what refusals did to the limit; what was reached stays."""
        belief = self.belief
        belief.limit = belief.good = belief.next_probe = belief.moved_from = belief.cuts = 0
        belief.base = belief.base_more = 0
        belief.failed = 0
        belief.last_why = ""
        self.derive()
