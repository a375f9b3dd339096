"""Why a request enters with another account than it would have (rule Z4): one sentence, for the history."""

from __future__ import annotations

from fleetgate.core.budgets.budget import Budget
from fleetgate.core.entities import Ticket
from fleetgate.core.model_names import canonical, parse_model
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.obstacles import obstacle_of
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State

NO_CREDENTIAL = "without a credential for this request"


def reason_of_switch(state: State, ticket: Ticket, chosen: Candidate, now: int) -> str:
    """Why a request leaves its home, or is spilled; nothing for one that does neither."""
    member, home = chosen.member, ticket.spec.home
    if member is None or member.account == home or (not home and not member.spill):
        return ""
    queue = state.queue(ticket.spec)
    name = home.partition("@")[2] or "default"
    if queue.home is not None and queue.home.member is not None and queue.home.member.spill and not member.spill:
        return f"returned from {name} to {member.name}"
    others = [each for each in queue.candidates if each.group == chosen.group and each is not chosen]
    before = [each for each in others if each.member is not None and (each is queue.home or not each.member.spill)]
    if home and not member.spill:
        before = [each for each in before if each is queue.home]
    closed: dict[str, list[str]] = {}
    for each in before:
        word = closed_word(state, each, queue, ticket, now)
        if each.member is not None and word:
            closed.setdefault(word, []).append(each.member.name)
    rule = state.accounts.rules.get(canonical(parse_model(chosen.model).provider))
    left_out = state.accounts.left_out(ticket.spec.models, ticket.spec.accounts)
    used = rule.use if rule is not None else ()
    ours = (name,) if home and not member.spill else used
    if found := [each for each in ours if each in left_out]:
        closed[NO_CREDENTIAL] = found
    start = f"moved from {name} to {member.name}" if home else f"spilled to {member.name}"
    return f"{start}: {in_words(closed)}" if closed else start


def closed_word(state: State, candidate: Candidate, queue: Queue, ticket: Ticket, now: int) -> str:
    """Why an account cannot be used now, in a word or two; nothing where it can."""
    held = state.backoffs_on(candidate)
    if held:
        return f"backed off ({max(held, key=lambda backoff: backoff.until).reason})"
    obstacle = obstacle_of(candidate, queue, ticket, now)
    if obstacle is not None:
        return _word(obstacle[0], now)
    return "taking in others first" if candidate.member is not None and candidate.member.ramp.opens_at(now) else ""


def _word(resource: Resource, now: int) -> str:
    if isinstance(resource, Pool):
        return "paused" if now < resource.paused_until else "full"
    if isinstance(resource, PlanWindow):
        return f"held back by its {resource.window} window"
    assert isinstance(resource, Budget), resource
    return "out of budget"


def in_words(closed: dict[str, list[str]]) -> str:
    """Accounts by what is the matter with them: "work and spare are full, api is paused"."""
    return ", ".join(f"{_joined(names)} {'is' if len(names) == 1 else 'are'} {word}" for word, names in closed.items())


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
