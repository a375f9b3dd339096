"""The table of published prices: what Fleetgate needs of the package `genai-prices`, in a form that is small.

The package takes half a second to import, and 31 MB. So a process of its own reads it (gate/prices/extract.py), and
writes this table, which has 260 kB. Only the part of one provider is decoded, and only for a model that was not looked
up before.
"""

from __future__ import annotations

import re

import msgspec

from fleetgate.core.prices import Price

FORMAT = 1  # of the table; another one is not read
_DAY_S = 86_400
# `gpt-5-20260205`, which the package lists as `gpt-5-2026-02-05`.
_COMPACT_DATE = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=[-:]|$)")


class NameClause(msgspec.Struct, array_like=True, frozen=True):
    """A condition on the name of a model: `op` is `=`, `^` (begins), `$` (ends), `in`, `re`, `or` or `and`."""

    op: str
    text: str = ""
    parts: tuple[NameClause, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether a name in lower case is meant."""
        match self.op:
            case "=":
                return name == self.text
            case "^":
                return name.startswith(self.text)
            case "$":
                return name.endswith(self.text)
            case "in":
                return self.text in name
            case "re":
                return re.search(self.text, name) is not None
            case "or":
                return any(part.matches(name) for part in self.parts)
        return all(part.matches(name) for part in self.parts)


class DatedPrice(msgspec.Struct, array_like=True, frozen=True):
    """A price, and when it holds: from a moment on, or between two times of each day. Times are seconds of UTC."""

    price: Price | None  # None: it is not known
    from_s: int = 0
    daily: tuple[int, int] | None = None  # the second may be less than the first: over midnight

    def holds(self, now_s: float) -> bool:
        if now_s < self.from_s:
            return False
        if self.daily is None:
            return True
        (start, end), at = self.daily, now_s % _DAY_S
        return start <= at < end if start <= end else at >= start or at < end


class ListedModel(msgspec.Struct, array_like=True, frozen=True):
    """A model of a provider, with its prices; the last one that holds applies, or else the first."""

    match: NameClause
    prices: tuple[DatedPrice, ...]

    def price_at(self, now_s: float) -> Price | None:
        for each in reversed(self.prices):
            if each.holds(now_s):
                return each.price
        return self.prices[0].price


class ListedProvider(msgspec.Struct, array_like=True, frozen=True):
    """A provider. It may sell models of others, for their prices."""

    models: tuple[ListedModel, ...]
    others: tuple[str, ...] = ()


class PriceTable(msgspec.Struct, frozen=True):
    """All prices. `source` names what they were read from."""

    source: str
    providers: dict[str, msgspec.Raw]
    format: int = FORMAT

    def find(self, provider: str, name: str) -> ListedModel | None:
        """A model, by the provider's name in the package and by its own name, in any case."""
        name = name.lower()
        listed = self._provider(provider)
        if listed is None:
            return None
        for each in dict.fromkeys((name, _COMPACT_DATE.sub(r"-\1-\2-\3", name))):
            for seller in (listed, *map(self._provider, listed.others)):
                for model in seller.models if seller is not None else ():
                    if model.match.matches(each):
                        return model
        return None

    def _provider(self, provider: str) -> ListedProvider | None:
        raw = self.providers.get(provider)
        return None if raw is None else _provider_decoder.decode(raw)


_provider_decoder = msgspec.json.Decoder(ListedProvider)
_table_decoder = msgspec.json.Decoder(PriceTable)


def read_table(data: bytes, source: str) -> PriceTable:
    """The table in these bytes; ValueError if it is none, or was read from something else."""
    table = _table_decoder.decode(data)
    if (table.format, table.source) != (FORMAT, source):
        raise ValueError("it has other prices")
    return table
