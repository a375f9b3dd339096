"""Which caps are in force and what they hide, as `headgate cap ls` and `headgate config show` list them (SPEC C2)."""

from __future__ import annotations

from msgspec import Struct

from headgate.cli.drawing import Column, Screen
from headgate.config.environment import OPUS_CAP, Environment
from headgate.config.units import format_duration
from headgate.core.names import KINDS, parse_selector
from headgate.core.records import Rule
from headgate.core.rules import COOLDOWN_MS, MAX_HOLD_MS, ON_429, Cap
from headgate.core.state import State

ENVIRONMENT, RUN_TIME, FILE = "environment", "run time", "file"
VARIABLES = {"agents": "HEADGATE_AGENTS", "requests": "HEADGATE_REQUESTS"}
_COLUMNS = (
    Column("KIND"),
    Column("SELECTOR", least=12),
    Column("CAP", right=True),
    Column("COOLDOWN"),
    Column("ON 429"),
    Column("MAX HOLD"),
    Column("NAME", spare=True),
    Column("USAGE GATE", spare=True),
    Column("SOURCE"),
    Column("HIDES", least=8),
)
_OPTIONS = ("cooldown_ms", "on_429", "explore", "max_hold_ms", "name", "usage_gate")


class Line(Struct):
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

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


def lines(state: State, environment: Environment) -> list[Line]:
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


def _line(state: State, key: tuple[str, str], own: dict[str, int], families: dict[str, int]) -> Line:
    kind, text = key
    selector = parse_selector(text)
    cap = state.rules.caps.get(key)
    override = own.get(text) or (families.get(selector.family) if cap is not None and cap.capped else None)
    line = Line(
        selector=text,
        kind=kind,
        cap=cap.cap if cap is not None else None,
        auto=cap is not None and cap.auto,
        unlimited=cap is not None and cap.unlimited,
        cooldown_ms=cap.cooldown_ms if cap is not None else COOLDOWN_MS[kind],
        on_429=cap.on_429 if cap is not None else ON_429[kind],
        max_hold_ms=(cap.max_hold_ms if cap is not None else MAX_HOLD_MS[kind]) or None,
        name=(cap.name if cap is not None else selector.family) or None,
        usage_gate=cap is not None and cap.usage_gate,
        explore=cap is not None and cap.explore,
        source=_source(state, key, cap),
        variable=None,
        hidden=_hidden(state, key, override),
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
    return said | {name: value for name in _OPTIONS if (value := getattr(rule, name)) is not None}


def draw(screen: Screen, found: list[Line]) -> None:
    """The list for people."""
    screen.table(_COLUMNS, [_row(line) for line in found])


def _row(line: Line) -> list[str]:
    return [
        line.kind,
        line.selector,
        cap_text(line.cap, line.auto, line.unlimited),
        format_duration(line.cooldown_ms),
        line.on_429 if parse_selector(line.selector).scope == "model" else "",
        format_duration(line.max_hold_ms) if line.max_hold_ms else "",
        line.name or "",
        "yes" if line.usage_gate else "",
        line.variable or line.source,
        "; ".join(hidden_text(each) for each in line.hidden),
    ]


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
