"""Why a request waits or was refused (rule A6): one code for programs, one sentence for people."""

from __future__ import annotations

from fleetgate.core.accounts.choice import AccountChoice, in_order
from fleetgate.core.accounts.switch_reasons import NO_CREDENTIAL, in_words
from fleetgate.core.budgets.budget import Budget
from fleetgate.core.entities import Reason, Ticket
from fleetgate.core.limits import NEVER
from fleetgate.core.model_names import parse_model
from fleetgate.core.plans.reading import FULL
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.backoff import NEEDS_A_PERSON
from fleetgate.core.pools.effective_caps import HELD_BACK, UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.obstacles import obstacle_of
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State

# Every code that a reason can have, with its meaning; NAME_concurrency_cap stands for the named caps.
CODES = {
    "concurrency_cap": "a pool is full",
    "NAME_concurrency_cap": "a pool whose cap has a name is full, e.g. opus_concurrency_cap",
    "cooling": "a slot is free but still cooling down",
    "proving": "a slot is free, but one call at a time tries whether the provider allows that many at once",
    "paused": "a pool is paused",
    "draining": "the host is drained: nothing new starts there until `fleetgate drain HOST --end`",
    "recovering": "the log may have lost its last commits; for a few seconds running agents are counted first",
    "backoff": "every candidate is backed off; `cause` says why",
    "no_credentials": "every candidate's provider is known to have no credentials",
    "budget": "a rate or budget has too little left: `budget` and `left` say which and how much, `until` when it fits",
    "plan_window": "a plan window is kept for other work: `window`, `used` and `resets_at` say which, `until` when it "
    "continues",
    "moving": "a conversation that changes its account waits until the new one has taken in others before it",
    "usage_gate": "a slot is free, but the provider's own count is not below the limit, or it is being asked",
    "nested": "it was started inside a run that holds the slot it would need",
    "behind": "there is room, but others are ahead in the queue",
    "key_taken": "a request with the same idempotency key is queued or running",
    "session_taken": "a run with the same session is queued or running on this host",
    "no_worker": "a job, and no worker is running that could take it: `fleetgate worker` starts one",
    "workers_busy": "a job, and every worker process is busy",
    "held": "a job whose turn came and that must be approved: `fleetgate approve`",
    "retry_pause": "a job that failed and is tried again later",
    "passed_over": "a slot was offered and not taken; the ticket keeps its place until its process is heard of",
}

# What is the matter with an account of a set, by the code of the reason.
_WORDS = {
    "paused": "paused",
    "budget": "out of budget",
    "usage_gate": "asked for its own count",
    "moving": "taking in others first",
}

# What a person must do, by the cause of a backoff.
_REMEDIES = {"auth": "log in again, and if that does not end it", "quota": "check the billing, then"}


def reason_for(state: State, queue: Queue, now: int, newcomer: Ticket | None = None) -> Reason:
    """Why the head of this queue, or a newcomer behind it, does not enter now: by the candidate it prefers."""
    if (state.draining or now < state.recovers_until) and state.is_closed(queue.spec, now):
        return _closed(state, queue, now)
    tried = queue.usable or state.candidates_to_try(queue, now)
    if tried and queue.has_sets:
        return _of_set(state, queue, tried, queue.head() or newcomer, now)
    if tried:
        reason = _with(tried[0], queue, queue.head() or newcomer, now)
    else:
        reason = backed_off(state, queue.candidates, now)
    if left_out := state.accounts.left_out(queue.spec.models, queue.spec.accounts):
        reason.text += f"; {in_words({NO_CREDENTIAL: left_out})}"
    return reason


def _of_set(state: State, queue: Queue, tried: tuple[Candidate, ...], ticket: Ticket | None, now: int) -> Reason:
    """Why a request enters with no account of a set: by its home, while it waits for that; else by all of them."""
    if queue.waiting and not queue.spec.home and not state.backoffs:
        full = _all_full(state, queue, now)
        if full is not None:
            return full
    home = queue.home
    if home is not None and ticket is not None:
        obstacle = obstacle_of(home, queue, ticket, now) if home in tried else None
        if AccountChoice(state).waits_for_home(home, queue, None if queue.waiting else ticket, obstacle, now):
            reason = _with(home, queue, ticket, now) if home in tried else backed_off(state, (home,), now)
            reason.text += f"; its conversation stays with {parse_model(home.model).account} for now"
            return reason
    reasons = [_with_account(each, queue, ticket, now) for each in in_order(tried, now)]
    for reason in reasons:
        if reason.code == "behind":
            return reason
    others = [each for each in queue.candidates if each not in tried and state.backoffs_on(each)]
    shared = reasons[0].pools[:1]
    if shared and not others and len(reasons) > 1 and all(each.pools == shared for each in reasons):
        return reasons[0]  # it is not about the accounts
    reasons += [backed_off(state, (each,), now) for each in others]
    closed: dict[str, list[str]] = {}
    for reason in reasons:
        closed.setdefault(_word(reason), []).append(parse_model(reason.model).account)
    if left_out := state.accounts.left_out(queue.spec.models, queue.spec.accounts):
        closed[NO_CREDENTIAL] = left_out
    first, known = reasons[0], [reason.until for reason in reasons if reason.until is not None]
    first.text = f"no account has room: {in_words(closed)}"
    first.pools = list(dict.fromkeys(pool for reason in reasons for pool in reason.pools))
    first.until = min(known) if len(known) == len(reasons) else None
    return first


