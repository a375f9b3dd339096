"""The values of options of `run` and `acquire`: numbers and durations, checked."""

from __future__ import annotations

from fleetgate.config.units import parse_duration_ms
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown


def integer(name: str, text: str, default: int, low: int, high: int) -> int:
    """A whole number between two others, or the default where nothing is given."""
    if not text:
        return default
    digits = text[1:] if text[:1] in ("-", "+") else text
    value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else low - 1
    if not low <= value <= high:
        raise BadRequest(f"{name} {shown(text)}: valid is a whole number from {low} to {high}")
    return value


def _duration(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error


def expires_ms(text: str) -> int:
    """How long a request may wait in the queue; 0: the default."""
    wait_ms = _duration("--expires", text)
    if wait_ms == 0:
        raise BadRequest(f"--expires {shown(text)}: valid is a duration longer than zero, for example 30m or 24h")
    return wait_ms or 0


def seconds(name: str, text: str) -> float | None:
    """A duration in seconds; None where nothing is given."""
    ms = _duration(name, text)
    return None if ms is None else ms / 1000
