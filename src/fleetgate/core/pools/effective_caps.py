"""Which caps are in force, and which pools a request needs because of them (rules C2, C4, N3).

Three sources, the later over the earlier: built-in, the config file, what was set at run time. A request's own
environment may replace a cap for that request alone. A built-in cap applies only where no configured selector
of its kind matches; `host` is replaced by a configured `host`, a model's by any configured selector of models.

Two selectors may make one pool: `umans` and `umans@work` do for the account `work`. What the one that names the
account says goes first. `refusals` is the exception: the most expensive wins. Both selectors speak of the same
account, and a mistake is not symmetric: too high a price leaves a little capacity unused, too low a price may have the
account served later for a long time. Of one selector the later source wins as always, so a person can lower the price.
"""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec import Struct

from fleetgate.core.entities import INTERACTIVE, Rule, Spec
from fleetgate.core.errors import BadName
from fleetgate.core.model_names import Model, Selector, account_of, glob, parse_model, parse_selector, pool_id

T = TypeVar("T")

UNLIMITED: Final = 1 << 60
HELD_BACK: Final = -1  # the limit of a request that must leave the pool's reserve to others (rule W5)

BUILT_IN = (Rule("agents", "host", cap=3), Rule("agents", "*/claude-opus-*", cap=4))
_BUILT_IN = {(rule.kind, rule.selector): rule for rule in BUILT_IN}
COOLDOWN_MS = {"agents": 0, "requests": 350}
ON_429 = {"agents": "pause", "requests": "adapt"}
REFUSALS: Final = ("cheap", "normal", "expensive")  # what a refusal may cost, the cheapest first
DEFAULT_REFUSALS: Final = "normal"
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
    usage_gate: bool
    explore: bool  # `adapt` may go above the cap
    cooldown_by_hand: bool
    source: str  # of the cap: "built-in", "file", "run time" or "" when there is none
    reserve: int = 0
    reserve_share: int = 0
    lendable: bool = False
    refusals: str = DEFAULT_REFUSALS  # what a refusal costs, where the limit is learned

    @property
    def has_reserve(self) -> bool:
        """Whether slots are kept for interactive work (rule W5)."""
        return bool(self.reserve or self.reserve_share)

    def held_back(self, limit: int) -> int:
        """How many slots of a limit are kept for interactive work; one is always left to the others."""
        if limit >= UNLIMITED:
            return 0
        return min(self.reserve or -(-limit * self.reserve_share // 10_000), limit - 1)

    @property
    def capped(self) -> bool:
        return self.cap is not None or self.auto

    @property
    def learns(self) -> bool:
        """Whether the limit is found and followed automatically. Our own caps (host, project, key) never learn."""
        return self.on_429 == "adapt" and self.cap is not None and self.selector.scope == "model"

    @property
    def configured(self) -> bool:
        """Whether a person set it: a number, automatic, or no cap."""
        return self.source not in ("", "built-in")

    @property
    def reason(self) -> str:
        """The reason's code (rule A6)."""
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
        """The maximum of slots that the request could ever have here, as configured."""
        cap = UNLIMITED if self.cap.cap is None else self.cap.cap
        return cap - self.cap.held_back(cap) if self.limit == HELD_BACK else self.limit or cap


class Rules:
    """The three sources, and the caps that follow from them."""

    def __init__(self) -> None:
        self.file: dict[tuple[str, str], Rule] = {}
        self.runtime: dict[tuple[str, str], Rule] = {}
        self.seen: dict[tuple[str, str], None] = {}  # selectors that the environment of a request caps
        self.weights: dict[str, int] = {}  # by project: how much more than others it gets (rule W6)
        self.caps: dict[tuple[str, str], Cap] = {}
        self.merge()

    def merge(self) -> None:
        """Work out what is in force; after any source has changed."""
        keys = dict.fromkeys([*self.file, *self.runtime, *self.seen, *_BUILT_IN])
        self.caps = {key: self._merged([key]) for key in keys}

    def _merged(self, keys: list[tuple[str, str]]) -> Cap:
        """What these selectors say together; the earlier goes before the later, and run time before the file."""
        sources = (("run time", self.runtime), ("file", self.file), ("built-in", _BUILT_IN))
        said = [(rules[key], name) for key in keys for name, rules in sources if key in rules]
        deciding = (each for each in said if each[0].cap is not None or each[0].auto or each[0].unlimited)
        rule, source = next(deciding, (Rule(*keys[0]), ""))
        selector = parse_selector(rule.selector)
        return Cap(
            kind=rule.kind,
            selector=selector,
            cap=rule.cap,
            auto=rule.auto,
            unlimited=rule.unlimited,
            cooldown_ms=_first([each.cooldown_ms for each, _ in said], default_cooldown_ms(rule.kind, selector)),
            on_429=_first([each.on_429 for each, _ in said], _on_429(rule.kind, selector)),
            max_hold_ms=_first([each.max_hold_ms for each, _ in said], MAX_HOLD_MS[rule.kind]),
            name=_first([each.name for each, _ in said], selector.family),
            usage_gate=_first([each.usage_gate for each, _ in said], False),
            explore=_first([each.explore for each, _ in said], False),
            cooldown_by_hand=any(each.cooldown_ms is not None for each, _ in said),
            source=source,
            reserve=_first([each.reserve for each, _ in said], 0),
            reserve_share=_first([each.reserve_share for each, _ in said], 0),
            lendable=_first([each.lendable for each, _ in said], False),
            refusals=self._refusals(keys),
        )

    def _refusals(self, keys: list[tuple[str, str]]) -> str:
        """The most expensive of what these selectors say, each by its highest source."""
        said = []
        for key in keys:
            price = _first([rules[key].refusals for rules in (self.runtime, self.file) if key in rules], "")
            if price in REFUSALS:  # a later release may know more of them
                said.append(price)
        return max(said, key=REFUSALS.index, default=DEFAULT_REFUSALS)

    def counts(self, kind: str, selector: str) -> bool:
        """Whether slots are counted for this selector although nothing caps it."""
        return (kind, selector) in self.seen

    def needs(self, spec: Spec, model: Model | None) -> list[Need]:
        """The pools that a request needs for one candidate, the narrowest first."""
        unknown = [self._merged([(spec.kind, text)]) for text, _ in spec.caps if (spec.kind, text) not in self.caps]
        caps = [
            cap
            for cap in [*self.caps.values(), *unknown]
            if cap.kind == spec.kind and _applies(cap.selector, spec, model)
        ]
        by_pool: dict[str, list[Cap]] = {}
        for cap in caps:
            pool = pool_id(cap.selector, model, spec.host, spec.project, spec.agent_session, spec.access_key)
            by_pool.setdefault(pool, []).append(cap)
        configured = {cap.selector.scope for cap in caps if cap.configured}
        found = []
        for pool, made_by in by_pool.items():
            made_by.sort(key=_names_no_account)
            limit = self._limit(spec, made_by, configured, caps)
            if limit is not None:
                found.append(self._need(pool, made_by, limit))
        return sorted(found, key=lambda need: (need.cap.selector.narrowness, need.pool))

    def _limit(self, spec: Spec, made_by: list[Cap], configured: set[str], caps: list[Cap]) -> int | None:
        """A request's limit in the pool that these caps make, 0 for the pool's own; None: it does not need it."""
        own, families = dict(spec.caps), dict(spec.family_caps)
        for cap in made_by:
            selector, built_in = cap.selector, cap.source == "built-in"
            if selector.text in own:
                return own[selector.text]
            if cap.capped and not (built_in and selector.scope in configured):
                if selector.family in families:
                    return families[selector.family]
                # Where its environment caps the same scope, the request is counted by a built-in cap and not held.
                replaced = built_in and any(c.selector.scope == selector.scope and c.selector.text in own for c in caps)
                gives_way = spec.work_class != INTERACTIVE and any(each.has_reserve for each in made_by)
                return UNLIMITED if replaced else HELD_BACK if gives_way else 0
            if cap.unlimited:
                break
        return UNLIMITED if self._counted(made_by) else None

    def find(self, kind: str, pool: str) -> Need | None:
        """The pool of this name, for requests without caps of their own; None: no cap makes it."""
        made_by = [cap for cap in self.caps.values() if cap.kind == kind and _instance(cap.selector, pool) is not None]
        if not made_by:
            return None
        need = self._need(pool, sorted(made_by, key=_names_no_account), 0)
        return need if need.cap.capped or self._counted(made_by) else None

    def _counted(self, made_by: list[Cap]) -> bool:
        return any((cap.kind, cap.selector.text) in self.seen for cap in made_by)

    def _need(self, pool: str, made_by: list[Cap], limit: int) -> Need:
        cap = made_by[0]
        if len(made_by) > 1:
            cap = self._merged([(cap.kind, cap.selector.text) for cap in made_by])
        instance = _instance(cap.selector, pool)
        assert instance is not None, f"{cap.selector.text} does not make {pool}"
        return Need(pool, cap, limit, *instance)


def _first(values: list[T | None], default: T) -> T:
    return next((value for value in values if value is not None), default)


def default_cooldown_ms(kind: str, selector: Selector) -> int:
    """A session or a key is counted by us alone, so a slot of it is free at once."""
    return 0 if selector.scope in ("session", "key") else COOLDOWN_MS[kind]


def _on_429(kind: str, selector: Selector) -> str:
    """Our own caps (host, project, key) never learn."""
    return ON_429[kind] if selector.scope == "model" else "pause"


def _names_no_account(cap: Cap) -> bool:
    return not cap.selector.names_one


def _applies(selector: Selector, spec: Spec, model: Model | None) -> bool:
    if selector.scope == "host":
        return bool(spec.host) and not spec.supervisor
    if selector.scope == "model":
        return model is not None and selector.matches(model)
    return selector.is_for(spec.project, spec.access_key, spec.agent_session)


def makes(selector: Selector, pool: str) -> bool:
    """Whether a cap of this selector makes the pool of this name."""
    return _instance(selector, pool) is not None


def _instance(selector: Selector, pool: str) -> tuple[str, str, str] | None:
    """Account, host and project of the pool of this name, if `selector` makes that pool (see `pool_id`)."""
    if selector.scope != "model":
        scope, colon, instance = pool.partition(":")
        if scope != selector.scope or not colon or (selector.name and selector.name != instance):
            return None
        return "", instance if scope == "host" else "", instance if scope == "project" else ""
    if selector.account:
        model = Model(selector.provider, selector.account, selector.name)
        return (account_of(model), "", "") if pool == pool_id(selector, model, "", "") else None
    text = pool.removeprefix(f"{selector.text}:") if "*" in selector.provider else pool.partition("/")[0]
    try:
        model = parse_model(f"{text}/any")
    except BadName:
        return None
    makes = glob(selector.provider, model.provider) and pool == pool_id(selector, model, "", "")
    return (account_of(model), "", "") if makes else None