def _all_full(state: State, queue: Queue, now: int) -> Reason | None:
    """The reason where a pool of each account is full, as nearly always; it costs little, however many accounts."""
    obstacles = queue.obstacles
    if len(obstacles) != len(queue.candidates) or not queue.parking_id:
        return None
    for resource, _, _ in obstacles:
        if not isinstance(resource, Pool) or now < resource.paused_until:
            return None
    if not queue.full_text:
        names = [parse_model(candidate.model).account for _, _, candidate in obstacles]
        left_out = state.accounts.left_out(queue.spec.models, queue.spec.accounts)
        closed = {"full": names, NO_CREDENTIAL: left_out} if left_out else {"full": names}
        queue.full_text = f"no account has room: {in_words(closed)}"
    pool, own_limit, candidate = obstacles[0]
    assert isinstance(pool, Pool)
    limit = pool.limit_for(own_limit)
    code, text, until = _of_pool(pool, own_limit, limit, queue.slots, NEVER, now)
    pools = [resource.id for resource, _, _ in obstacles]
    if len(pools) > 1 and obstacles[1][0] is pool and all(resource is pool for resource, _, _ in obstacles):
        pools = pools[:1]  # it is not about the accounts
    else:
        text = queue.full_text
    shown = None if limit >= UNLIMITED else limit
    return Reason(code, text, pool.id, pools, until, pool.used + pool.foreign, shown, candidate.model)


def _word(reason: Reason) -> str:
    """What is the matter with an account that has this reason."""
    if reason.code == "backoff":
        return f"backed off ({reason.cause})"
    if reason.code == "plan_window":
        return f"held back by its {reason.window.partition(' ')[2]} window"
    return _WORDS.get(reason.code, "full")


def _with_account(candidate: Candidate, queue: Queue, ticket: Ticket | None, now: int) -> Reason:
    """Why a request does not enter with an account that is not its home."""
    reason, member = _with(candidate, queue, ticket, now), candidate.member
    if not queue.spec.home or reason.code != "behind" or member is None or member.ramp.opens_at(now) <= now:
        return reason
    text = f"{member.name} takes in other conversations first"
    return Reason("moving", text, until=member.ramp.opens_at(now), model=candidate.model)


def _with(candidate: Candidate, queue: Queue, ticket: Ticket | None, now: int) -> Reason:
    """Why a request does not enter with this candidate."""
    slots = queue.slots
    if candidate.plans:
        plan = candidate.closed_plan(queue.spec.work_class, now, "" if ticket is None else ticket.run)
        if plan is not None:
            return _of_plan(plan, queue.spec.work_class, candidate.model, now)
    blocking, until = [], 0
    for need in candidate.needs:
        opens_at = need[0].opens_at(slots, need[1], queue, now)
        if opens_at > now:
            blocking.append(need)
            until = until or opens_at
    model = candidate.model
    if not blocking:
        gate = _closed_gate(candidate, queue, now)
        if gate is not None:
            return _of_usage(gate, model)
        for budget in candidate.budgets if ticket is not None else ():
            assert ticket is not None
            opens_at = budget.opens_at(ticket, queue, now)
            if opens_at > now:
                return _of_budget(budget, ticket, opens_at, model, now)
        ahead = queue.waiting
        return Reason(
            "behind", f"{ahead} ahead in the queue" if ahead else "others are ahead in the queue", model=model
        )
    pool, own_limit = blocking[0]
    limit = pool.limit_for(own_limit)
    code, text, known_until = _of_pool(pool, own_limit, limit, slots, until, now)
    pools = [pool.id] if len(blocking) == 1 else [each.id for each, _ in blocking]
    shown = None if limit >= UNLIMITED else limit
    return Reason(code, text, pool.id, pools, known_until, pool.used + pool.foreign, shown, model)


