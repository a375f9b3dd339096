"""Which caps are in force, and which pools a request needs because of them (SPEC C2, C4, N3).

Three sources, the later over the earlier: built-in, the config file, what was set at run time. A request's own
environment may replace a cap for that request alone. A built-in cap applies only where no configured selector
of its kind matches; `host` is replaced by a configured `host`, a model's by any configured selector of models.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from headgate.core.names import Model, Selector, account_of, parse_selector, pool_id
from headgate.core.records import Rule, Spec

T = TypeVar("T")

UNLIMITED = 1 << 60

BUILT_IN = (Rule("agents", "host", cap=3), Rule("agents", "*/claude-opus-*", cap=4))
COOLDOWN_MS = {"agents": 0, "requests": 350}
ON_429 = {"agents": "pause", "requests": "step"}
MAX_HOLD_MS = {"agents": 0, "requests": 30 * 60_000}  # 0: none


class Cap(Struct, frozen=True):
    """What is in force for one selector: every source merged, defaults filled in."""

    kind: str
    selector: Selector
    cap: int | None
    auto: bool
    unlimited: bool
    cooldown_ms: int
    on_429: str
    max_hold_ms: int
    name: str
    source: str  # of the cap: "built-in", "file", "run time" or "" when there is none

    @property
    def capped(self) -> bool:
        return self.cap is not None or self.auto

    @property
    def reason(self) -> str:
        """The reason's code (SPEC A6)."""
        return f"{self.name}_concurrency_cap" if self.name else "concurrency_cap"


class Need(Struct, frozen=True):
    """One pool that a request needs. `limit` 0: the pool's own; else this request's."""

    pool: str
    cap: Cap
    limit: int
    account: str
    host: str
    project: str

    @property
    def most(self) -> int:
        """The most seats that the request could ever have here as things are set."""
        return self.limit or (UNLIMITED if self.cap.cap is None else self.cap.cap)


class Rules:
    """The three sources, and the caps that follow from them."""

    def __init__(self) -> None:
        self.file: dict[tuple[str, str], Rule] = {}
        self.runtime: dict[tuple[str, str], Rule] = {}
        self.seen: dict[tuple[str, str], None] = {}  # selectors that only some environment caps
        self.caps: dict[tuple[str, str], Cap] = {}
        self.merge()

    def merge(self) -> None:
        """Work out what is in force; after any source has changed."""
        built_in = {(rule.kind, rule.selector): rule for rule in BUILT_IN}
        keys = dict.fromkeys([*self.file, *self.runtime, *self.seen, *built_in])
        self.caps = {key: self._merged(key, built_in.get(key)) for key in keys}

    def _merged(self, key: tuple[str, str], built_in: Rule | None) -> Cap:
        kind, text = key
        file, runtime = self.file.get(key), self.runtime.get(key)
        cap, auto, unlimited, source = None, False, False, ""
        for name, rule in (("run time", runtime), ("file", file), ("built-in", built_in)):
            if rule is not None and (rule.cap is not None or rule.auto or rule.unlimited):
                cap, auto, unlimited, source = rule.cap, rule.auto, rule.unlimited, name
                break
        said = [rule for rule in (runtime, file, built_in) if rule is not None]
        selector = parse_selector(text)
        return Cap(
            kind=kind,
            selector=selector,
            cap=cap,
            auto=auto,
            unlimited=unlimited,
            cooldown_ms=_first([rule.cooldown_ms for rule in said], COOLDOWN_MS[kind]),
            on_429=_first([rule.on_429 for rule in said], ON_429[kind]),
            max_hold_ms=_first([rule.max_hold_ms for rule in said], MAX_HOLD_MS[kind]),
            name=_first([rule.name for rule in said], selector.family),
            source=source,
        )

    def counts(self, kind: str, selector: str) -> bool:
        """Whether everybody's seats are counted for this selector."""
        cap = self.caps.get((kind, selector))
        return (kind, selector) in self.seen or (cap is not None and cap.capped)

    def needs(self, spec: Spec, model: Model | None) -> list[Need]:
        """The pools that a request needs for one candidate, the narrowest first."""
        own = dict(spec.caps)
        families = dict(spec.family_caps)
        found: dict[str, Need] = {}
        lasting: set[str] = set()  # scopes that a file or a run-time cap covers
        passing: set[str] = set()  # scopes that this request's environment covers
        built_in: list[Cap] = []
        unknown = [self._merged((spec.kind, text), None) for text in own if (spec.kind, text) not in self.caps]
        for cap in [*self.caps.values(), *unknown]:
            if cap.kind != spec.kind or not _applies(cap.selector, spec, model):
                continue
            override = own.get(cap.selector.text, families.get(cap.selector.family, 0) if cap.capped else 0)
            if cap.selector.text in own:
                passing.add(cap.selector.scope)
            if cap.source == "built-in":
                built_in.append(cap)
                continue
            if cap.capped or cap.unlimited:
                lasting.add(cap.selector.scope)
            if cap.capped or override or (cap.kind, cap.selector.text) in self.seen:
                _put(found, _need(cap, override or (0 if cap.capped else UNLIMITED), spec, model))
        for cap in built_in:
            scope = cap.selector.scope
            if scope in lasting:
                continue
            override = own.get(cap.selector.text, families.get(cap.selector.family, 0))
            counted_only = scope in passing and not override
            _put(found, _need(cap, UNLIMITED if counted_only else override, spec, model))
        return sorted(found.values(), key=lambda need: (need.cap.selector.narrowness, need.pool))

    def find(self, kind: str, pool: str) -> Need | None:
        """The cap that makes the pool of this name, with its instance; None when nothing does."""
        found: dict[str, Need] = {}
        for cap in self.caps.values():
            need = _made_by(cap, pool) if cap.kind == kind else None
            if need is not None:
                _put(found, need)
        return found.get(pool)


