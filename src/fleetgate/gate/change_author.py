"""The author of a change, written into its command before it is decided (rule E3).

The service acts for others: while it works on a request, `acting_as` names the caller. Any other process acts for the
user who started it. `sign` is called where commands enter a gate, so no command has to be given an author elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fleetgate.core import commands as cmd
from fleetgate.core.access.authorship import CHANGES

_caller: ContextVar[str] = ContextVar("caller", default="")


@contextmanager
def acting_as(caller: str) -> Iterator[None]:
    """All changes that are made in this block, and in what it awaits, are the caller's."""
    before = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(before)


def sign(commands: Iterable[cmd.Command], me: str) -> None:
    """Name the author of commands that are changes and have none yet. `me` is this process."""
    for command in commands:
        is_change = type(command) in CHANGES or (isinstance(command, cmd.Acquire) and command.job)
        if is_change and not command.by:  # type: ignore[union-attr]
            command.by = _caller.get() or f"{local_user()}@{me.partition('|')[0]}"  # type: ignore[union-attr]


def local_user() -> str:
    """The user of this process."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
