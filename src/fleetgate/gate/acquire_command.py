"""The command that asks for slots, as `run`, the library, the service, the proxy and jobs all build it.

A process that asks for itself or for a client is the holder: it is woken at its address, and offers to ask providers
about their usage while it waits. A job has no holder until a worker offers to run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import commands as cmd
from fleetgate.gate.request_ids import new_id

if TYPE_CHECKING:
    from typing import Protocol, TypedDict, Unpack

    from fleetgate.core.entities import Spec
    from fleetgate.core.usage import Size, Usage
    from fleetgate.gate.providers.usage_questions import UsageSources

    class Asker(Protocol):
        """The gate of the process that asks."""

        me: str

        @property
        def address(self) -> str: ...

        @property
        def usage(self) -> UsageSources: ...

    class Details(TypedDict, total=False):
        """Fields of `cmd.Acquire` that only some requests have."""

        expires_ms: int
        command: str
        key: str
        role: str
        session: str
        bound: str
        client: str
        renew_ms: int
        estimate: Usage | None
        size: Size
        run: str
        conversation: str
        name: str
        log: bool
        by: str


def acquire_command(
    asker: Asker,
    spec: Spec,
    *,
    ident: str = "",
    wait: bool = True,
    since: int | None = None,
    priority: int = 0,
    **details: Unpack[Details],
) -> cmd.Acquire:
    """Ask for slots in the name of this process, under a new id unless one is given."""
    usage = asker.usage
    asks = usage.accounts(spec.models) if usage else ()
    return cmd.Acquire(
        ident or new_id(), spec, asker.me, wait, since, priority, wake=asker.address, asks=asks, **details
    )


def job_command(
    ident: str,
    spec: Spec,
    *,
    since: int | None,
    priority: int,
    any_host: bool,
    confirm: bool,
    not_before: int,
    **details: Unpack[Details],
) -> cmd.Acquire:
    """Ask for slots for a job, in no process's name: it waits aside until a worker offers to run it."""
    return cmd.Acquire(
        ident,
        spec,
        "",
        True,
        since,
        priority,
        job=True,
        any_host=any_host,
        confirm=confirm,
        not_before=not_before,
        **details,
    )
