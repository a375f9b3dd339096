"""`[budgets]`, `[prices]`, `time_zone`, `[classes]` and `[projects]` of a config file (rules V1, U3, W4, W6)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fleetgate.config.errors import BadValue, ConfigError
from fleetgate.config.file import check
from fleetgate.config.settings import Settings
from fleetgate.config.time_zone import zone_of
from fleetgate.config.units import format_dollars, parse_count, parse_dollars
from fleetgate.core.budgets.calendar import next_boundary
from fleetgate.core.entities import BudgetRule
from fleetgate.core.prices import Price
from fleetgate.core.usage import Usage
from fleetgate.gate.prices.lookup import price_of

MINUTE, HOUR = 60_000, 3_600_000


def read(text: str) -> Settings:
    return check(text, "config.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value).split("\n")


def test_V1_budgets_are_read_exactly() -> None:
    settings = read("""
[budgets]
"anthropic/claude-opus-*" = [
    { calls = 50, per = "1m" }, { input = 400_000, per = "60s" }, { output = "80k", per = "1m" }
]
openai = { tokens = 2_000_000, per = "1m", burst = 500_000 }
project = { usd = 20, per = "day" }
"project:nightly" = { usd = 0.1, per = "day", when_empty = "stop", estimate = "max" }
gemini = { usd = "200.000001", per = "month" }
host = { usd = 3.3, per = "5h", when_empty = "warn" }
""")
    assert settings.budgets == (
        BudgetRule("anthropic/claude-opus-*", "calls", 50, "1m", MINUTE),
        BudgetRule("anthropic/claude-opus-*", "input", 400_000, "1m", MINUTE),
        BudgetRule("anthropic/claude-opus-*", "output", 80_000, "1m", MINUTE),
        BudgetRule("openai", "tokens", 2_000_000, "1m", MINUTE, 500_000),
        BudgetRule("project", "usd", 20_000_000, "day"),
        BudgetRule("project:nightly", "usd", 100_000, "day", when_empty="stop", estimate="max"),
        BudgetRule("google", "usd", 200_000_001, "month"),
        BudgetRule("host", "usd", 3_300_000, "5h", 5 * HOUR, when_empty="warn"),
    )


def test_V1_all_mistakes_are_reported_at_once_with_their_lines() -> None:
    found = problems("""\
