"""Clean-up in forked children: locks and connections that a child must not share with its parent.

A file lock belongs to the open file, and a forked child has the same open file: the lock stays taken until both have
let go of it. A connection that a child keeps open looks alive to the other side after the parent is gone. So the owner
of a lock or a connection registers here, and releases its copy in every forked child. Nothing is sent to the other
side, which still talks to the parent.
"""

from __future__ import annotations

import os
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

BEFORE_FORK = (
    "this gate was opened before a fork, and belongs to the parent process: open another one in the child, or start "
    "processes by `spawn`"
)

_holders: dict[ref[Any], Callable[[Any], None]] = {}
_kept: list[object] = []


def on_fork(holder: T, leave: Callable[[T], None]) -> None:
    """Call `leave` with the holder in every forked child, as long as the holder exists."""
    _holders[ref(holder, _forget)] = leave


def hide(fd: int) -> None:
    """Let a file number of the parent lead nowhere; it stays taken, as some library may close it later."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd, inheritable=False)
    os.close(null)


def keep(thing: object) -> None:
    """Never clean up a copy of what is the parent's: its clean-up would talk to the other side."""
    _kept.append(thing)


def _forget(holder: ref[Any]) -> None:
    _holders.pop(holder, None)


def _leave() -> None:
    for holder, leave in list(_holders.items()):
        thing = holder()
        if thing is not None:
            leave(thing)
    _holders.clear()


os.register_at_fork(after_in_child=_leave)
