"""Random bytes for ids. Asking the system costs more than the id: a process asks for many at once.

The rest is dropped when the process forks, because parent and child must not use the same bytes. Not for secrets,
which are read from the system one by one.
"""

from __future__ import annotations

import os

_MANY = 4096

_bytes = b""
_used = 0


def random_bytes(number: int) -> bytes:
    """This many random bytes, each given out once."""
    global _bytes, _used
    start, _used = _used, _used + number
    if _used > len(_bytes):
        _bytes, start, _used = os.urandom(max(_MANY, number)), 0, number
    return _bytes[start:_used]


def _forget() -> None:
    global _bytes
    _bytes = b""


os.register_at_fork(after_in_child=_forget)
