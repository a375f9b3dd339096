"""Response headers: the wait they ask for, the provider's rates, and the windows that they say are used up.

Names are compared in lower case. The providers' headers differ in their spelling only, so they are read by shape:
`anthropic-ratelimit-WINDOW-remaining`, `x-ratelimit-remaining-WINDOW`, `ratelimit-remaining`, and Mistral's older
`ratelimitbysize-remaining`. Plans by the week or by five hours have headers of their own: Anthropic's `unified`, and
the Codex back end's `x-codex-primary`, `-secondary`.

A rate needs a limit and what remains of it. Numbers that cannot be such (Azure sends -1 for "none") make no rate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from fleetgate.core.usage import Reading
from fleetgate.signals.wait_times import wait_from_epoch, wait_from_http_date, wait_from_reset, wait_from_seconds

_RATELIMIT = re.compile(
    r"(?:anthropic-ratelimit-(?P<window>[a-z-]{1,30})-(?P<part>limit|remaining|reset)"
    r"|(?:x-)?ratelimit(?P<size>bysize)?-(?P<part2>limit|remaining|reset)(?:-(?P<window2>[a-z0-9-]{1,30}))?)"
)
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(?P<window>[a-z0-9_]{1,20})-(?P<part>status|reset)")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,12})?")
_MINUTE_MS, HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_SURELY_MS = 1000  # times until a reset are rounded
_HEADERS = 200  # looked at in one response
_MOST = 1 << 40  # a number above this is not a limit

# The words in a window's name that tell what it counts, and for how long.
_TOKENS, _REQUESTS = frozenset(("tokens", "token")), frozenset(("requests", "request", "req"))
_INPUT, _OUTPUT = frozenset(("input", "prompt")), frozenset(("output", "generated", "completion"))
_PERIODS_MS = {
    **dict.fromkeys(("second", "1s"), 1000),
    **dict.fromkeys(("minute", "min", "1m"), _MINUTE_MS),
    **dict.fromkeys(("hour", "1h"), HOUR_MS),
    **dict.fromkeys(("day", "1d", "24h"), _DAY_MS),
    **dict.fromkeys(("month", "30d", "week", "7d"), 0),  # a plan's window, and no rate
}


class PoolHint(Struct, frozen=True):
    """A window that a provider reports as used up: no call is admitted for `wait_ms` (rule X6)."""

    what: str  # "requests", "tokens", or "usage" for the window of a plan
    remaining: int
    wait_ms: int
    source: str = ""  # the header that said so, or the name of the plan's window


class Window(Struct):
    """One rate limit of a response, as far as its headers tell."""

    name: str  # as in its headers: `requests`, `input-tokens`, `req-minute`
    limit: float | None = None
    remaining: float | None = None
    reset: str = ""
    header: str = ""

    @property
    def what(self) -> str:
        return "tokens" if "token" in self.name else "requests"

    @property
    def unit(self) -> str:
        """What it counts, as usage has it; empty for what usage does not count: images, seconds of audio."""
        words = set(self.name.split("-"))
        if words & _TOKENS:
            return "input" if words & _INPUT else "output" if words & _OUTPUT else "tokens"
        return "calls" if words & _REQUESTS or words <= {"", *_PERIODS_MS} else ""

    @property
    def per_ms(self) -> int | None:
        """Its period, where its name has it; None where it has none, 0 for the window of a plan."""
        return next((_PERIODS_MS[word] for word in self.name.split("-") if word in _PERIODS_MS), None)

    @property
    def used_up(self) -> bool:
        """A window without a limit (0, or -1) is none; providers send such."""
        return self.remaining == 0 and (self.limit is None or self.limit > 0)

    def wait_ms(self, now_wall_ms: int) -> int | None:
        """Until it is renewed; a window of a minute whose end is not told, the minute."""
        wait_ms = wait_from_reset(self.reset, now_wall_ms)
        return _MINUTE_MS if wait_ms is None and self.name.endswith("-minute") else wait_ms


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their names in lower case. Of the same name twice, the first stays."""
    found: dict[str, str] = {}
    for name, value in list(headers.items())[:_HEADERS]:
        found.setdefault(str(name).lower(), str(value).strip())
    return found


