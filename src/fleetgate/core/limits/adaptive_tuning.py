"""The constants of the adaptive limit, each with its unit and its reason."""

from __future__ import annotations

from typing import Final

NEVER: Final = 1 << 60
MOST_CEILING: Final = 1_000_000  # slots: no provider allows more, and the numbers stay small
FLOOR: Final = 1  # slots: with none, nothing could ever be learned again

# How long a provider may count a call that is over.
BIN_MS: Final = 125  # releases are counted in bins of this width: finer than any lag matters
LAGS: Final = (0, 2, 4, 8, 12, 16, 24)  # bins: the lags that are believed possible, about half as much again each
FIRST_LAG: Final = 2  # index: 500 ms, of which most providers stay below
BINS: Final = LAGS[-1] + 1
CLEAN: Final = 20  # calls: so many accepted ones that a longer lag would have refused speak against it

# How soon a refusal is known.
ECHO_MS: Final = 300  # until one was measured: a round trip and the time a provider takes to refuse
MOST_ECHO_MS: Final = 3_000  # a slower one is a slow program, not a slow network
GRACE_MS: Final = 2_000  # a call that was not refused for this long was accepted
TOGETHER_MS: Final = 50  # calls sent closer together than this arrive in any order
RECENT: Final = 12  # calls whose levels are remembered: as many as are sent within an echo by most pools

# How often the limit moves, until it was seen.
MOVE_MS: Final = 30 * 60_000  # an account that never moves is asked less and less
SIZE: Final = 250  # thousandths of the limit: a quarter
LEAST_SIZE: Final = 20  # thousandths: less is noise, not a move
LEAST_PROOF_MS: Final = 60_000  # a level that was accepted is believed at least so long...
PROOF_MS: Final = 15 * 60_000  # ...and at most so long

# How many refusals a limit that moves is worth (`refusals`).
PROBES: Final = {"cheap": 6, "normal": 3, "expensive": 1}  # calls above the limit between two moves
CROWD: Final = {"cheap": 48, "normal": 96, "expensive": 1 << 30}  # of so many slots one more may be tried at once
CLIMB_MS: Final = 24_000  # a climb that may end with a refusal must win a third of this of the whole pool

# The pause after a refusal, where the provider does not say how long.
WAIT_MS: Final = 1_000  # `_wait_ms` takes half of it and a random part of the other half
MOST_WAIT_MS: Final = 30_000
MOST_ALONE_WAIT_MS: Final = 30 * 60_000  # where the number of calls is not the cause, it may take long
