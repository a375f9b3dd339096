"""The table of published prices has the package's own answers (rule U3)."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from genai_prices.data_snapshot import get_snapshot

from fleetgate.core.prices import Price
from fleetgate.gate.prices.extract import table_of
from fleetgate.gate.prices.table import PriceTable, read_table

MOMENTS = [datetime(2026, 11, 18, hour, 40, tzinfo=UTC) for hour in (0, 7, 12, 17, 23)]
MOMENTS += [datetime(2024, 2, 1, tzinfo=UTC), datetime(2031, 2, 1, tzinfo=UTC)]


@pytest.fixture(scope="module")
def table() -> PriceTable:
    return read_table(msgspec.json.encode(table_of(get_snapshot().providers, "here")), "here")


def units(dollars: Any) -> int | None:
    return None if dollars is None else round(getattr(dollars, "base", dollars) * 10**6)


def test_U3_the_table_finds_the_same_models_and_prices_as_the_package(table: PriceTable) -> None:
    providers = get_snapshot().providers
    compared = 0
    for provider in providers:
        names = [model.id for model in provider.models][:: 1 + len(provider.models) // 40]
        names += [name.upper() for name in names[:3]] + [f"{names[0]}-20260205", f"x-{names[-1]}-y", "gpt-5-20251211"]
        names += ["claude-opus-4-6", "no-such-model", "", "\0/é"]
        for name in names:
            wanted = provider.find_model(name, all_providers=providers)
            found = table.find(provider.id, name)
            assert (found is None) == (wanted is None), (provider.id, name)
            if found is None or wanted is None:
                continue
            for moment in MOMENTS:
                prices, price = wanted.get_prices(moment), found.price_at(moment.timestamp())
                assert (price and price.input) == units(prices.input_mtok), (provider.id, name, moment)
                if price is not None:
                    assert price.output == (units(prices.output_mtok) or 0)
                    assert price.cache_read == units(prices.cache_read_mtok or prices.input_mtok) or (
                        prices.cache_read_mtok == 0 == price.cache_read
                    )
                compared += 1
    assert compared > 5000


def test_U3_a_price_of_the_day_holds_at_its_hours_and_a_new_price_from_its_day_on() -> None:
    def price(dollars: float) -> SimpleNamespace:
        return SimpleNamespace(input_mtok=dollars, output_mtok=0, cache_read_mtok=None, cache_write_mtok=None)

    night = SimpleNamespace(start_time=time(16, 30), end_time=time(0, 30))
    abroad = SimpleNamespace(  # from 05:00 to 06:00 of UTC
        start_time=time(8, 0, tzinfo=timezone(timedelta(hours=3))),
        end_time=time(9, 0, tzinfo=timezone(timedelta(hours=3))),
    )
    later = SimpleNamespace(start_date=date(2026, 11, 18))
    models = [
        SimpleNamespace(
            match=SimpleNamespace(equals="A"),
            prices=[
                SimpleNamespace(constraint=constraint, prices=price(dollars))
                for constraint, dollars in ((None, 1), (later, 2), (night, 3), (abroad, 4))
            ],
        ),
        SimpleNamespace(
            match=SimpleNamespace(equals="odd"),
            prices=[SimpleNamespace(constraint=SimpleNamespace(moon="full"), prices=price(5))],
        ),
        SimpleNamespace(match=SimpleNamespace(sounds_like="b"), prices=price(6)),
        SimpleNamespace(match=SimpleNamespace(or_=[SimpleNamespace(sounds_like="b")]), prices=price(7)),
        SimpleNamespace(match=SimpleNamespace(equals="free"), prices=[]),
    ]
    provider = SimpleNamespace(id="p", models=models, fallback_model_providers=None)
    table = read_table(msgspec.json.encode(table_of([provider], "s")), "s")

    def at(day: int, hour: int, name: str = "a") -> Price | None:
        found = table.find("p", name)
        return None if found is None else found.price_at(datetime(2026, 11, day, hour, 15, tzinfo=UTC).timestamp())

    dollars = [found.input // 10**6 for found in (at(17, 12), at(18, 12), at(17, 17), at(18, 0), at(18, 5)) if found]
    assert dollars == [1, 2, 3, 3, 4]
    assert at(18, 0, "odd") is None, "a condition that is not understood"
    assert at(18, 0, "free") is None
    assert table.find("p", "b") is None, "a name that is not understood"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"source":"s"}', b'{"source":"s","providers":{},"format":0}', b"\xff"])
def test_U3_what_is_no_table_of_this_package_is_not_read(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_table(data, "s")
    with pytest.raises(ValueError, match="other prices"):
        read_table(b'{"source":"other","providers":{}}', "s")
