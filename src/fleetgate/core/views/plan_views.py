"""Views of plan windows and their runway, for people and programs (rule W3). Reads only; times are log times."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.entities import BATCH, NORMAL, Reason
from fleetgate.core.model_names import Model
from fleetgate.core.plans.reading import FULL
from fleetgate.core.plans.runway import DRY, runway
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.state.state import State


class PlanView(Struct):
    """One plan window as it is now. Parts are hundredths of a percent."""

    account: str
    window: str
    used: int
    resets_at: int | None  # None: it was reset, and nothing was seen since
    length_ms: int
    family: str
    seen_at: int
    level: str  # safe, tight or dry
    burn: int | None  # in an hour, by the last hour; None: not known
    dry_at: int | None  # when nothing is left at that pace, before the reset
    reserve: int | None  # kept for interactive work; None: there is no plan for this account
    normal_opens_at: int | None  # when normal work continues; None: it is not held back
    batch_opens_at: int | None
    waiting: int  # requests that it holds back


def plan_views(state: State, now: int) -> list[PlanView]:
    """Every window that was seen lately, by account; the shortest first."""
    windows = [each for _, some in sorted(state.plans.by_account.items()) for each in some]
    waiting = _waiting(state, now)
    return [_view(each, waiting.get(each.key, 0), now) for each in windows if now < each.resets_at + each.length_ms]


def _view(window: PlanWindow, waiting: int, now: int) -> PlanView:
    found, rule = runway(window, now), window.rule
    normal, batch = (window.opens_at(each, now) for each in (NORMAL, BATCH))
    return PlanView(
        account=window.account,
        window=window.window,
        used=window.used(now),
        resets_at=window.resets_at if now < window.resets_at else None,
        length_ms=window.length_ms,
        family=window.family,
        seen_at=window.seen_at,
        level=found.level,
        burn=found.burn,
        dry_at=found.dry_at,
        reserve=None if rule is None else rule.reserve,
        normal_opens_at=normal if normal > now else None,
        batch_opens_at=batch if batch > now else None,
        waiting=waiting,
    )


def _waiting(state: State, now: int) -> dict[str, int]:
    """How many requests each window holds back, by its key; jobs that no worker offers to run are among them."""
    found: dict[str, int] = {}
    for queue in state.queues.values() if state.plans.rules.file else ():
        if queue.members and queue.has_plans:
            plan = queue.preferred.closed_plan(queue.spec.work_class, now, queue.spec.of_run)
            if plan is not None:
                found[plan.key] = found.get(plan.key, 0) + len(queue.members)
    return found


def dry_window(state: State, model: Model | None, now: int) -> Reason | None:
    """Why no more work should be started: a window of the model's account runs dry before its reset (rule A11)."""
    for window in [] if model is None else state.plans.of_model(model):
        found = runway(window, now)
        if found.level == DRY:
            percent = f"{window.used(now) / 100:.0f} %"
            spent = "is used up" if window.used(now) >= FULL else f"is {percent} used, and runs dry before its reset"
            return Reason(
                "plan_window",
                f"{window.id} {spent}",
                until=window.resets_at,
                model=str(model),
                window=window.id,
                used=window.used(now),
                resets_at=window.resets_at,
            )
    return None
