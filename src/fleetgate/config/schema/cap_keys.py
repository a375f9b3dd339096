"""The keys of a cap, in `[agents]` and `[requests]`. Defaults are taken from Settings and from the engine."""

from __future__ import annotations

from collections.abc import Collection

from fleetgate.config import value_types as v
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.shapes import Key, Scalar, Shape, Short, Table
from fleetgate.config.settings import HostAuto
from fleetgate.config.units import format_duration, format_size, parse_duration_ms
from fleetgate.core.model_names import KINDS, shown
from fleetgate.core.pools.effective_caps import BUILT_IN, COOLDOWN_MS, DEFAULT_REFUSALS, MAX_HOLD_MS, ON_429


def read_cap_selector(text: str, providers: Collection[str] = ()) -> str:
    """A selector, where an option that has slipped out of its table is no provider: see `read_selector`."""
    if text in CAP_OPTIONS:
        raise BadValue(f"{shown(text)} is an option of a cap, not a selector: write SELECTOR = {{ {text} = … }}")
    return v.read_selector(text, providers)


def read_agents_selector(text: str) -> str:
    """The selector of a cap on agents, which make no calls."""
    if text == "session":
        raise BadValue("session counts the model calls of an agent's session: set it in [requests]")
    return read_cap_selector(text)


def _by_kind(defaults: dict[str, str]) -> str:
    if len(defaults) == 1:
        return next(iter(defaults.values()))
    return "; ".join(f"{default} in `[{kind}]`" for kind, default in defaults.items())


def built_in_caps(kind: str) -> str:
    return ", ".join(f'`"{rule.selector}" = {rule.cap}`' for rule in BUILT_IN if rule.kind == kind)


_DURATION = Scalar("duration", parse_duration_ms)

_CAP = Key(
    "cap",
    Scalar("whole number from 1", v.read_cap),
    "The maximum number of slots in use.",
    "4",
    tried=("limit", "slots", "concurrency", "max_concurrency"),
)
_HOST_CAP = Key(
    "cap",
    Scalar('whole number from 1, or "auto"', v.read_host_cap),
    'The maximum number of agents on one machine, or `"auto"`: as many as free memory allows.',
    '"auto"',
    tried=("limit", "slots", "concurrency", "max_concurrency"),
)


_RESERVE = Key(
    "reserve",
    Scalar("number of slots, or percentage", v.read_reserve),
    "How many slots are kept for interactive work: others leave them free.",
    "1",
    "0",
)


def _common(*kinds: str, family: bool = False) -> tuple[Key, ...]:
    """The options of every cap, with the defaults of the kinds that it is for."""
    return (
        Key(
            "cooldown",
            _DURATION,
            "How long a released slot still counts as used. "
            'With `on_429 = "adapt"` it is learned unless you set it here. '
            "Without `cap` it is remembered, and applies once you set a cap.",
            '"350ms"',
            _by_kind({kind: format_duration(COOLDOWN_MS[kind]) for kind in kinds}),
        ),
        Key(
            "max_hold",
            _DURATION,
            "How long a slot may be held before it is reclaimed; `0` means no limit.",
            '"2h"',
            _by_kind({kind: format_duration(MAX_HOLD_MS[kind]) if MAX_HOLD_MS[kind] else "no limit" for kind in kinds}),
            tried=("timeout", "ttl"),
        ),
        *(() if kinds == ("agents",) else (_RESERVE,)),
        Key(
            "lendable",
            Scalar("true or false", v.read_flag),
            "Whether other work may use the slots of `reserve` while no interactive request waits.",
            "true",
            "false",
        ),
        Key(
            "name",
            Scalar("name", v.read_cap_name),
            "The name in the reason when this cap is reached: `NAME_concurrency_cap`.",
            '"opus"',
            "the claude family's (`opus`, `sonnet` or `haiku`), else none" if family else "",
        ),
    )


_FOR_MODELS = (
    Key(
        "on_429",
        Scalar('"adapt", "step", "pause" or "fixed"', v.read_on_429),
        'What a rate limit does. `"adapt"` (only in `[requests]`): it pauses the pool briefly, and Fleetgate finds and '
        'follows the limit, up to the cap. `"step"`: it pauses the pool and lowers its limit by 1 until a person '
        'sets the cap again. `"pause"`: it only pauses the pool. `"fixed"`: nothing.',
        '"step"',
        _by_kind({kind: f'`"{rule}"`' for kind, rule in ON_429.items()}),
    ),
    Key(
        "refusals",
        Scalar('"cheap", "normal" or "expensive"', v.read_refusals),
        'With `on_429 = "adapt"`: what a refused call costs you. `"cheap"`: the account does not care, so Fleetgate '
        'tries more often for more capacity. `"expensive"`: the account is served later for a long time after each '
        "one, so Fleetgate tries seldom. Of several caps on one pool the most expensive applies.",
        '"expensive"',
        f'`"{DEFAULT_REFUSALS}"`',
    ),
    Key(
        "explore",
        Scalar("true or false", v.read_flag),
        'With `on_429 = "adapt"`: whether the limit may grow above the cap, one proven call at a time.',
        "true",
        "false",
    ),
    Key(
        "usage_gate",
        Scalar("true or false", v.read_flag),
        "Ask the provider for its own count before a waiting request starts.",
        "true",
        "false",
    ),
)
_FOR_HOST = (
    Key(
        "reserve",
        Scalar("number of slots, percentage, or size", v.read_host_reserve),
        "How many slots are kept for interactive work. A size is something else: with an automatic cap, the memory "
        "that is left free for other programs.",
        '"6GiB"',
        f"0 slots; {format_size(HostAuto().reserve_bytes)}",
    ),
    Key(
        "per_agent",
        Scalar("size", v.read_some_size),
        'With `cap = "auto"`: the memory that one agent is expected to need.',
        '"512MiB"',
        format_size(HostAuto().per_agent_bytes),
    ),
    Key(
        "max",
        Scalar("whole number from 1", v.read_cap),
        'With `cap = "auto"`: the most agents, however much memory is free.',
        "8",
        str(HostAuto().max),
    ),
)

_MODEL_KEYS = (_CAP, *_common(*KINDS, family=True), *_FOR_MODELS)
_PLAIN_KEYS = (_CAP, *_common(*KINDS))
_HOST_KEYS = (_HOST_CAP, *_common("agents"), *_FOR_HOST)
CAP_OPTIONS = frozenset(key.name for key in _MODEL_KEYS + _HOST_KEYS)

MODEL_CAP = Short("cap", "cap", Table("a cap on models", _MODEL_KEYS))
PLAIN_CAP = Short("cap", "cap", Table("a cap on `host`, `project`, `key` or `session`", _PLAIN_KEYS))
_SUBAGENTS = Scalar("whole number from 1", v.read_cap)
HOST_CAP = Short("cap", "cap", Table("the cap on agents of one machine", _HOST_KEYS))
AGENT_CAPS: dict[str, Shape] = {"host": HOST_CAP, "project": PLAIN_CAP, "key": PLAIN_CAP, "subagents": _SUBAGENTS}
CALL_CAPS: dict[str, Shape] = dict.fromkeys(("host", "project", "key", "session"), PLAIN_CAP)
