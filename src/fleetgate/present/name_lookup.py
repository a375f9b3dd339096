"""Lookup of names and ids that a user gave, and the results of commands on them.

Everything is looked up before anything is decided: a name that is not found changes nothing (rule Q1).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fleetgate.config.errors import BadValue
from fleetgate.config.model_families import not_a_provider
from fleetgate.config.schema.cap_keys import read_cap_selector
from fleetgate.config.settings import Settings
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.core.errors import BadRequest, FleetgateError, NotFound, NotNow
from fleetgate.core.model_names import KINDS, parse_model, shown
from fleetgate.core.pools.backoff import CAUSES, parse_key
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import pool_views
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.request_ids import begun_by
from fleetgate.present.request_text import label
from fleetgate.present.text import some

# The names that other dispatchers use.
_CAUSES = {"rate_limit": "rate_limited", "auth_error": "auth", "provider_error": "server_error"}


class DrainShape(Struct):
    """What came of draining a host, or of ending that."""

    host: str
    draining: bool
    running: int  # agents that go on there
    entered: int


def check_host(name: str) -> str:
    """The name of a host, if it can be one."""
    if not name or len(name) > 255 or not all(char.isprintable() and char != "|" for char in name):
        raise BadRequest(f"{shown(name)} is no host's name: see `fleetgate ps` for those that are known")
    return name


def drained(state: State, host: str, events: Iterable[ev.Event]) -> DrainShape:
    specs = [lease.ticket.spec for lease in state.leases.values()]
    running = sum(spec.kind == "agents" and spec.host == host for spec in specs)
    return DrainShape(host, host in state.draining, running, entered(events))


def specs_of(state: State) -> list[Spec]:
    """Of all that runs and all that waits."""
    return [*(lease.ticket.spec for lease in state.leases.values()), *(each.spec for each in state.tickets.values())]


def known_providers(state: State, settings: Settings) -> set[str]:
    """The providers that the config names, and those of all that runs, waits, is capped or backed off."""
    names = [*settings.providers, *(model for spec in specs_of(state) for model in spec.models)]
    names += [text for _, text in state.rules.caps if "/" in text]
    names += [key for key in state.backoffs if "/" in key]
    return {name.partition("/")[0].partition("@")[0] for name in names}


def check_provider(text: str, state: State, settings: Settings) -> None:
    """BadRequest where a model's name stands in a provider's place."""
    if meant := not_a_provider(text, known_providers(state, settings)):
        raise BadRequest(meant)


def read_backoff(key: str, reason: str) -> tuple[str, str]:
    """What a backoff is for, and its cause, by our names. A cause that is the account's own is for all its models."""
    cause = _CAUSES.get(reason, reason)
    if cause not in CAUSES:
        raise BadRequest(f"reason {shown(reason)}: valid are {', '.join(CAUSES)}")
    name, scope = parse_key(key)
    return (name.partition("/")[0] if cause in ("auth", "quota") and scope != "account" else name), cause


def check_selector(text: str, state: State, settings: Settings) -> None:
    """BadRequest where a cap's selector cannot be one, or was hardly meant as it stands."""
    try:
        read_cap_selector(text, known_providers(state, settings))
    except BadValue as error:
        raise BadRequest(str(error)) from error


def kind_for(state: State, target: str, given: str | None = None, default: str = "requests") -> str:
    """The kind that a selector or pool is of; `default` if nothing decides (rule N4)."""
    if given:
        if given not in KINDS:
            raise BadRequest(f"--kind {shown(given)}: valid are {' and '.join(KINDS)}")
        return given
    if target in ("host", "project") or target.startswith(("host:", "project:")):
        return "agents"
    if target == "session" or target.startswith("session:"):
        return "requests"
    for has_such in (_has_cap, _has_pool, _has_rule):
        kinds = [kind for kind in KINDS if has_such(state, kind, target)]
        if len(kinds) == 1:
            return kinds[0]
        if kinds:
            raise BadRequest(f"{target} is capped for both kinds: say --kind agents or --kind requests")
    return "requests" if is_of_key(target) else default


def is_of_key(target: str) -> bool:
    """Whether a selector or pool is of access keys. They mostly make calls."""
    return target == "key" or target.startswith("key:")


