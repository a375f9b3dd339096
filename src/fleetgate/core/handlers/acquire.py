"""Acquire: a request becomes a lease at once, a ticket in the queue, or a refusal with its reason.

A request that finds room and no waiting ticket ahead of it enters; one that reaches the head of the queue later enters
through the same door (core/queue/grants.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.accounts.homes import MOST_TEXT
from fleetgate.core.deadlines import keep_ms
from fleetgate.core.entities import INTERACTIVE, Spec, Ticket
from fleetgate.core.errors import BadRequest
from fleetgate.core.events import Queued
from fleetgate.core.handlers.request_validation import RequestValidator
from fleetgate.core.model_names import account_of, canonical, parse_model
from fleetgate.core.queue.admission import Admission
from fleetgate.core.queue.grants import Grants
from fleetgate.core.queue.order import order_key
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State
from fleetgate.core.views.wait_reasons import needs_a_person, reason_for, reason_of_job, taken

EXPIRES_MS: Final = 24 * 3_600_000
MOST_TOKENS: Final = 1 << 24  # a request that allows more is taken to allow this much


class AcquireHandler:
    """The requests of one state."""

    def __init__(
        self,
        state: State,
        admission: Admission,
        grants: Grants,
        validator: RequestValidator,
        record: Callable[[ev.Event], None],
    ) -> None:
        self._state = state
        self._admission = admission
        self._grants = grants
        self._validator = validator
        self._record = record

    def acquire(self, command: cmd.Acquire, now: int) -> None:
        state = self._state
        if command.id in state.leases or command.id in state.tickets:
            return  # the same command once more: its fate is known
        spec = command.spec
        queue = self._validator.valid_queue(command, now)
        conversation = self._conversation(command) if queue.has_sets else ""
        if conversation or (command.run and queue.has_sets):
            queue = self._home_queue(queue, conversation, command.run, now)
        if command.run and self._goes_on(queue):
            queue = state.queue(replace(queue.spec, of_run=command.run))
        if command.key or command.session:
            has_one = taken(state, command.key, command.session, spec.host)
            if has_one is not None:
                self._record(ev.Deferred(command.id, spec, command.holder, has_one, command.command))
                return
        if command.job and command.wait:
            ticket = new_ticket(state, command, queue, now, conversation)
            self._record(Queued(ticket, reason_of_job(state, queue, now, ticket)))
            return
        newcomer = new_ticket(state, command, queue, now, conversation)
        if not queue.waiting:
            candidate, _ = self._admission.choose(queue, now, None, newcomer)
            if candidate is not None:
                self._grants.grant(newcomer, candidate, now, from_queue=False)
                return
        reason = reason_for(state, queue, now, newcomer)
        if not command.wait or (not queue.usable and needs_a_person(state, queue, now)):
            self._record(ev.Deferred(command.id, spec, command.holder, reason, command.command))
            return
        self._record(Queued(newcomer, reason))

    def _goes_on(self, queue: Queue) -> bool:
        """Whether calls of a run may enter while others like them wait for a window, of a plan or of a budget.

        They have a queue of their own then, so that they do not wait behind such a request.
        """
        is_planned = bool(self._state.plans.rules.file) and queue.spec.work_class != INTERACTIVE
        return is_planned or queue.has_windows

    def _conversation(self, command: cmd.Acquire) -> str:
        """What a request that may use a set belongs to: a conversation, or a session that is resumed."""
        text = command.conversation or (f"session {command.session}" if command.session else "")
        if len(text) > MOST_TEXT:
            raise BadRequest(f"a conversation of {len(text)} characters: valid are at most {MOST_TEXT}")
        return text

    def _home_queue(self, queue: Queue, conversation: str, run: str, now: int) -> Queue:
        """The queue of requests whose conversation uses the same account: as it did last, or as its run does."""
        state = self._state
        home = state.accounts.homes.find(conversation, now)
        if not home and run in state.leases and state.leases[run].model:
            home = account_of(parse_model(state.leases[run].model))
        rule = state.accounts.rules.get(canonical(home.partition("@")[0])) if home else None
        if rule is None or rule.sticky != "conversation":
            return queue
        found = queue.home_queues.get(home)
        if found is None:
            found = queue.home_queues[home] = state.queue(replace(queue.spec, home=home))
        return found

    def typical_ticket(self, spec: Spec, now: int) -> Ticket:
        """A request like this, of which nothing more is known."""
        return new_ticket(self._state, cmd.Acquire("", spec, ""), self._state.queue(spec), now)


def new_ticket(state: State, command: cmd.Acquire, queue: Queue, now: int, conversation: str = "") -> Ticket:
    """The ticket of a request that arrives now."""
    since = now if command.since is None or command.since > now else command.since
    renew_by = now + keep_ms(command.renew_ms) if command.renew_ms else 0
    estimate, most, body_bytes = command.estimate, command.estimate, 0
    size = command.size
    if size is not None and estimate is None:
        body_bytes = size.body_bytes
        estimate = state.estimates.of_call(size, queue.preferred.model, queue.project)
        if queue.reserves_most:
            most = state.estimates.most_of_call(size)
    elif estimate is None and queue.budgets and queue.spec.kind == "agents":
        estimate = state.estimates.of_run(queue.preferred.model, queue.project)
    return Ticket(  # by position, in the order of the struct: keywords cost twenty times as much
        command.id,
        queue.spec,
        command.holder,
        order_key(since, command.priority, now, state.seniority_ms),
        state.arrivals + 1,
        since,
        now,  # queued_at
        now + (command.expires_ms or EXPIRES_MS),
        command.priority,
        command.wake,
        command.command,
        command.key,
        command.role,
        command.session,
        command.job and command.wait,  # away
        0 if queue.usable else now,  # stalled_at
        command.bound,
        command.client,
        command.renew_ms,
        renew_by,
        command.asks,
        command.job,
        command.any_host,
        command.confirm,
        False,  # held
        command.not_before,
        estimate,
        most,
        body_bytes,
        command.run,
        0 if size is None else min(max(size.max_tokens, 0), MOST_TOKENS),
        command.name,
        command.log,
        command.by,
        conversation,
    )