def _first(values: list[T | None], default: T) -> T:
    return next((value for value in values if value is not None), default)


def _made_by(cap: Cap, pool: str) -> Need | None:
    """The need for `pool` if it is one that this cap makes."""
    selector = cap.selector
    if selector.scope != "model":
        scope, colon, instance = pool.partition(":")
        if scope != selector.scope or not instance:
            return None
        return Need(pool, cap, 0, "", instance if scope == "host" else "", instance if scope == "project" else "")
    if "*" in selector.provider and not selector.account:
        prefix = f"{selector.text}:"
        return Need(pool, cap, 0, pool[len(prefix) :], "", "") if pool.startswith(prefix) else None
    model = _instance(selector, pool)
    return Need(pool, cap, 0, account_of(model), "", "") if pool == pool_id(selector, model, "", "") else None


def _instance(selector: Selector, pool: str) -> Model:
    """A model whose account is the one that a pool's name tells."""
    account = pool.partition("/")[0].partition("@")[2] or "default"
    return Model(selector.provider, selector.account or account, selector.name)


def _applies(selector: Selector, spec: Spec, model: Model | None) -> bool:
    if selector.scope == "host":
        return bool(spec.host) and not spec.supervisor
    if selector.scope == "project":
        return True
    return model is not None and selector.matches(model)


def _need(cap: Cap, limit: int, spec: Spec, model: Model | None) -> Need:
    selector = cap.selector
    of_model = selector.scope == "model" and model is not None
    return Need(
        pool=pool_id(selector, model, spec.host, spec.project),
        cap=cap,
        limit=limit,
        account=account_of(model) if of_model and model is not None else "",
        host=spec.host if selector.scope == "host" else "",
        project=spec.project if selector.scope == "project" else "",
    )


def _put(found: dict[str, Need], need: Need) -> None:
    """Of two caps that make the same pool, the one that names the account is meant."""
    other = found.get(need.pool)
    if other is None or (need.cap.selector.account and not other.cap.selector.account):
        found[need.pool] = need
