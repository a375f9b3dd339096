"""The hourly rows of usage beside the log (rule U5): one value for each hour that is over, with all its sums.

The rows of an hour are written in the transaction that closes it. The hour that is not closed is part of the state.
So a reader takes the state first, and then the rows of earlier hours: no hour is missing, and none counts twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import msgspec

from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.usage import UsageRow
from fleetgate.log.protocol import Log, SideWrite, StoreError

TABLE = "usage"  # part of the store's format, as are its keys and values: the msgpack of the rows, compressed by zlib
KEEP_MS = 400 * 86_400_000
_FAST = 1  # compression to about a quarter: names repeat
_HOURS_AT_ONCE = 240  # read together: a few hundred kilobytes of a busy fleet

_decode = msgspec.msgpack.Decoder(tuple[UsageRow, ...]).decode
_encode = msgspec.msgpack.Encoder().encode


def key_of(hour: int) -> str:
    """The key of an hour, by its number since 1970. Keys sort as their hours do."""
    return f"{hour:06}"


def hour_row(hour: int, rows: Sequence[UsageRow]) -> SideWrite:
    """The value beside the log for an hour that is over."""
    return SideWrite(TABLE, key_of(hour), zlib.compress(_encode(tuple(rows)), _FAST))


def closed_rows(log: Log, low: int, high: int) -> Iterator[tuple[int, UsageRow]]:
    """The rows of the hours from `low` to before `high`, with their hours, the oldest first. Needs no lock."""
    for first in range(low, high, _HOURS_AT_ONCE):
        for key, value in log.side_items(TABLE, key_of(first), key_of(min(first + _HOURS_AT_ONCE, high))):
            try:
                hour, rows = int(key), _decode(zlib.decompress(value))
            except (ValueError, zlib.error, msgspec.MsgspecError) as error:
                raise StoreError(
                    f"the usage of hour {key!r} cannot be read ({error}): run `fleetgate doctor`, and restore a backup"
                ) from error
            for row in rows:
                yield hour, row


def forget_old_rows(log: Log, keep_ms: int) -> bool:
    """Delete some rows of hours that ended before `keep_ms` ago; whether there are more."""
    return log.forget_side_items(TABLE, key_of(max(log.now() - keep_ms, 0) // HOUR_MS))
