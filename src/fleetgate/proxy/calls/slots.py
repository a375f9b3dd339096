"""The slot of a call: its place in the queue, its grant, and its release (rules X2, X3).

The rules kept here:

- A slot is held while a call is at the provider, and at no other time.
- It is released once, with what became of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from msgspec.structs import replace

from fleetgate.core.entities import Lease
from fleetgate.core.model_names import parse_model
from fleetgate.core.prices import Price
from fleetgate.core.usage import Reading, Usage
from fleetgate.gate.library.usage_arguments import UNUSED
from fleetgate.gate.serving.model_calls import ModelCalls, NotInTime, PendingCall
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.calls.exchange import CallCandidate, Exchange
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.http_client.connection import UpstreamResponse
from fleetgate.proxy.request_body import call_size
from fleetgate.proxy.unproven_keys import TrialPlaces
from fleetgate.signals.outcome import OK, outcome

_FRESH_MS = 1000  # rates of headers that came earlier say nothing about now
ANOTHER_ACCOUNT = outcome("local_error", "proxy.another_account", "the call was of another account")
NOT_ITS_KEY = outcome("local_error", "proxy.not_its_key", "the provider refused a key that is not the account's own")


class KeyJudge(Protocol):
    """Judges the keys that clients bring along."""

    def look_again(self, exchange: Exchange) -> None: ...
    def hear_refusal(self, exchange: Exchange, response: UpstreamResponse) -> bool: ...


class CallSlots:
    """The slots of all calls."""

    def __init__(
        self, calls: ModelCalls, key_judge: Callable[[], KeyJudge], price_of: Callable[[str], Price | None]
    ) -> None:
        self._calls = calls
        self._key_judge = key_judge
        self._price_of = price_of
        self.trials = TrialPlaces()

    def adopt(self, exchange: Exchange) -> None:
        """The key of a call that is under way has been accepted: it gets a slot of its account, if one is free.

        It may hold that slot already (proxy/calls/key_trial.py); those of other accounts are given back.
        It gets it before others with the same key, so that no more are under way than the account may have.
        """
        if exchange.place is None:
            return
        if exchange.lease:
            self.release_trial_place(exchange)
            return
        self._key_judge().look_again(exchange)
        if lease := exchange.guards.pop(exchange.account, ""):
            exchange.lease = lease
            self.release_trial_place(exchange)
            return
        self._release_guards(exchange)
        try:
            pending = self.enqueue(exchange, models=(exchange.model,))
            if pending.future.done():
                self._take_granted_slot(exchange)
        except (StoreError, NotInTime):
            pass  # it goes on without one
        finally:
            self.release_trial_place(exchange)

    def _take_granted_slot(self, exchange: Exchange) -> None:
        """The slot that was asked for, if it is there; else the call goes on without one."""
        pending = exchange.pending
        assert pending is not None
        future = pending.future
        exchange.queued_at = 0.0
        if future.done() and not future.cancelled() and future.exception() is None:
            got = future.result()
            if isinstance(got, Lease):
                exchange.pending, exchange.lease = None, got.id
                return
        self.leave_queue(exchange)

    def release_trial_place(self, exchange: Exchange) -> None:
        """Give back the place of a call whose key is unproven, if it has one."""
        if exchange.place is not None:
            self.trials.leave(exchange.place)
            exchange.place = None
        if exchange.login_lock is not None:
            exchange.login_lock.release()
            exchange.login_lock = None
        self._release_guards(exchange)

    def _release_guards(self, exchange: Exchange) -> None:
        for lease in exchange.guards.values():
            self._calls.leave(lease, ANOTHER_ACCOUNT, UNUSED)
        exchange.guards = {}

    def release_slot(self, exchange: Exchange) -> None:
        """Give the slot back, if one is held, with what became of it."""
        self.release_trial_place(exchange)
        if exchange.pending is not None:
            self._take_granted_slot(exchange)
        if exchange.lease:
            said = exchange.outcome or OK
            if said.kind == "auth" and not exchange.own:
                said = NOT_ITS_KEY
            if said.kind == "server_error" and said.wait_ms is None:
                said = replace(said, wait_ms=0)  # it is passed on, and the client decides when to try again
            self._calls.leave(exchange.lease, said, self._usage_of(exchange), _fresh_readings(exchange))
            exchange.lease, exchange.readings = "", ()

    def _usage_of(self, exchange: Exchange) -> Usage | None:
        """What the call used, with its cost; None where that is not known, and the estimate stands (rule U1)."""
        usage = exchange.usage if exchange.reader is None else exchange.reader.usage()
        if usage is None or usage.cost is not None or not usage.calls:
            return usage
        price = self._price_of(exchange.model)
        return usage if price is None else replace(usage, cost=price.cost(usage))

    # The queue.

    def take_slot(self, exchange: Exchange) -> Lease:
        """The slot that was waited for, now that the wait is over. NotInTime, StoreError, NotAdmitted."""
        pending, exchange.pending = exchange.pending, None
        assert pending is not None
        lease = self._calls.granted(pending)
        exchange.lease, exchange.model = lease.id, lease.model
        return lease

    def enqueue(self, exchange: Exchange, models: tuple[str, ...] = ()) -> PendingCall:
        """Get in the queue. NotInTime at once where every model is known to be closed for longer than the request
        waits.
        """
        models = models or exchange.models
        anyone = len(models) > 1 and self._calls.is_paused(models[0])
        spec = self._calls.spec(
            *(models, exchange.project, anyone, exchange.work_class, exchange.session, exchange.access_key_name),
            accounts=exchange.set_accounts,
        )
        self._calls.check_in_time(spec, left_s(exchange), exchange.run)
        exchange.queued_at = exchange.queued_at or perf_counter()
        exchange.pending = self._calls.ask(
            spec,
            exchange.since,
            priority=exchange.priority,
            what=f"{exchange.method} {exchange.path[:60].decode('latin-1')}",
            client=exchange.client,
            size=call_size(exchange.fields, self._price_of(models[0])),
            run=exchange.run,
            conversation=exchange.conversation,
        )
        return exchange.pending

    def leave_queue(self, exchange: Exchange) -> None:
        """Leave the queue, or give up a slot that was not used."""
        if exchange.pending is not None:
            self._calls.give_up(exchange.pending)
            exchange.pending = None


def chosen_candidate(exchange: Exchange) -> CallCandidate:
    """What a call is sent with, now that it has its slot. ProxyRefusal where that is not known here."""
    candidate = exchange.candidates.get(exchange.model)
    if candidate is None:  # the set has changed meanwhile, or another machine has changed it
        sentence = f"the key of {exchange.model.partition('/')[0]} is not known here: its set has just changed"
        raise ProxyRefusal(503, "no_credentials", sentence, 1)
    if exchange.uses_set:
        exchange.key, exchange.account = candidate.key, parse_model(exchange.model).account
    return candidate


def left_s(exchange: Exchange) -> float:
    """How much longer a call may wait."""
    return max(exchange.hold_s - (perf_counter() - exchange.began), 0.0)


def _fresh_readings(exchange: Exchange) -> tuple[Reading, ...]:
    """The rates that the head of the response reported, with their age; none where they say nothing about now."""
    age_ms = int((perf_counter() - exchange.headed_at) * 1000)
    return tuple(replace(each, age_ms=age_ms) for each in exchange.readings) if age_ms < _FRESH_MS else ()