def _has_cap(state: State, kind: str, target: str) -> bool:
    cap = state.rules.caps.get((kind, target))
    return cap is not None and cap.capped


def _has_pool(state: State, kind: str, target: str) -> bool:
    need = state.rules.find(kind, target)
    return need is not None and need.cap.capped


def _has_rule(state: State, kind: str, target: str) -> bool:
    """A cap that was removed, a cooldown without a cap, or a cap of a process's environment."""
    return (kind, target) in state.rules.caps


def pool_target(state: State, kind: str, target: str, host: str) -> str:
    """The name by which the engine knows what is meant: a pool as `fleetgate status` lists it, or a selector.

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
        own = target in ("project", "key", "session")
        each, example = (target, f"{target}:NAME") if own else ("account", f"{target}:anthropic")
        return (
            f"{target} has no pool yet: there is one for each {each}, from its first request on; name it as {example!r}"
        )
    other = next(each for each in KINDS if each != kind)
    if _has_cap(state, other, target) or _has_pool(state, other, target):
        return f"no pool {shown(target)} of kind {kind}; there is one with --kind {other}"
    found = [f"{pool} ({each})" for each in (kind, other) for pool in _pools_of_model(state, each, target, host)]
    if found:
        return f"{target} is a model, not a pool; it takes slots of: {', '.join(found)}"
    meant = not_a_provider(target)
    if meant:
        return meant
    known = [f"{view.pool} ({view.kind})" for view in pool_views(state, state.at, host)]
    listed = f"; pools: {some(known)}" if known else ""
    return f"no pool {shown(target)}{listed}; `fleetgate cap set` makes one"


def _pools_of_model(state: State, kind: str, target: str, host: str) -> list[str]:
    try:
        model = parse_model(target)
    except FleetgateError:
        return []
    needs = state.rules.needs(Spec(models=(target,), kind=kind, host=host), model)
    return [need.pool for need in needs if need.cap.capped and need.cap.selector.scope == "model"]


def find_id(state: State, prefix: str) -> str:
    """The id of a ticket or lease, of which only the beginning need be typed; its name does too."""
    if prefix in state.leases or prefix in state.tickets:
        return prefix
    requests = [*state.tickets.values(), *(lease.ticket for lease in state.leases.values())]
    named = sorted(ticket.id for ticket in requests if prefix and ticket.name == prefix)
    if len(named) > 1:
        raise BadRequest(f"{shown(prefix)} is the name of several: {some(named)}; type an id")
    if named:
        return named[0]
    found = begun_by(prefix, {*state.tickets, *state.leases})
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"{shown(prefix)} is the beginning of several ids: {some(found)}; type more of it")
    raise NotFound(
        f"no ticket or lease {shown(prefix)}: `fleetgate queue` lists the tickets, `fleetgate ps` the leases"
    )


def waiting_ticket(state: State, prefix: str) -> Ticket:
    """The ticket that is meant, which may have been granted and not claimed yet. NotNow when it has a slot."""
    ident = find_id(state, prefix)
    lease = state.leases.get(ident)
    if lease is None:
        return state.tickets[ident]
    if not lease.claimed:
        return lease.ticket
    raise NotNow(f"{ident} is not waiting, it has a slot: {whose(lease)}; `fleetgate release {ident} --force` frees it")


def succeeded(decided: Iterable[Decided]) -> list[ev.Event]:
    """The events of commands that went into one transaction; raises what was wrong with the first that failed."""
    events: list[ev.Event] = []
    for each in decided:
        if each.error is not None:
            raise each.error
        events.extend(each.events)
    return events


def entered(events: Iterable[ev.Event]) -> int:
    """How many left the queue for a slot."""
    return len([event for event in events if isinstance(event, ev.Granted)])


def whose(request: Ticket | Lease) -> str:
    """`review: sleep 60 (process 4711)`: how a message names a ticket or lease beside its id."""
    ticket = request.ticket if isinstance(request, Lease) else request
    process = request.lives_with if isinstance(request, Lease) else ticket.bound or ticket.holder
    what = label(request)
    if ticket.renew_ms:
        client = f"client {ticket.client or 'unknown'}"
        return f"{what} ({client})" if what else client
    pid = f"process {process_identity.pid_of(process) or 'unknown'} on {process_identity.host_of(process)}"
    return f"{what} ({pid})" if what else pid