[budgets]
openai = [
    { calls = 50, per = "1m" },
    { calls = 9, input = 1, per = "1m" },
    { calls = 60, per = "60s" },
    { per = "1m" },
    { usd = 1 },
]
tokens = { per = "day" }
"key:c i" = { usd = 1, per = "day" }
"host:box" = { usd = 1, per = "day" }
"project:" = { usd = 1, per = "day" }
projct = { usd = 1, per = "day" }
groq = 5
a = { usd = 1, per = "minute" }
b = { usd = 1, per = "days" }
c = { usd = 1, per = "10ms" }
d = { calls = 0, per = "1m" }
e = { usd = 0.0000001, per = "1m" }
f = { usd = -1, per = "1m" }
g = { calls = 1, per = "day", burst = 3 }
h = { calls = 1, per = "1m", when_empty = "stop" }
i = { calls = 1, per = "1m", when_empty = "wait", estimate = "most" }
j = { calls = 1.5, per = "1m", limit = 3 }
k = { calls = true, per = "1m", burst = [1] }
""")
    expected = [
        (4, "openai[1]: found calls and input; valid is exactly one of calls, input, output, tokens, usd"),
        (5, "openai[2]: calls per 1m is set twice for openai"),
        (6, "openai[3]: found none; valid is exactly one of"),
        (7, "openai[4]: per is missing, for example per = "),
        (9, "tokens: 'tokens' is an option of a budget, not a selector: write SELECTOR = { tokens = … }"),
        (10, "'key:c i': not a key: 'c i'; one key is key:NAME"),
        (11, "'host:box': not a selector: 'host:box': did you mean host?"),
        (12, "'project:': 'project:': a project's name has 1 to 100 printable characters"),
        (13, "projct: 'projct': did you mean project?"),
        (14, "groq: found 5; valid is a table, or an array of tables"),
        (15, "a.per: found 'minute'; did you mean \"1m\"?"),
        (16, "b.per: found 'days'; did you mean \"day\"?"),
        (17, 'c.per: found \'10ms\'; valid is "day", "week", "month", or a duration of 1s to 366d'),
        (18, "d.calls: not a number: 0; valid is a whole number from 1"),
        (19, "e.usd: not a sum of money: '0.0000001'; valid is an amount in dollars with at most 6 decimals"),
        (20, "f.usd: not a sum of money: -1"),
        (21, "g: burst is only for rates, whose period is at most 1h; this one is per day"),
        (22, 'h: when_empty = "stop" is only for periods longer than 1h'),
        (23, 'i.when_empty: found \'wait\'; valid is "hold", "stop", "fallback" or "warn"'),
        (23, 'i.estimate: found \'most\'; valid is "expected" or "max"'),
        (24, "j.calls: not a number: 1.5"),
        (24, "j.limit: unknown key"),
        (25, "k.calls: not a number: true"),
        (25, "k.burst: valid is an amount in the unit of the rate"),
    ]
    for line, sentence in expected:
        assert any(each.startswith(f"config.toml:{line}: budgets.{sentence}") for each in found), (
            line,
            sentence,
            found,
        )
    assert len(found) == len(expected)


def test_V1_a_burst_is_in_the_unit_of_its_rate() -> None:
    (rule,) = read('[budgets]\nopenai = { usd = 1, per = "1h", burst = 0.25 }').budgets
    assert rule.burst == 250_000
    (problem,) = problems('[budgets]\nopenai = { calls = 1, per = "1h", burst = 0.25 }')
    assert "burst: not a number: 0.25; valid is a whole number from 1" in problem


def test_U3_prices_are_exact_and_the_narrowest_selector_wins() -> None:
    settings = read("""
[prices]
anthropic = { input = 3, output = 15 }
"anthropic/claude-opus-*" = { input = 15.0, output = 75.0, cache_read = 1.5, cache_write = 18.75 }
ollama = { input = 0, output = 0 }
"openai/mini" = { input = 0.1, output = 0.000001 }
""")
    prices = settings.prices
    opus = price_of("anthropic@work/claude-opus-4-6", prices)
    assert opus == Price(15_000_000, 1_500_000, 18_750_000, 75_000_000)
    assert price_of("anthropic/other", prices) == Price(3_000_000, 3_000_000, 3_000_000, 15_000_000)
    assert price_of("openai/mini", prices) == Price(100_000, 100_000, 100_000, 1)
    local = price_of("ollama/llama3", prices)
    assert local is not None
    assert local.cost(Usage(1, 10**9, output=10**9)) == 0


def test_U3_a_wrong_price_names_its_line() -> None:
    found = problems("""\
