"""The constants of the adaptive limit. docs/adaptive-limits.md has the measurements behind them."""

from __future__ import annotations

from typing import Final

FLOOR: Final = 1  # the limit never goes below this
MOST_CEILING: Final = 1_000_000
NEVER: Final = 1 << 60
ANY_SLOTS: Final = 1 << 60  # more slots than any release has: to search `freed` by time alone

# How long a provider may count a call that is over.
MOST_LAG_MS: Final = 3_000  # the longest that is believed, and where the search for the real one begins
USUAL_LAG_MS: Final = 500  # assumed where a longer one would matter little
LONG_MS: Final = 5_000  # it matters little where calls take longer than this
KEPT_MS: Final = MOST_LAG_MS + 1_000  # releases are remembered this long
FRESH_MS: Final = 150  # a provider that counts finished calls at all still counts one that ended this recently
CLEAN: Final = 20  # after this many slots were granted again without trouble, the lag is long enough...
CLEAN_SMALL: Final = 5  # ...in pools of short calls below LARGE after this many, until a lag was refused...
CLEAN_SHORTENED: Final = 80  # ...and after this many where it was shortened: lags vary
LAG_PART: Final = 12  # a shorter lag is looked for while it can shorten a call and its lag by this part

# What proves a level, and for how long.
GRACE_MS: Final = 2_000  # a call that was not refused for this long was accepted
PROOF_MS: Final = 15 * 60_000  # an older proof counts no more than the calls in flight

# When a call is sent.
REORDER_MS: Final = 300  # calls sent closer together than this may arrive in another order
TOGETHER_MS: Final = 50  # calls sent this close together arrive in any order
CALM_MS: Final = 5_000  # while the lag is unknown, an unproven call waits at most this long after the last release
HASTE_MS: Final = 10_000  # an unproven call waits at most this long for a moment at which nothing cools down
SPACING_MS: Final = 250  # between calls at the limit, in pools...
SELDOM_MS: Final = 1_000  # ...that release slots less often than this
SHORT_MS: Final = 1_750  # calls are short if they take less than this on average
SHORT_HASTE_MS: Final = 2_000  # HASTE_MS where calls are short, plus the time of four calls
MOST_HOLD_MS: Final = 10_000  # one call adds at most this to the mean, so one long call does not hide many short ones

# How a large limit is climbed: a part of the proven level is tried before the last try is decided.
LARGE: Final = 12  # slots: below this, one unproven call at a time finds the exact limit soon enough
PART: Final = 3  # a third of what is above it
PACE_MS: Final = 600  # between two tries, divided by the square root of the level: time and refusals grow alike

# What a refusal does.
BLAME_MS: Final = 1_000  # an unproven call sent this recently may be the reason why another call was refused
DROP: Final = (3, 4)  # the part of a level that is left when it is refused although it was proven
MARGIN: Final = 64  # a limit stays this part below a level that was refused
NEAR: Final = 16  # within this part of the limit that was found last: the same limit, met again
WAIT_MS: Final = 1_000  # the pause without a hint; `_wait_ms` takes half of it and a random part of the other half
MOST_WAIT_MS: Final = 30_000
ALONE_WAIT_MS: Final = 2_000
MOST_ALONE_WAIT_MS: Final = 30 * 60_000
LOOK_MS: Final = 10_000  # a usage answer this soon after a cut shows whether a neighbour caused it

# When a call above the limit is tried.
PRICE_S: Final = {"cheap": 27, "normal": 108, "expensive": 1_728}  # what a refused probe costs: seconds of a slot
YOUNG_S: Final = 600  # half a change of the limit in this time is assumed before anything is known
MOVED: Final = 8  # a limit that is found this part away from the one before has moved
STRIDE: Final = 16  # the first step above a limit that turned out to be higher is this part of it; then they double
EXPLORE_MS: Final = 60_000
PATIENCE_MS: Final = 30_000  # how long a probe waits for a quiet moment
