"""The usage of a period, in sums by any of its dimensions (rule U4): for `fleetgate usage` and `GET /v1/usage`.

A cost that is not known is never a cost of nothing: a sum knows whether all of its parts had one. Estimated parts and
responses that broke off are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET, Struct, UnsetType

from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import Selector, account_of, parse_model, parse_selector, shown
from fleetgate.core.usage import ESTIMATE, PARTIAL, Usage, UsageRow
from fleetgate.present.json.state import Time
from fleetgate.present.text import dollars_text
from fleetgate.present.usage.period import UsagePeriod

DIMENSIONS = ("project", "model", "account", "host", "key", "kind", "source", "day", "hour", "run")
DEFAULT_BY = "project,model"
DEFAULT_SINCE = "7d"

Part = tuple[int, UsageRow, str]  # hour, what was used, and the run that used it ("": not known)


class UsageTotal(Struct):
    """What was used in all, of one row of a report."""

    calls: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    cost: int | None = None  # millionths of a dollar; of the parts whose cost is known
    cost_complete: bool = True
    estimated: bool = False  # some of it
    estimated_calls: int = 0
    partial_calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.cache_read + self.cache_write + self.output

    def add(self, usage: Usage) -> None:
        self._add_amounts(usage)
        if usage.cost is None and (usage.calls or usage.tokens):
            self.cost_complete = False
        if usage.source == ESTIMATE:
            self.estimated = True
            self.estimated_calls += usage.calls
        elif usage.source == PARTIAL:
            self.partial_calls += usage.calls

    def add_sum(self, other: UsageTotal) -> None:
        self._add_amounts(other)
        self.cost_complete = self.cost_complete and other.cost_complete
        self.estimated = self.estimated or other.estimated
        self.estimated_calls += other.estimated_calls
        self.partial_calls += other.partial_calls

    def _add_amounts(self, used: Usage | UsageTotal) -> None:
        self.calls += used.calls
        self.input += used.input
        self.cache_read += used.cache_read
        self.cache_write += used.cache_write
        self.output += used.output
        if used.cost is not None:
            self.cost = used.cost if self.cost is None else self.cost + used.cost


class UsageAmounts(Struct):
    """Sums of usage. `cost_usd` is null if no part of it is known; `cost_complete` says whether every part is.

    `tokens` are input, cache_read, cache_write and output together. `estimated_calls` ended unseen, so what was
    reserved for them counts; the responses of `partial_calls` broke off, and count as far as they came.
    """

    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    tokens: int
    cost_usd: float | None
    cost_complete: bool
    estimated_calls: int
    partial_calls: int


class UsageLine(UsageAmounts):
    """One row, with the dimensions that were asked for. Null: it names none."""

    project: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    account: str | UnsetType | None = UNSET
    host: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    kind: str | UnsetType | None = UNSET
    source: str | UnsetType | None = UNSET
    day: str | UnsetType | None = UNSET
    hour: str | UnsetType | None = UNSET
    run: str | UnsetType | None = UNSET


class UsageShape(Struct):
    """`fleetgate usage --json`. `rows_left_out`: how many rows there are beyond the limit; `total` covers them, too."""

    by: list[str]
    since: Time
    until: Time
    rows: list[UsageLine]
    total: UsageAmounts
    rows_left_out: int = 0


def parse_dimensions(text: str, what: str = "by") -> tuple[str, ...]:
    """The dimensions that are named, separated by commas; each counts once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = next((name for name in names if name not in DIMENSIONS), None)
    if unknown is not None or not names:
        raise BadRequest(f"{what} {shown(unknown or text)}: valid are {', '.join(DIMENSIONS)}, separated by commas")
    return names


