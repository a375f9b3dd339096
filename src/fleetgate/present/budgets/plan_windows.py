"""Plan windows as text and JSON (rule W3): `63 % of 5h, resets 14:10, runs dry 13:20`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.plans.reading import FULL
from fleetgate.core.plans.runway import DRY, TIGHT
from fleetgate.core.state.state import State
from fleetgate.core.views.plan_views import PlanView, plan_views
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import span


class PlanShape(Struct):
    """A plan window, as in `fleetgate status --json` and `GET /v1/plans`. Times are RFC 3339 in UTC."""

    account: str
    window: str  # 5h, 7d, 7d_opus
    used_percent: float
    resets_at: str | None  # null: it was reset, and nothing was seen since
    length_s: float
    models: str | None  # the models that it counts, as a glob; null: all of the account
    seen_at: str | None
    runway: str  # safe, tight or dry
    burn_percent_per_hour: float | None
    dry_at: str | None
    reserve_percent: float | None  # null: there is no plan for the account in the config
    normal_continues_at: str | None  # null: normal work is not held back
    batch_continues_at: str | None
    waiting: int
    text: str


class PlansShape(Struct):
    plans: list[PlanShape]


def plans_json(state: State, moments: LogTimes) -> list[PlanShape]:
    return [_plan_json(view, moments) for view in plan_views(state, moments.now)]


def _plan_json(view: PlanView, moments: LogTimes) -> PlanShape:
    return PlanShape(
        account=view.account,
        window=view.window,
        used_percent=view.used / 100,
        resets_at=moments.utc(view.resets_at),
        length_s=view.length_ms / 1000,
        models=view.family or None,
        seen_at=moments.utc(view.seen_at),
        runway=view.level,
        burn_percent_per_hour=None if view.burn is None else view.burn / 100,
        dry_at=moments.utc(view.dry_at),
        reserve_percent=None if view.reserve is None else view.reserve / 100,
        normal_continues_at=moments.utc(view.normal_opens_at),
        batch_continues_at=moments.utc(view.batch_opens_at),
        waiting=view.waiting,
        text=plan_text(view, moments),
    )


def percent(used: int) -> str:
    return f"{used // 100} %"


def plan_text(view: PlanView, moments: LogTimes) -> str:
    """`63 % of 5h, resets 14:10, runs dry 13:20`."""
    parts = [f"{percent(view.used)} of {view.window}"]
    if view.resets_at is not None:
        parts.append(f"resets {_clock(view.resets_at, moments)}")
    return ", ".join([*parts, runway_text(view, moments)])


def runway_text(view: PlanView, moments: LogTimes) -> str:
    """`safe`, `tight`, or `runs dry 13:20`."""
    if view.level == DRY and view.used >= FULL:
        return "used up"
    if view.level == DRY and view.dry_at is not None:
        return f"runs dry {_clock(view.dry_at, moments)}"
    return view.level


def held_text(view: PlanView, moments: LogTimes) -> str:
    """What the window holds back, and until when; empty if nothing."""
    if view.normal_opens_at is not None:
        return f"normal and batch work wait until {_clock(view.normal_opens_at, moments)}"
    if view.batch_opens_at is not None:
        return f"batch work waits until {_clock(view.batch_opens_at, moments)}"
    return ""


def style_of(view: PlanView) -> str:
    """The colour of a window: red runs dry, yellow is tight."""
    return "red" if view.level == DRY else "yellow" if view.level == TIGHT else "green"


def dry_message(event: ev.PlanRunway, at: int, clock: Callable[[int], str]) -> str:
    """`anthropic: 63 % of 5h are used, it runs dry at 13:20, 50m before its reset`."""
    early = f", {span(event.resets_at - event.dry_at)} before its reset" if event.dry_at > at else ""
    when = f"runs dry {clock(event.dry_at)}{early}" if event.dry_at > at else f"resets {clock(event.resets_at)}"
    return f"{event.account}: {percent(event.used)} of {event.window} are used, it {when}"


def _observed(event: ev.PlanObserved) -> str:
    return f"{event.account}: {percent(event.used)} of its {event.window} window are used"


def _runway(event: ev.PlanRunway) -> str:
    if event.level != "dry":
        return f"{event.account}: its {event.window} window lasts until its reset again"
    early = f" {span(event.resets_at - event.dry_at)} before its reset" if event.dry_at else ""
    return f"{event.account}: its {event.window} window runs dry{early}, {event.used // 100} % are used"


def _clock(at: int, moments: LogTimes) -> str:
    return moments.clock(at).removeprefix("at ").removeprefix("on ").replace(" at ", " ")


# Events as the history says them, which has no clock.
PLAN_SENTENCES: dict[type, Callable[[Any], str]] = {
    ev.PlanObserved: _observed,
    ev.PlanRunway: _runway,
    ev.Preempted: lambda event: f"job {event.id} gives way to {event.ticket}, and returns to the queue",
}
