"""Events as the logs keep them: a JSON array for each commit, which people and other tools can read.

The decoder is built when the first commit is read, since building it takes longer than all else that a start
from a fresh snapshot does here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fleetgate.core.events import Event
from fleetgate.log.protocol import StoreError

encode = msgspec.json.Encoder().encode
_decode: Callable[[str | bytes], list[Event]] | None = None


def decode(number: int, events: str | bytes) -> list[Event]:
    """The events of commit `number`."""
    global _decode
    if _decode is None:
        _decode = msgspec.json.Decoder(list[Event]).decode
    try:
        return _decode(events)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"commit {number} of the store holds an event that this version does not know ({error}): upgrade fleetgate"
        ) from error
    except msgspec.DecodeError as error:
        raise StoreError(
            f"commit {number} of the store is damaged ({error}): run `fleetgate doctor`, or restore a backup"
        ) from error
