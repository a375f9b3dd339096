"""Prints the table of published prices: `python -m fleetgate.gate.prices.extract SOURCE`.

It is a process of its own because the package `genai-prices` takes much memory. What it does not understand of the
package is left out: the model has no price then.
"""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from typing import Any

import msgspec

from fleetgate.core.prices import PER_TOKEN, Price
from fleetgate.gate.prices.table import DatedPrice, ListedModel, ListedProvider, NameClause, PriceTable

_CLAUSES = {"equals": "=", "starts_with": "^", "ends_with": "$", "contains": "in", "regex": "re"}
_EPOCH = date(1970, 1, 1)


def main(source: str) -> None:
    from genai_prices.data_snapshot import get_snapshot

    sys.stdout.buffer.write(msgspec.json.encode(table_of(get_snapshot().providers, source)))


def table_of(providers: Any, source: str) -> PriceTable:
    """The table of these providers of the package."""
    listed = {each.id: _provider(each) for each in providers}
    return PriceTable(source, {name: msgspec.Raw(msgspec.json.encode(each)) for name, each in listed.items()})


def _provider(provider: Any) -> ListedProvider:
    models = []
    for model in provider.models:
        match = _clause(model.match)
        if match is not None:
            models.append(ListedModel(match, _prices(model.prices)))
    return ListedProvider(tuple(models), tuple(provider.fallback_model_providers or ()))


def _clause(clause: Any) -> NameClause | None:
    """A condition of the package; None if it is of an unknown kind."""
    for name, op in _CLAUSES.items():
        if hasattr(clause, name):
            text = getattr(clause, name)
            return NameClause(op, text if op == "re" else text.lower())
    for name, op in (("or_", "or"), ("and_", "and")):
        if hasattr(clause, name):
            parts = tuple(part for each in getattr(clause, name) if (part := _clause(each)) is not None)
            return NameClause(op, "", parts) if len(parts) == len(getattr(clause, name)) else None
    return None


def _prices(prices: Any) -> tuple[DatedPrice, ...]:
    if not isinstance(prices, list):
        return (DatedPrice(_price(prices)),)
    return tuple(_dated(each.constraint, _price(each.prices)) for each in prices) or (DatedPrice(None),)


def _dated(constraint: Any, price: Price | None) -> DatedPrice:
    if constraint is None:
        return DatedPrice(price)
    if hasattr(constraint, "start_date"):
        return DatedPrice(price, (constraint.start_date - _EPOCH).days * 86_400)
    if hasattr(constraint, "start_time"):
        return DatedPrice(price, daily=(_second_of_day(constraint.start_time), _second_of_day(constraint.end_time)))
    return DatedPrice(None)


def _second_of_day(at: time) -> int:
    moment = datetime.combine(_EPOCH, at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    return moment.hour * 3600 + moment.minute * 60 + moment.second


def _price(prices: Any) -> Price | None:
    """A price of the package. Of one that depends on the length of the prompt, the one for short prompts."""
    given = _per_token(prices.input_mtok)
    if given is None:
        return None
    cache_read, cache_write = _per_token(prices.cache_read_mtok), _per_token(prices.cache_write_mtok)
    return Price(
        given,
        given if cache_read is None else cache_read,
        given if cache_write is None else cache_write,
        _per_token(prices.output_mtok) or 0,  # embeddings have no output
    )


def _per_token(dollars: Any) -> int | None:
    """From dollars for a million tokens. The package has Decimals, some of which were floats before: 0.139999…"""
    if dollars is None:
        return None
    price: int = round(getattr(dollars, "base", dollars) * (PER_TOKEN // 10**6))
    return price


if __name__ == "__main__":
    main(sys.argv[1])