def retry_wait(headers: Mapping[str, str], now_wall_ms: int) -> int | None:
    """The wait that the retry headers ask for, the finest first (rule S3)."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        wait_ms = wait_from_seconds(_value(headers, name), unit_ms=1)
        if wait_ms is not None:
            return wait_ms
    value = _value(headers, "retry-after")
    for wait_ms in (
        wait_from_seconds(value),
        wait_from_seconds(value.partition(",")[0]),  # sent twice, and joined on the way
        wait_from_http_date(value, now_wall_ms),
        wait_from_reset(value, now_wall_ms),  # not by the book: `30s`, an epoch
    ):
        if wait_ms is not None:
            return wait_ms
    return None


def windows_of(headers: Mapping[str, str]) -> list[Window]:
    """The rate limits that a response speaks of."""
    found: dict[str, Window] = {}
    for name, value in headers.items():
        match = _RATELIMIT.fullmatch(name)
        if not match:
            continue
        key = match["window"] or match["window2"] or ""
        if key.startswith("unified"):
            continue
        if match["size"]:
            key = f"tokens-{key}" if key else "tokens"
        window = found.setdefault(key, Window(key))
        part = match["part"] or match["part2"]
        if part == "reset":
            window.reset = value
        elif _NUMBER.fullmatch(value):
            if part == "limit":
                window.limit = float(value)
            else:
                window.remaining, window.header = float(value), name
    return list(found.values())


def readings_of(dialect: str, headers: Mapping[str, str], now_wall_ms: int) -> tuple[Reading, ...]:
    """The provider's rates by the headers of any response (rule V6). One for each unit: a limit by the day only where
    there is no shorter one, and of two that are left the tighter.
    """
    found: dict[str, Reading] = {}
    windows = windows_of(headers)
    names = {window.name for window in windows}
    for window in windows:
        if window.name == "tokens" and "input-tokens" in names and dialect == "anthropic":
            continue  # the sum of the other two
        reading = _reading(dialect, window, now_wall_ms)
        if reading is not None:
            found[reading.unit] = min(found.get(reading.unit, reading), reading, key=_tightness)
    return tuple(found.values())


def _tightness(reading: Reading) -> tuple[bool, int]:
    return reading.per_ms > HOUR_MS, reading.remaining


def _reading(dialect: str, window: Window, now_wall_ms: int) -> Reading | None:
    unit, limit, remaining = window.unit, window.limit, window.remaining
    if not unit or limit is None or remaining is None or not 0 < limit <= _MOST or remaining < 0 or window.per_ms == 0:
        return None
    left = int(min(remaining, limit))
    reset_ms = wait_from_reset(window.reset, now_wall_ms)
    per_ms = window.per_ms or _usual_period(dialect, unit) or _period_by_reset(dialect, int(limit), left, reset_ms)
    return Reading(unit, int(limit), left, reset_ms or 0, per_ms)


def _usual_period(dialect: str, unit: str) -> int:
    """The period of a window whose name has none, as the provider documents it; 0: it depends."""
    if dialect == "groq" and unit == "calls":
        return _DAY_MS
    return _MINUTE_MS if dialect in ("anthropic", "groq", "azure") else 0


def _period_by_reset(dialect: str, limit: int, left: int, reset_ms: int | None) -> int:
    """OpenAI's limits of requests are by the minute or by the day. Its buckets refill steadily, so that the time until
    one is full tells its period: 14 minutes for 2 requests of 200 is a day. A short time is too coarse to tell.
    """
    if dialect != "openai" or not reset_ms or reset_ms < _SURELY_MS or left >= limit:
        return 0
    return _DAY_MS if reset_ms * limit > HOUR_MS * (limit - left) else _MINUTE_MS


def reset_wait(headers: Mapping[str, str], now_wall_ms: int, about: str = "") -> int | None:
    """After a 429: until the last of the windows that are used up is renewed.

    Where none says that it is used up, the windows that the error is `about` (requests, tokens), else those that are
    nearly empty, else all.
    """
    windows = [window for window in windows_of(headers) if window.limit is None or window.limit > 0]
    for chosen in (
        [window for window in windows if window.used_up],
        [window for window in windows if about and window.what == about],
        [w for w in windows if w.remaining is None or (w.limit is not None and w.remaining * 10 <= w.limit)],
        windows,
    ):
        waits = [wait_ms for window in chosen if (wait_ms := window.wait_ms(now_wall_ms)) is not None]
        if waits:
            return max(waits)
    return None


def plan_rejections(headers: Mapping[str, str], now_wall_ms: int) -> dict[str, int | None]:
    """The windows of a plan that are used up, with the wait for each: `{"7d": 86400000}`; "" where none is named.

    Of Anthropic's, a window alone does not count: the status of the whole says whether requests are refused.
    """
    if _value(headers, "anthropic-ratelimit-unified-status").lower() == "rejected":
        return _unified_rejections(headers, now_wall_ms)
    found: dict[str, int | None] = {}
    for name in ("primary", "secondary"):
        percent = _value(headers, f"x-codex-{name}-used-percent")
        if _NUMBER.fullmatch(percent) and float(percent) >= 100:
            found[name] = _codex_wait(headers, name, now_wall_ms)
    return found


def pools_hint(headers: Mapping[str, str], now_wall_ms: int, rates: Collection[str] = ()) -> list[PoolHint]:
    """What is used up according to the headers of any response, a good one too. Empty: nothing to pause.

    `rates` are the units whose rates are followed: these pause nothing, what they have left is known.
    """
    headers = lowered(headers)
    hints = []
    for window in windows_of(headers):
        wait_ms = window.wait_ms(now_wall_ms) if window.used_up else None
        if wait_ms and window.unit not in rates:
            hints.append(PoolHint(window.what, 0, wait_ms, window.header))
    if _value(headers, "x-codex-credits-has-credits").lower() == "true":
        return hints  # a plan at 100 % that goes on, paid with credits
    for name, wait_ms in plan_rejections(headers, now_wall_ms).items():
        if wait_ms:
            hints.append(PoolHint("usage", 0, wait_ms, name))
    return hints


def _unified_rejections(headers: Mapping[str, str], now_wall_ms: int) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, value in headers.items():
        match = _UNIFIED.fullmatch(name)
        if match and match["part"] == "status" and match["window"] != "overage" and value.lower() == "rejected":
            reset = _value(headers, f"anthropic-ratelimit-unified-{match['window']}-reset")
            found[match["window"]] = wait_from_reset(reset, now_wall_ms)
    whole = wait_from_reset(_value(headers, "anthropic-ratelimit-unified-reset"), now_wall_ms)
    if not found:
        return {_value(headers, "anthropic-ratelimit-unified-representative-claim").lower(): whole}
    return {name: whole if wait_ms is None else wait_ms for name, wait_ms in found.items()}


def _codex_wait(headers: Mapping[str, str], name: str, now_wall_ms: int) -> int | None:
    wait_ms = wait_from_epoch(_value(headers, f"x-codex-{name}-reset-at"), now_wall_ms)
    return wait_from_seconds(_value(headers, f"x-codex-{name}-reset-after-seconds")) if wait_ms is None else wait_ms


def _value(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name, "")
