"""One line for the status line of Claude Code: slots, queue, plan windows, cost today.

The rule: it never fails, and it never waits. A status line is drawn many times a minute, so the line is made of what a
file in the state folder says, without loading the gate (cli/statusline/refresh.py). A process of its own, which the
agent does not wait for, then records the agent's plan windows and brings that file up to date.
"""

from __future__ import annotations

import os
import sys
from time import localtime, strftime, time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "statusline.json"
STALE_S = 2.0  # what is older is brought up to date
USELESS_S = 900.0  # what is older is not shown
_SAME_S = 300.0  # resets that differ by less are the same
_LONGEST_S = 400 * 86_400
_LEAST_EPOCH_MS = 10**11  # a smaller number is of seconds
_MOST_BYTES = 1 << 20
_NAMES = {"five_hour": "5h", "seven_day": "7d"}


def print_line(account: str = "") -> int:
    """Read the agent's JSON from stdin, print the line, and have the rest done in the background."""
    folder, text, line = "", b"", ""
    try:
        folder, text = _folder(), _stdin()
        known = _known(folder)
        line = line_of(known, text, account) or _without_data(folder)
    except Exception:
        pass  # nothing that goes wrong here concerns the agent
    sys.stdout.write(f"fleetgate: {line or 'run `fleetgate doctor`'}\n")
    sys.stdout.flush()
    try:
        if folder:
            _refresh(folder, text, account)
    except Exception:
        pass
    return 0


def line_of(known: dict[str, Any], text: bytes, account: str = "") -> str:
    """The line from what the file says and what the agent says; empty where both say nothing."""
    return " | ".join(_parts(known, _said(text), account or own_account(known.get("logins", {}))))


def own_account(logins: dict[str, dict[str, str]]) -> str:
    """The account of the run that this is part of, else the one whose login the agent uses, else the default one.

    `logins`: the variables of each account of Anthropic that has a login of its own.
    """
    head, slash, _ = os.environ.get("FLEETGATE_MODEL", "").partition("/")
    if slash and head.partition("@")[0] == "anthropic":
        return head
    found, most = "anthropic", 0
    for account, variables in logins.items():
        if len(variables) > most and all(_is_set(name, value) for name, value in variables.items()):
            found, most = account, len(variables)
    return found


def _is_set(name: str, value: str) -> bool:
    given = os.environ.get(name, "")
    return given == value or (os.path.isabs(given) and os.path.normpath(given) == os.path.normpath(value))


def _folder() -> str:
    """The folder of this machine's store; empty where there is none."""
    from fleetgate.config.paths import sqlite_folder, store_url

    folder = sqlite_folder(store_url())
    return folder if folder and os.path.isdir(folder) else ""


def _without_data(folder: str) -> str:
    """The line where nothing is known: the file comes soon, nothing ever ran here, or the store is elsewhere."""
    from fleetgate.config.paths import sqlite_folder, store_url

    if folder:
        return "starting"
    return "0 running" if sqlite_folder(store_url()) else "shared store"


def _stdin() -> bytes:
    text = b""
    if sys.__stdin__ is not None and not os.isatty(0):
        from select import select

        while len(text) < _MOST_BYTES and select([0], [], [], 0.05)[0] and (piece := os.read(0, 65536)):
            text += piece
    return text


def _known(folder: str) -> dict[str, Any]:
    """What the file says; nothing if it is too old."""
    import json

    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        return found if isinstance(found, dict) and abs(time() - found["at"]) < USELESS_S else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _said(text: bytes) -> dict[str, tuple[int, float]]:
    """The windows that the agent reports: the percentage, and when each resets."""
    import json

    found: dict[str, tuple[int, float]] = {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return found
    limits = document.get("rate_limits") if isinstance(document, dict) else None
    for name, window in limits.items() if isinstance(limits, dict) else ():
        if not isinstance(window, dict):
            continue
        used, resets = window.get("used_percentage"), _epoch_s(window.get("resets_at"))
        if isinstance(used, int | float) and time() < resets < time() + _LONGEST_S:
            found[_NAMES.get(str(name), str(name))] = (int(used), resets)
    return found


def _epoch_s(value: object) -> float:
    """A moment that the agent names: epoch seconds, epoch milliseconds, or RFC 3339; 0 for none."""
    if isinstance(value, str):
        from datetime import UTC, datetime

        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    if not isinstance(value, int | float):
        return 0.0
    return value / 1000 if value >= _LEAST_EPOCH_MS else float(value)


def _parts(known: dict[str, Any], said: dict[str, tuple[int, float]], account: str) -> list[str]:
    parts = [str(known["slots"])] if known else []
    windows = known.get("plans", {}).get(account, {})
    for name, (used, resets, dry) in windows.items():
        agents, agents_reset = said.get(name, (0, 0.0))
        if resets <= time() or agents_reset > resets + _SAME_S:
            continue  # this window is over; what the agent says is about the one after it
        said.pop(name, None)
        ends = f", dry {_clock(dry)}" if dry and dry > time() else ""
        newer = agents if abs(agents_reset - resets) <= _SAME_S else 0
        parts.append(f"{name} {max(used, newer)}% until {_clock(resets)}{ends}")
    parts += [f"{name} {used}% until {_clock(resets)}" for name, (used, resets) in said.items()]
    return [*parts, str(known["cost"])] if known.get("cost") else parts


def _clock(at: float) -> str:
    return strftime("%H:%M" if at - time() < 72_000 else "%a %H:%M", localtime(at))


def _refresh(folder: str, text: bytes, account: str) -> None:
    """In a process that no one waits for: record what the agent said, and bring the file up to date."""
    try:
        about = os.stat(os.path.join(folder, FILE))
        fresh = abs(time() - about.st_mtime) < STALE_S  # the wall clock may have been set back
    except OSError:
        fresh = False
    if fresh or os.fork():
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        from fleetgate.cli.statusline.refresh import refresh

        refresh(folder, text, account)
    finally:
        os._exit(0)
