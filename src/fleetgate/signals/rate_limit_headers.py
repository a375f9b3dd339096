"""Response headers: the wait they ask for, and the windows that they say are used up.

Names are compared in lower case. The providers' headers differ in their spelling only, so they are read by shape:
`anthropic-ratelimit-WINDOW-remaining`, `x-ratelimit-remaining-WINDOW`, `ratelimit-remaining`. Plans by the week or by
five hours have headers of their own: Anthropic's `unified`, and the Codex back end's `x-codex-primary`, `-secondary`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from fleetgate.signals.wait_times import wait_from_epoch, wait_from_http_date, wait_from_reset, wait_from_seconds

_RATELIMIT = re.compile(
    r"(?:anthropic-ratelimit-(?P<window>[a-z-]{1,30})-(?P<part>limit|remaining|reset)"
    r"|(?:x-)?ratelimit-(?P<part2>limit|remaining|reset)(?:-(?P<window2>[a-z-]{1,30}))?)"
)
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(?P<window>[a-z0-9_]{1,20})-(?P<part>status|reset)")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,12})?")
_MINUTE_MS = 60_000
_HEADERS = 200  # looked at in one response


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


def pools_hint(provider: str, headers: Mapping[str, str], now_wall_ms: int) -> list[PoolHint]:
    """What is used up according to the headers of any response, a good one too. Empty: nothing to pause.

    `provider` is not needed so far: the headers speak for themselves.
    """
    del provider
    headers = lowered(headers)
    hints = []
    for window in windows_of(headers):
        wait_ms = window.wait_ms(now_wall_ms) if window.used_up else None
        if wait_ms:
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
