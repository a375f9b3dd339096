"""What the status line shows, brought up to date: in the background, for cli/statusline/line.py.

It records the plan windows that the agent reported (rule W1), and writes what is true now to a file in the state
folder.
"""

from __future__ import annotations

import fcntl
import os
import signal
from time import localtime, mktime, time, time_ns

import msgspec

from fleetgate.cli.open_gate import load_config
from fleetgate.cli.statusline.line import FILE, own_account
from fleetgate.core import commands as cmd
from fleetgate.core.errors import FleetgateError
from fleetgate.core.handlers.plans import news
from fleetgate.core.plans.reading import HOUR_MS, PlanReading
from fleetgate.core.plans.runway import runway
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.state.state import State
from fleetgate.gate.providers.account_login import login_variables
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.usage_rows import closed_rows
from fleetgate.log import open_log
from fleetgate.signals.agents.plan_windows import windows_in_statusline

_LONGEST_S = 10


def refresh(folder: str, text: bytes, account: str) -> None:
    """Record the windows in this JSON, and write the file. Does nothing while another process does it."""
    signal.alarm(_LONGEST_S)  # a store that hangs ends this process
    lock = os.open(os.path.join(folder, f"{FILE}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    logins = _logins()
    gate = DirectGate(open_log(f"sqlite://{folder}"), None, folder)
    state = feed(gate, account or own_account(logins), readings_in(text))
    _write(folder, msgspec.json.encode({**_document(gate, state), "logins": logins}))
    gate.close()


def readings_in(text: bytes) -> tuple[PlanReading, ...]:
    """The plan windows in the JSON of a status line."""
    try:
        return windows_in_statusline(msgspec.json.decode(text), time_ns() // 1_000_000) if text else ()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()


def feed(gate: DirectGate, account: str, readings: tuple[PlanReading, ...]) -> State:
    """Record windows that say something new. Returns the state."""
    state, now = gate.replica.catch_up(), gate.now()
    if any(news(state, account, each, now) is not None for each in readings):
        gate.replica.try_decide([cmd.ObservePlan(account, readings)])
        state = gate.replica.catch_up()
    return state


def _document(gate: DirectGate, state: State) -> dict[str, object]:
    now, offset = gate.now(), gate.wall_offset_ms()
    plans = {
        account: {each.window: _window(each, now, offset) for each in windows if now < each.resets_at}
        for account, windows in state.plans.by_account.items()
    }
    return {"at": time(), "slots": _slots(state, gate), "plans": plans, "cost": _cost(state, gate)}


def _logins() -> dict[str, dict[str, str]]:
    """The variables of each account of Anthropic that has a login of its own; none if the config cannot be read."""
    try:
        loaded = load_config()
    except FleetgateError:
        return {}
    providers = loaded.settings.providers if loaded is not None else {}
    found = {name: login_variables(name, providers) for name in providers if name.partition("@")[0] == "anthropic"}
    return {name: variables for name, variables in found.items() if variables}


def _window(window: PlanWindow, now: int, offset: int) -> tuple[int, float, float]:
    """The percentage that is used, when it resets, and when it runs dry (0: not before that), in wall time."""
    dry_at = runway(window, now).dry_at
    return (
        window.used(now) // 100,
        (window.resets_at + offset) / 1000,
        0.0 if dry_at is None else (dry_at + offset) / 1000,
    )


def _slots(state: State, gate: DirectGate) -> str:
    running = sum(lease.ticket.spec.kind == "agents" for lease in state.leases.values())
    pool = state.named("agents", f"host:{gate.host}")
    limit = "" if pool is None or pool.limit >= UNLIMITED else f"/{pool.limit}"
    waiting = f", {len(state.tickets)} waiting" if state.tickets else ""
    return f"{running}{limit} running{waiting}"


def _cost(state: State, gate: DirectGate) -> str:
    """What was spent since midnight, where this machine is; empty if nothing is known."""
    offset, now = gate.wall_offset_ms(), gate.now()
    day = localtime((now + offset) // 1000)
    midnight = int(mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))) * 1000 - offset
    first = midnight // HOUR_MS
    rows = [row for _, row in closed_rows(gate.log, first, now // HOUR_MS + 1)]
    if state.usage.hour >= first:
        rows += state.usage.rows()
    cost = sum(row.usage.cost or 0 for row in rows)
    return f"${cost / 1_000_000:.2f} today" if cost else ""


def _write(folder: str, data: bytes) -> None:
    """Replace the file at once. Others see the old one or the new one."""
    path = os.path.join(folder, f"{FILE}.{os.getpid()}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(path, os.path.join(folder, FILE))