def _of_budget(budget: Budget, ticket: Ticket, until: int, model: str, now: int) -> Reason:
    left, unit = budget.free(now), budget.rule.unit
    wanted = max(budget.wanted(ticket), 1)
    shown_left = f"{max(left, 0)} {unit}" if unit != "usd" else f"${max(left, 0) / 1_000_000:.2f}"
    shown_wanted = str(wanted) if unit != "usd" else f"${wanted / 1_000_000:.2f}"
    text = f"{budget.id} has {shown_left} left, and this request needs {shown_wanted}"
    if until >= NEVER:
        text = f"another request waits longer for {budget.id}, which has {shown_left} left"
    known = None if until >= NEVER else until
    return Reason("budget", text, until=known, model=model, budget=budget.id, left=left)


def _of_plan(plan: PlanWindow, work_class: str, model: str, now: int) -> Reason:
    until, used = plan.opens_at(work_class, now), plan.used(now)
    percent = f"{used / 100:.0f} %"
    assert plan.rule is not None
    if now >= plan.resets_at:
        text = f"{plan.id} was reset, and how much is used is not known yet: {work_class} work waits for the pace"
    elif used >= FULL:
        text = f"{plan.id} is used up ({percent})"
    elif used >= FULL - plan.rule.reserve:
        text = f"{plan.id} is {percent} used, and the rest is kept for interactive work"
    else:
        elapsed = max(now - plan.starts_at, 0) * 100 // plan.length_ms
        text = f"{plan.id} is {percent} used after {elapsed} % of its time: {work_class} work waits for the pace"
    return Reason("plan_window", text, until=until, model=model, window=plan.id, used=used, resets_at=plan.resets_at)


def _closed_gate(candidate: Candidate, queue: Queue, now: int) -> Pool | None:
    return next((pool for pool in candidate.gates if pool.awaits_answer(queue.slots, queue, now)), None)


def _closed(state: State, queue: Queue, now: int) -> Reason:
    host = queue.spec.host
    if now >= state.recovers_until:
        return Reason("draining", f"{host} is drained: nothing new starts there until `fleetgate drain {host} --end`")
    text = "the store may have lost its last writes: running agents are counted first"
    return Reason("recovering", text, until=state.recovers_until)


def reason_of_job(state: State, queue: Queue, now: int, ticket: Ticket | None = None) -> Reason:
    """Why a job does not run that no worker offers to run; without a ticket, of one that is new."""
    if ticket is not None and (ticket.held or ticket.not_before > now):
        return of_job_aside(ticket)
    reason = reason_for(state, queue, now)
    if reason.code != "behind":
        return reason
    user = queue.spec.user
    if any(lease.ticket.job and lease.ticket.spec.user == user for lease in state.leases.values()):
        return Reason(
            "workers_busy",
            "all worker processes are busy; to run more at once: `fleetgate worker -n N`",
            model=reason.model,
        )
    whose = f" as {user}, since only a worker of {user} may run it" if user else ""
    return Reason("no_worker", f"no worker is running that could take it; start one with `fleetgate worker`{whose}")


def of_job_aside(ticket: Ticket) -> Reason:
    """Why no worker may even offer to run a job: it must be approved, or has failed a moment ago."""
    if ticket.held:
        return Reason("held", f"its turn came; it waits for `fleetgate approve {ticket.id}`")
    return Reason("retry_pause", "it failed, and is tried again", until=ticket.not_before)


def _of_usage(pool: Pool, model: str) -> Reason:
    count, limit = pool.usage_gate.count, pool.limit
    if count is None:
        text = f"{pool.account} is being asked how many are in flight there"
    elif count >= limit:
        text = f"{pool.account} itself counts {count} in flight, and the limit is {limit}"
    else:
        text = f"{pool.account} itself counts {count} in flight of {limit}; each answer lets one in"
    return Reason("usage_gate", text, pool=pool.id, pools=[pool.id], in_flight=count, limit=limit, model=model)


def backed_off(state: State, candidates: tuple[Candidate, ...], now: int) -> Reason:
    """All these candidates are backed off: names the one that comes back first, and its longest backoff."""
    held = [(max(state.backoffs_on(each), key=lambda backoff: backoff.probe_at), each) for each in candidates]
    backoff, candidate = min(held, key=lambda pair: pair[0].probe_at)
    text = f"{candidate.model} is backed off: {backoff.reason}"
    if backoff.key != candidate.model:
        text += f" of {backoff.key}"
    if backoff.probing:
        text += f"; {backoff.probing} is trying whether it is over"
    if backoff.reason in _REMEDIES:
        text += f"; {_REMEDIES[backoff.reason]}: `fleetgate backoff clear {backoff.key}`"
    until = backoff.probe_at if backoff.probe_at > now else None
    return Reason("backoff", text, until=until, model=candidate.model, cause=backoff.reason)


