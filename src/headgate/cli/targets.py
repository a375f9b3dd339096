"""What a person means by a name or an id, for the commands that change something; and how they tell what came of it.

A command looks up everything it needs before it decides: what cannot be meant changes nothing (SPEC Q1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import localtime, strftime

import click

from headgate.cli.drawing import printable, say
from headgate.cli.opening import open_gate
from headgate.config.load import Loaded
from headgate.config.units import format_duration, parse_duration_ms
from headgate.core import events as ev
from headgate.core.errors import BadRequest, HeadgateError, NotFound
from headgate.core.names import KINDS, parse_model, shown
from headgate.core.records import Lease, Spec, Ticket
from headgate.core.state import State
from headgate.core.views import pool_views
from headgate.gate import processes
from headgate.gate.direct import DirectGate
from headgate.gate.transaction import Decided

_MOST_NAMED = 8
_FAR_MS = 10**11  # further away than anyone will wait: a pause without an end

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
kind_option = click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=None,
    help="What is counted: agents (processes) or requests (model calls). Default: agents for host and project, "
    "else the kind that has such a cap, else requests.",
)


def opened_gate(loaded: Loaded | None = None, *, configured: bool = True) -> DirectGate:
    """The gate, closed when the command ends. What does not need the config file does not stumble over it."""
    gate = open_gate(loaded, configured=configured)
    click.get_current_context().call_on_close(gate.close)
    return gate


# What is meant.


def kind_for(state: State, target: str, given: str | None = None) -> str:
    """The kind that a selector or pool is of (SPEC N4)."""
    if given:
        if given not in KINDS:
            raise BadRequest(f"--kind {shown(given)}: valid are {' and '.join(KINDS)}")
        return given
    if target in ("host", "project") or target.startswith(("host:", "project:")):
        return "agents"
    for has_such in (_has_cap, _has_pool, _has_rule):
        kinds = [kind for kind in KINDS if has_such(state, kind, target)]
        if len(kinds) == 1:
            return kinds[0]
        if kinds:
            raise BadRequest(f"{target} is capped for both kinds: say --kind agents or --kind requests")
    return "requests"


def _has_cap(state: State, kind: str, target: str) -> bool:
    cap = state.rules.caps.get((kind, target))
    return cap is not None and cap.capped


def _has_pool(state: State, kind: str, target: str) -> bool:
    need = state.rules.find(kind, target)
    return need is not None and need.cap.capped


def _has_rule(state: State, kind: str, target: str) -> bool:
    """A cap that was removed, a cooldown without a cap, or a cap of somebody's environment."""
    return (kind, target) in state.rules.caps


def pool_target(state: State, kind: str, target: str, host: str) -> str:
    """The name by which the engine knows what is meant: a pool as `headgate status` lists it, or a selector.

    A name that is both, such as `umans`, is the pool: that of the default account.
    """
    name = f"host:{host}" if target == "host" else target.replace("@default", "", 1)
    pool = state.named(kind, name)
    if pool is not None and pool.cap.capped:
        return name
    pools = [pool for pool in state.pools.values() if pool.kind == kind and pool.cap.capped]
    if any(pool.cap.selector.text == target for pool in pools):
        return target
    raise NotFound(_no_pool(state, kind, target, host))


def _no_pool(state: State, kind: str, target: str, host: str) -> str:
    cap = state.rules.caps.get((kind, target))
    if cap is not None and cap.capped:
        each, example = ("project", "project:NAME") if target == "project" else ("account", f"{target}:anthropic")
        return (
            f"{target} has no pool yet: there is one for each {each}, from its first request on; name it as {example!r}"
        )
    other = next(each for each in KINDS if each != kind)
    if _has_cap(state, other, target) or _has_pool(state, other, target):
        return f"no cap makes a pool {shown(target)} of kind {kind}; there is one with --kind {other}"
    found = [f"{pool} ({each})" for each in (kind, other) for pool in _pools_of_model(state, each, target, host)]
    if found:
        return f"{target} is a model, not a pool; it takes seats of: {', '.join(found)}"
    known = [f"{view.pool} ({view.kind})" for view in pool_views(state, state.at, host)]
    listed = f"; valid are: {some(known)}" if known else ""
    return f"no cap makes a pool {shown(target)}{listed}; `headgate cap set` sets one"


def _pools_of_model(state: State, kind: str, target: str, host: str) -> list[str]:
    try:
        model = parse_model(target)
    except HeadgateError:
        return []
    needs = state.rules.needs(Spec(models=(target,), kind=kind, host=host), model)
    return [need.pool for need in needs if need.cap.capped and need.cap.selector.scope == "model"]


def find_id(state: State, prefix: str) -> str:
    """The id of a ticket or lease, of which only the beginning need be typed."""
    if prefix in state.leases or prefix in state.tickets:
        return prefix
    found = sorted(ident for ident in {*state.tickets, *state.leases} if prefix and ident.startswith(prefix))
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"{shown(prefix)} is the beginning of several ids: {some(found)}; type more of it")
    raise NotFound(f"no ticket or lease {shown(prefix)}: `headgate queue` lists the tickets, `headgate ps` the leases")


def read_duration_ms(name: str, text: str | None, *, zero: bool = False) -> int | None:
    """An option's duration; bare numbers are seconds."""
    if text is None:
        return None
    try:
        duration_ms = parse_duration_ms(text)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error
    if not duration_ms and not zero:
        raise BadRequest(f"{name} {shown(text)}: valid is a duration longer than zero, for example 30 (seconds) or 10m")
    return duration_ms


def whoami(host: str) -> str:
    """Who does this, for the history: the person, the machine and the process that called us."""
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return f"{user}@{host} pid {os.getppid()}"


# What came of it.


def succeeded(decided: Iterable[Decided]) -> list[ev.Event]:
    """The events of commands that went into one transaction; raises what was wrong with the first that failed."""
    events: list[ev.Event] = []
    for each in decided:
        if each.error is not None:
            raise each.error
        events.extend(each.events)
    return events


def entered(events: Iterable[ev.Event]) -> int:
    """How many left the line for a seat."""
    return sum(1 for event in events if isinstance(event, ev.Granted))


def entered_text(events: Iterable[ev.Event]) -> str:
    """`; 2 waiting entered`, or nothing."""
    count = entered(events)
    return f"; {count} waiting entered" if count else ""


def some(names: list[str]) -> str:
    """A list for a sentence, cut when it is long."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def whose(request: Ticket | Lease) -> str:
    """`sleep 60 (process 4711)`: how a message names a ticket or lease beside its id."""
    ticket = request.ticket if isinstance(request, Lease) else request
    process = request.lives_with if isinstance(request, Lease) else ticket.bound or ticket.holder
    pid = f"process {processes.pid_of(process) or 'unknown'} on {processes.host_of(process)}"
    return f"{ticket.command} ({pid})" if ticket.command else pid


def until_text(gate: DirectGate, until: int) -> str:
    """`until 14:03:20 (in 30s)`, in local time."""
    left_ms = until - gate.now()
    if left_ms > _FAR_MS:
        return "until somebody resumes it"
    wall = (until + gate.wall_offset_ms()) / 1000
    clock = strftime("%H:%M:%S" if left_ms < 43_200_000 else "%Y-%m-%d %H:%M", localtime(wall))
    return f"until {clock} (in {format_duration(max(left_ms + 999, 1000) // 1000 * 1000, 2)})"


def tell(text: str) -> None:
    """One line for a person."""
    say(f"{printable(text)}\n")