class UsageTable:
    """Sums by dimensions. `project` and `model` (a selector) leave out everything else."""

    def __init__(self, by: Sequence[str], period: UsagePeriod, project: str = "", model: str = "") -> None:
        self.by = tuple(by)
        self.period = period
        self._project = project
        self._selector: Selector | None = parse_selector(model) if model else None
        self._matches: dict[str, bool] = {}  # by model
        self._accounts: dict[str, str] = {}
        self._days: dict[int, str] = {}
        self._starts: dict[int, str] = {}
        self._labels = [self._label(name) for name in self.by]
        self._sums: dict[tuple[str, ...], UsageTotal] = {}

    def add(self, parts: Iterable[Part]) -> None:
        """Count what is in the period; parts outside it are left out."""
        low, high, project, selector = self.period.low, self.period.high, self._project, self._selector
        labels, sums = self._labels, self._sums
        for part in parts:
            hour, row, _ = part
            if not low <= hour < high or (project and row.project != project):
                continue
            if selector is not None and not self._is_selected(row.model, selector):
                continue
            key = tuple([label(part) for label in labels])
            known = sums.get(key)
            if known is None:
                known = sums[key] = UsageTotal()
            known.add(row.usage)

    @property
    def total(self) -> UsageTotal:
        total = UsageTotal()
        for each in self._sums.values():
            total.add_sum(each)
        return total

    def rows(self) -> list[tuple[tuple[str, ...], UsageTotal]]:
        """Labels and sums: in the order of time where that is asked for, otherwise the largest first."""
        if "day" in self.by or "hour" in self.by:
            return sorted(self._sums.items())
        return sorted(self._sums.items(), key=lambda row: (-(row[1].cost or 0), -row[1].tokens, row[0]))

    def shape(self, limit: int | None = None) -> UsageShape:
        rows = self.rows()
        shown_rows = rows if limit is None else rows[:limit]
        return UsageShape(
            list(self.by),
            self.period.since,
            self.period.until,
            [self._line(labels, usage) for labels, usage in shown_rows],
            UsageAmounts(*_amounts(self.total)),
            len(rows) - len(shown_rows),
        )

    def _line(self, labels: tuple[str, ...], usage: UsageTotal) -> UsageLine:
        names = {name: label or None for name, label in zip(self.by, labels, strict=True)}
        return UsageLine(*_amounts(usage), **names)  # type: ignore[arg-type]

    def _label(self, name: str) -> Callable[[Part], str]:
        period, accounts, days, starts = self.period, self._accounts, self._days, self._starts

        def day(part: Part) -> str:
            return days.get(part[0]) or days.setdefault(part[0], period.day(part[0]))

        def start(part: Part) -> str:
            return starts.get(part[0]) or starts.setdefault(part[0], period.start(part[0]))

        def account(part: Part) -> str:
            model = part[1].model
            return accounts.get(model) or (accounts.setdefault(model, account_of(parse_model(model))) if model else "")

        found: dict[str, Callable[[Part], str]] = {
            "project": lambda part: part[1].project,
            "model": lambda part: part[1].model,
            "account": account,
            "host": lambda part: part[1].host,
            "key": lambda part: part[1].key,
            "kind": lambda part: part[1].kind,
            "source": lambda part: part[1].usage.source,
            "day": day,
            "hour": start,
            "run": lambda part: part[2],
        }
        return found[name]

    def _is_selected(self, model: str, selector: Selector) -> bool:
        known = self._matches.get(model)
        if known is None:
            known = self._matches[model] = bool(model) and selector.matches(parse_model(model))
        return known


def cost_text(usage: UsageTotal) -> str:
    """`$0.31`; `≥ $0.31` if only a part of the cost is known, `?` if none is. Estimated parts are marked with `~`."""
    mark = "~" if usage.estimated else ""
    if usage.cost is None:
        return "$0" if usage.cost_complete else "?"
    text = f"{mark}{dollars_text(usage.cost)}"
    return text if usage.cost_complete else f"≥ {text}"


def _amounts(usage: UsageTotal) -> tuple[int, int, int, int, int, int, float | None, bool, int, int]:
    cost = None if usage.cost is None else usage.cost / 1_000_000
    return (
        usage.calls,
        usage.input,
        usage.cache_read,
        usage.cache_write,
        usage.output,
        usage.tokens,
        cost,
        usage.cost_complete,
        usage.estimated_calls,
        usage.partial_calls,
    )