def needs_a_person(state: State, queue: Queue, now: int) -> bool:
    """Whether waiting is no use, because every candidate needs a login or a payment (rule R3)."""
    if state.candidates_to_try(queue, now):
        return False
    held = [state.backoffs_on(candidate) for candidate in queue.candidates]
    return all(any(backoff.reason in NEEDS_A_PERSON for backoff in backoffs) for backoffs in held)


def opens_at(state: State, queue: Queue, now: int, *, run: bool = False) -> int:
    """When the first candidate opens, as far as providers said when; `now` if one is not closed in that way.

    `run`: for a call of a run, which goes on while other work is held back by a plan window.

    A login, a bill or a manual pause is ended by a person: nothing is known about when.
    """
    first = now
    for number, candidate in enumerate(queue.candidates):
        held = state.backoffs_on(candidate)
        if any(backoff.reason in NEEDS_A_PERSON for backoff in held):
            return now
        moments = [backoff.probe_at for backoff in held]
        moments += [pool.paused_until for pool, _ in candidate.needs if pool.pause_cause == "rate_limited"]
        plan = candidate.closed_plan(queue.spec.work_class, now, "run" if run else "")
        if plan is not None:
            moments.append(plan.opens_at(queue.spec.work_class, now))
        moment = max(moments, default=now)
        if moment <= now:
            return now
        first = moment if not number else min(first, moment)
    return first


def limit_of(pool: Pool, own_limit: int) -> int | None:
    """The limit in force for a request; None: unlimited."""
    limit = pool.limit_for(own_limit)
    return None if limit >= UNLIMITED else limit


def _of_pool(pool: Pool, own_limit: int, limit: int, slots: int, until: int, now: int) -> tuple[str, str, int | None]:
    """Code, text and end of a reason, of a pool that may be worth a look again at `until`."""
    if now < pool.paused_until:
        why = " after a rate limit" if pool.pause_cause == "rate_limited" else ""
        return "paused", f"{pool.id} is paused{why}", pool.paused_until
    in_use = pool.used + pool.foreign
    if in_use + slots > limit:
        return pool.cap.reason, _full(pool, in_use, limit, own_limit), None
    level = in_use + pool.cooldown.slots + slots
    if level > limit:
        return "cooling", f"{pool.id}: a slot is cooling down", until if until < NEVER else None
    adaptive = pool.limiter.adaptive
    if adaptive is not None and not adaptive.admits(level, limit, now, pool.used, pool.cooldown.slots):
        text = f"{pool.id}: {adaptive.belief.proven} of {limit} at once are proven; one call at a time tries one more"
        return "proving", text, None
    return "behind", f"what frees up in {pool.id} is kept for a request that waited longer", None


def _full(pool: Pool, in_use: int, limit: int, own_limit: int) -> str:
    if own_limit == HELD_BACK and in_use < pool.limit:
        kept = pool.cap.held_back(pool.limit)
        return f"{in_use} of {pool.limit} slots of {pool.id} are taken, and {kept} are kept for interactive work"
    by = f" ({pool.foreign} by agents started outside Fleetgate)" if pool.foreign else ""
    if in_use > limit:  # the limit was lowered below what is in use
        text = f"{pool.id}: {in_use} in use{by}, the limit is {limit}"
    else:
        text = f"{in_use} of {limit} slots of {pool.id} are taken{by}"
    if pool.cap.source == "built-in" and own_limit <= 0:
        text += f"; this cap is built in: raise it with `fleetgate cap set '{pool.cap.selector.text}' N`"
    return text


def taken(state: State, key: str, session: str, host: str) -> Reason | None:
    """Why a request with this key or session is refused: there is one already (rules A10, R9)."""
    if key and key in state.keys:
        return Reason("key_taken", f"the key {key!r} is {_whose(state, state.keys[key])}")
    if session and (host, session) in state.sessions:
        return Reason("session_taken", f"the session {session!r} is {_whose(state, state.sessions[host, session])}")
    return None


def _whose(state: State, ident: str) -> str:
    lease = state.leases.get(ident)
    holder = lease.lives_with if lease is not None else state.tickets[ident].holder
    who = f"process {_pid(holder)}" if holder else "a job"
    return f"{'running' if lease is not None else 'in the queue'} as {ident} ({who})"


def _pid(process: str) -> str:
    """`pid on host` of a process's name."""
    parts = process.split("|")
    return f"{parts[3]} on {parts[0]}" if len(parts) == 5 else process
