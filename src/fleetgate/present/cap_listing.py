"""The caps in effect and what they hide, for `fleetgate cap ls` and `fleetgate config show` (rule C2)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.config.environment import OPUS_CAP, Environment
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.cap_keys import read_cap_selector
from fleetgate.config.units import format_duration
from fleetgate.config.value_types import Share, read_reserve_text
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.limits.adaptive_tuning import USUAL_LAG_MS
from fleetgate.core.model_names import KINDS, parse_selector, shown
from fleetgate.core.pools.effective_caps import MAX_HOLD_MS, ON_429, Cap, default_cooldown_ms
from fleetgate.core.state.state import State
from fleetgate.present.text import some

ENVIRONMENT, RUN_TIME, FILE = "environment", "run time", "file"
VARIABLES = {"agents": "FLEETGATE_AGENTS", "requests": "FLEETGATE_REQUESTS"}
_OPTIONS = ("cooldown_ms", "on_429", "explore", "max_hold_ms", "name", "usage_gate", "lendable", "refusals")


class CapRow(Struct):
    """One cap in force. `hidden` is what lower sources say otherwise, from the highest."""

    selector: str
    kind: str
    cap: int | None
    auto: bool
    unlimited: bool
    cooldown_ms: int
    on_429: str
    max_hold_ms: int | None
    name: str | None
    usage_gate: bool
    explore: bool
    source: str
    variable: str | None
    hidden: list[dict[str, object]]
    reserve: int | str | None  # slots kept for interactive work, or a percentage of the limit
    lendable: bool
    refusals: str | None  # what a refused call costs, where the limit is learned


def lines(state: State, environment: Environment) -> list[CapRow]:
    """Every cap in force for the requests of a process with this environment, and every removed or remembered one."""
    found = []
    for kind in KINDS:
        own, families = (dict(caps) for caps in environment.caps_for(kind))
        keys = [key for key in state.rules.caps if key[0] == kind and _said(state, key)]
        keys += [(kind, text) for text in own if (kind, text) not in keys]
        for key in sorted(keys):
            found.append(_line(state, key, own, families))
    return found


def _said(state: State, key: tuple[str, str]) -> bool:
    """Whether some source says something of it; what only other environments cap is not listed."""
    cap = state.rules.caps[key]
    return cap.capped or cap.unlimited or key in state.rules.runtime or key in state.rules.file


def _line(state: State, key: tuple[str, str], own: dict[str, int], families: dict[str, int]) -> CapRow:
    kind, text = key
    selector = parse_selector(text)
    cap = state.rules.caps.get(key)
    override = own.get(text) or (families.get(selector.family) if cap is not None and cap.capped else None)
    line = CapRow(
        selector=text,
        kind=kind,
        cap=cap.cap if cap is not None else None,
        auto=cap is not None and cap.auto,
        unlimited=cap is not None and cap.unlimited,
        cooldown_ms=cap.cooldown_ms if cap is not None else default_cooldown_ms(kind, selector),
        on_429=cap.on_429 if cap is not None else ON_429[kind],
        max_hold_ms=(cap.max_hold_ms if cap is not None else MAX_HOLD_MS[kind]) or None,
        name=(cap.name if cap is not None else selector.family) or None,
        usage_gate=cap is not None and cap.usage_gate,
        explore=cap is not None and cap.explore,
        source=_source(state, key, cap),
        variable=None,
        hidden=_hidden(state, key, override),
        reserve=None if cap is None else reserve_said(cap.reserve, cap.reserve_share) or None,
        lendable=cap is not None and cap.lendable,
        refusals=cap.refusals if cap is not None and cap.learns else None,
    )
    if override is not None:
        line.cap, line.auto, line.unlimited, line.source = override, False, False, ENVIRONMENT
        line.variable = VARIABLES[kind] if text in own else OPUS_CAP
    return line


def _source(state: State, key: tuple[str, str], cap: Cap | None) -> str:
    """Of the cap; where there is none, of what is remembered for one."""
    if cap is not None and cap.source:
        return cap.source
    return RUN_TIME if key in state.rules.runtime else FILE


def _hidden(state: State, key: tuple[str, str], override: int | None) -> list[dict[str, object]]:
    """What the run time and the file say that something above them replaces by another value."""
    rules = state.rules
    above: dict[str, object] = {} if override is None else {"cap": override}
    hidden = []
    for source, rule in ((RUN_TIME, rules.runtime.get(key)), (FILE, rules.file.get(key))):
        if rule is None:
            continue
        said = _statements(rule)
        differs = {name: value for name, value in said.items() if name in above and above[name] != value}
        if differs:
            hidden.append({"source": source, **differs})
        above = {**said, **above}
    return hidden


def _statements(rule: Rule) -> dict[str, object]:
    """What a rule says, by the names of `cap ls --json`."""
    said: dict[str, object] = {}
    if rule.unlimited or rule.auto or rule.cap is not None:
        said["cap"] = "unlimited" if rule.unlimited else "auto" if rule.auto else rule.cap
    if rule.reserve is not None or rule.reserve_share is not None:
        said["reserve"] = reserve_said(rule.reserve or 0, rule.reserve_share or 0)
    return said | {name: value for name in _OPTIONS if (value := getattr(rule, name)) is not None}


def with_reserve(rule: Rule, reserve: int | str) -> Rule:
    """A rule that keeps this many slots for interactive work, or this percentage of the limit. BadRequest."""
    try:
        found = read_reserve_text(str(reserve))
    except BadValue as error:
        raise BadRequest(f"reserve of {rule.selector}: {error}") from error
    if isinstance(found, Share):
        return replace(rule, reserve=0, reserve_share=found.share)
    return replace(rule, reserve=found, reserve_share=0)


def reserve_said(slots: int, share: int) -> int | str:
    """A reserve as people write it: 1, or 25%."""
    return slots or (f"{share / 100:g}%" if share else 0)


def hidden_text(hidden: dict[str, object]) -> str:
    """`file: 4`, `file: 4, cooldown 350ms`."""
    parts: list[str] = []
    for name, value in hidden.items():
        if name == "cap":
            parts.insert(0, str(value))
        elif name in ("cooldown_ms", "max_hold_ms") and isinstance(value, int):
            parts.append(f"{name.removesuffix('_ms')} {format_duration(value)}")
        elif name != "source":
            parts.append(f"{name} {value}")
    return f"{hidden['source']}: {', '.join(parts)}"


def cap_text(cap: int | None, auto: bool, unlimited: bool = False) -> str:
    return "auto" if auto else "unlimited" if unlimited else "none" if cap is None else str(cap)


def quoted(selector: str) -> str:
    return f"'{selector}'" if "*" in selector else selector


def cooldown(state: State, key: tuple[str, str]) -> tuple[int, str]:
    """How long a released slot stays taken, and what says so."""
    cap = state.rules.caps.get(key)
    if cap is None:
        return default_cooldown_ms(key[0], parse_selector(key[1])), cooldown_source(state, key)
    if cap.learns and not cap.cooldown_by_hand:
        pool = state.named(*key)
        return USUAL_LAG_MS if pool is None else pool.cooldown_ms, "learned"
    return cap.cooldown_ms, cooldown_source(state, key)


def cooldown_source(state: State, key: tuple[str, str]) -> str:
    """What says how long a released slot stays taken."""
    for source, rules in (("run time", state.rules.runtime), ("file", state.rules.file)):
        rule = rules.get(key)
        if rule is not None and rule.cooldown_ms is not None:
            return source
    return "built-in"


def kind_set(state: State, selector: str) -> str | None:
    """The kind for which something was set, if it is one."""
    kinds = [kind for kind in KINDS if (kind, selector) in state.rules.runtime]
    return kinds[0] if len(kinds) == 1 else None


def check_set(state: State, kind: str, selector: str) -> None:
    """NotFound when nothing was set at run time for a selector."""
    if (kind, selector) not in state.rules.runtime:
        known = sorted(f"{each} ({of})" for of, each in state.rules.runtime)
        listed = f"there are values for: {some(known)}" if known else "there are no run-time values"
        raise NotFound(f"nothing was set at run time for {shown(selector)} ({kind}); {listed}")


def cap_to_remove(state: State, kind: str, selector: str) -> Cap:
    """The cap that is meant, which may have been removed already. NotFound when there is none."""
    found = state.rules.caps.get((kind, selector))
    if found is not None and (found.capped or found.unlimited):
        return found
    read_cap_selector(selector)
    known = sorted(f"{cap.selector.text} ({cap.kind})" for cap in state.rules.caps.values() if cap.capped)
    listed = f"; capped are: {some(known)}" if known else ""
    other = next(each for each in KINDS if each != kind)
    there = state.rules.caps.get((other, selector))
    hint = f"; there is one with --kind {other}" if there is not None and there.capped else ""
    raise NotFound(f"no cap on {shown(selector)} of kind {kind}{hint or listed}")
