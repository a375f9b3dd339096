"""`fleetgate simulate --from-history`: what would have been different with another cap or policy, on one screen.

It reads the log and changes nothing, in the store or in the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from msgspec import Struct, to_builtins

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import gate_to_read, tell
from fleetgate.cli.read_only_gate import say_json
from fleetgate.config.errors import BadValue
from fleetgate.config.value_types import read_cap_text
from fleetgate.core.errors import BadRequest
from fleetgate.core.limits import POLICIES
from fleetgate.core.model_names import canonical, parse_selector, shown
from fleetgate.core.state.state import State
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import check_selector, kind_for, pool_target
from fleetgate.present.wall_time import parse_moment_ms
from fleetgate.simulate.history.comparison import Comparison, PoolComparison, compare
from fleetgate.simulate.history.figures import Figures
from fleetgate.simulate.history.replay import CapChange
from fleetgate.simulate.table import aligned

_MOST_POOLS = 4  # on one screen


class WhatIf(Struct):
    """What the command line asks for."""

    since: str
    caps: tuple[str, ...]
    policies: tuple[str, ...]
    pool: str | None
    kind: str | None
    refusals: str | None = None


def play_history(asked: WhatIf, as_json: bool) -> int:
    """Replay the log, and print what would have been different."""
    gate = gate_to_read()
    state = gate.replica.catch_up()
    moments = LogTimes(gate)
    start = parse_moment_ms(asked.since, "--since", moments.now + moments.offset_ms) - moments.offset_ms
    if start > moments.now + 1_000:  # an age is counted back from a later moment
        raise BadRequest(f"--since {shown(asked.since)}: that is in the future")
    changes = _changes(asked, state, gate)
    shown_pools = _pools(asked, state, gate.host)
    rows = takewhile(lambda row: row[0] <= state.seq, gate.log.history(0))
    found = compare(rows, start, moments.now, state, changes, shown_pools)
    if as_json:
        said = {"from": moments.utc(found.start), "to": moments.utc(found.end), "events": found.events}
        pools = [to_builtins(each) for each in found.pools]
        say_json({**said, "changes": [to_builtins(each) for each in changes], "pools": pools, "notes": found.notes})
        return exit_codes.OK
    _print(found, changes, moments)
    models = [change for change in changes if parse_selector(change.selector).scope == "model"]
    if not found.pools and found.events and asked.kind is None and models:
        other = "requests" if models[0].kind == "agents" else "agents"
        tell(f"- {models[0].selector} was taken as a cap on {models[0].kind}; --kind {other} asks for the other kind.")
    return exit_codes.OK


def _changes(asked: WhatIf, state: State, gate: DirectGate) -> list[CapChange]:
    policy = _policy(asked.policies)
    if asked.refusals is not None and policy not in (None, "adapt"):
        raise BadRequest(f"--refusals: {policy} learns no limit; adapt does")
    found: dict[tuple[str, str], CapChange] = {}
    for text in asked.caps:
        name, sign, number = text.rpartition("=")
        if not sign:
            raise BadRequest(f"--cap {shown(text)}: with --from-history it is POOL=N, for example umans=6")
        selector = canonical(name)
        check_selector(selector, state, gate.settings)
        kind = kind_for(state, selector, asked.kind, "agents")
        try:
            found[kind, selector] = CapChange(kind, selector, read_cap_text(number), policy, asked.refusals)
        except BadValue as error:
            raise BadRequest(f"--cap {shown(text)}: {error}") from error
    if (policy is not None or asked.refusals is not None) and not found:
        caps = _provider_caps(asked, state, gate.host)
        found = {key: CapChange(*key, None, policy, asked.refusals) for key in caps}
    return list(found.values())


def _policy(given: tuple[str, ...]) -> str | None:
    names = [name for text in given for name in text.split(",") if name]
    if not names:
        return None
    if len(names) > 1 or names[0] not in POLICIES:
        raise BadRequest(f"--policy {shown(','.join(names))}: with --from-history it is one of {', '.join(POLICIES)}")
    return names[0]


def _provider_caps(asked: WhatIf, state: State, host: str) -> list[tuple[str, str]]:
    """The caps on models: of the pool that was named, or all of them."""
    wanted = _pools(asked, state, host)
    caps = [
        (pool.kind, pool.cap.selector.text)
        for pool in state.pools.values()
        if pool.cap.capped and pool.cap.selector.scope == "model" and (not wanted or pool.key in wanted)
    ]
    if not caps:
        raise BadRequest("--policy: nothing here caps a model, so no rate limit changes a limit")
    return list(dict.fromkeys(caps))


def _pools(asked: WhatIf, state: State, host: str) -> set[str]:
    """The keys of the pools to show; empty: those that the changes are about, or all."""
    if asked.pool is None:
        return set()
    kind = kind_for(state, asked.pool, asked.kind)
    name = pool_target(state, kind, asked.pool, host)
    named = [pool for pool in state.pools.values() if pool.kind == kind]
    return {pool.key for pool in named if name in (pool.id, pool.cap.selector.text)}


# Output.


def _print(found: Comparison, changes: list[CapChange], moments: LogTimes) -> None:
    span = f"{moments.local(found.start)} to {moments.local(found.end)}, {found.events:,} events"
    tell(f"{_question(changes)} ({span})")
    if not found.events:
        tell("The log has no events of that time.")
        return
    if not found.pools:
        tell("Nothing asked for a slot of these pools in that time.")
    for each in found.pools[:_MOST_POOLS]:
        tell("")
        for line in aligned(*_table(each)).splitlines():
            tell(line)
    if len(found.pools) > _MOST_POOLS:
        tell(f"\n{len(found.pools) - _MOST_POOLS} more pools: name one with --pool, or use --json.")
    tell("")
    for note in found.notes:
        tell(f"- {note}")


def _question(changes: list[CapChange]) -> str:
    if not changes:
        return "Replayed with nothing changed"
    parts = []
    for change in changes:
        words = [] if change.cap is None else [f"the cap of {change.selector} ({change.kind}) had been {change.cap}"]
        if change.on_429 is not None:
            words.append(f"on_429 of {change.selector} ({change.kind}) had been {change.on_429}")
        if change.refusals is not None:
            words.append(f"refusals of {change.selector} ({change.kind}) had been {change.refusals}")
        parts.append(" and ".join(words))
    return f"What if {', '.join(parts)}"


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("requests", lambda f: f"{f.requests:,}"),
    ("not started at once", lambda f: f"{f.waited:,}"),
    ("mean wait", lambda f: _time(f.wait_mean_s)),
    ("half waited up to", lambda f: _time(f.wait_p50_s)),
    ("95 % waited up to", lambda f: _time(f.wait_p95_s)),
    ("longest wait", lambda f: _time(f.wait_max_s)),
    ("left without a slot", lambda f: f"{f.left:,}"),
    ("still waiting", lambda f: f"{f.still_waiting:,}"),
    ("finished", lambda f: f"{f.finished:,} in {_time(f.hours * 3600)}"),
    ("finished per hour", lambda f: f"{f.finished_per_hour:,.1f}"),
    ("slots in use, mean", lambda f: _use(f)),
    ("rate limits", lambda f: f"{f.rate_limits:,}"),
)


def _table(each: PoolComparison) -> tuple[list[str], list[list[str]]]:
    columns = [("measured", each.measured), ("replayed as it was", each.unchanged)]
    if each.what_if is not None:
        columns.append(("what if", each.what_if))
    head = [f"{each.pool} ({each.kind})", *(name for name, _ in columns)]
    return head, [[label, *(text(figures) for _, figures in columns)] for label, text in _ROWS]


def _use(figures: Figures) -> str:
    if figures.limit_mean is None or figures.utilisation is None:
        return f"{figures.slots_mean:.1f}"
    return f"{figures.slots_mean:.1f} of {figures.limit_mean:.1f} ({figures.utilisation:.0f} %)"


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"