[prices]
anthropic = { input = 3 }
project = { input = 1, output = 1 }
cache_write = { output = 1 }
openai = { input = -3, output = "much", cached = 1 }
""")
    assert found[0] == "config.toml:2: prices.anthropic: output is missing, for example output = 75.0"
    assert "config.toml:3: prices.project: 'project': prices are for a provider or a model" in found[1]
    assert "'cache_write' is an option of a price, not a selector" in found[2]
    assert [each.split(": ")[1] for each in found[3:]] == ["prices.openai." + n for n in ("input", "output", "cached")]


def test_V6_the_rates_of_a_provider_can_be_ignored() -> None:
    assert read('[providers.openai]\nrates = "ignore"').providers["openai"].rates == "ignore"
    assert read('[providers.openai]\nkey_env = "K"').providers["openai"].rates == "follow"
    assert '"follow" or "ignore"' in problems("[providers.openai]\nrates = false")[0]


@pytest.mark.parametrize(
    ("text", "millionths"),
    [("20", 20_000_000), ("$0.05", 50_000), ("1_000.5", 1_000_500_000), (0.1, 100_000), (7, 7_000_000)],
)
def test_dollars_are_exact(text: object, millionths: int) -> None:
    assert parse_dollars(text) == millionths


@pytest.mark.parametrize(
    "text", ["", "1e3", "1.0000001", "-1", "1€", "1 2", True, None, float("nan"), 10**30, "20 USD"]
)
def test_what_is_no_sum_of_money_is_refused(text: object) -> None:
    with pytest.raises(BadValue):
        parse_dollars(text)


@pytest.mark.parametrize(
    ("text", "count"), [("400_000", 400_000), ("100k", 100_000), ("1.5M", 1_500_000), (3, 3), (1e6, 10**6)]
)
def test_counts_may_have_a_unit(text: object, count: int) -> None:
    assert parse_count(text) == count


def test_dollars_are_shown_in_cents_or_exactly() -> None:
    shown = [format_dollars(n) for n in (0, 310_000, 16_000_000, 4_200, 1, -1_500_000, 1_234_567_890_000)]
    assert shown == ["$0.00", "$0.31", "$16.00", "$0.0042", "$0.000001", "-$1.50", "$1,234,567.89"]


# --- the time zone --------------------------------------------------------------------------------------------------


def moment(text: str, zone: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def test_V1_days_begin_at_local_midnight_on_both_sides_of_a_change_of_the_clocks() -> None:
    zone, year = zone_of("Europe/Berlin"), datetime.now(UTC).year + 1
    for day, hours in ((last_sunday(year, 3), 23), (last_sunday(year, 10), 25)):
        before = moment(f"{day}T00:00", "Europe/Berlin")
        after = next_boundary("day", before, zone)
        assert after - before == hours * HOUR
        assert datetime.fromtimestamp(after / 1000, ZoneInfo("Europe/Berlin")).hour == 0


def last_sunday(year: int, month: int) -> str:
    return next(
        f"{year}-{month:02}-{day}" for day in range(31, 24, -1) if datetime(year, month, day, tzinfo=UTC).weekday() == 6
    )


@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata", "UTC"]
)
def test_V1_a_zone_has_the_offsets_of_the_time_zone_data_for_ten_years(name: str) -> None:
    zone, now = zone_of(name), int(datetime.now(UTC).timestamp())
    from bisect import bisect_right

    for hours in range(0, 10 * 365 * 24, 37):
        at = now + hours * 3600
        offset = datetime.fromtimestamp(at, ZoneInfo(name)).utcoffset()
        assert offset is not None
        assert zone.offsets[bisect_right(zone.moments, at * 1000) - 1] == offset.total_seconds() * 1000


@pytest.mark.parametrize(
    ("variable", "name"),
    [("America/New_York", "America/New_York"), ("CET-1CEST,M3.5.0,M10.5.0/3", "Europe/Berlin"), ("nonsense", "UTC")],
)
def test_V1_without_a_name_it_is_the_zone_of_the_machine(variable: str, name: str) -> None:
    script = "from fleetgate.config.time_zone import zone_of; print(zone_of(''))"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"TZ": variable}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(zone_of(name))


def test_V1_an_unknown_zone_is_refused_with_a_suggestion() -> None:
    assert read('time_zone = "Europe/Berlin"').time_zone == "Europe/Berlin"
    assert "did you mean 'Europe/Berlin'?" in problems('time_zone = "Europe/Berln"')[0]
    assert "did you mean 'America/New_York'?" in problems('time_zone = "new york"')[0]
    for bad in ("/etc/passwd", "../x", "Europe", "", "\\u0000", "Zzzzzzzzzz"):
        assert "valid is the name of a time zone" in problems(f'time_zone = "{bad}"')[0]
    assert "time zone" in problems("time_zone = 2")[0]


def test_V1_a_machine_without_time_zone_data_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    assert "install the system's package tzdata" in problems('time_zone = "Mars/Base"')[0]


@pytest.mark.parametrize("table", ['classes]\n"{}" = "batch"', 'projects]\n"{}" = {{ weight = 3 }}'])
@pytest.mark.parametrize("name", ["key:bot", "project:nightly"])
def test_w4_w6_classes_and_weights_are_of_projects_and_nothing_else_is_silently_ignored(table: str, name: str) -> None:
    (problem,) = problems("[" + table.format(name))
    assert "valid is a project's name alone" in problem
