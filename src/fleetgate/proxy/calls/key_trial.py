"""The wait of a call whose key is unproven: for its turn, and until it is known whose key it is (rules X5, M1).

It ends in one of three ways:

- The account is known. The call goes to the queue of that account.
- It is not known, and the call is sent alone: its own answer will show what the key is worth (`exchange.apart`). One
  with the token of a login holds a slot of each account that it may be of.
- It can be of no account that is known, since none is. The call goes to the queue as one of its own.

A call of the last two kinds, with the token of a login, is the only one at its provider until its answer begins: the
next token may be of the same account.
"""

from __future__ import annotations

import asyncio

from fleetgate.core.model_names import DEFAULT_ACCOUNT
from fleetgate.gate.serving.model_calls import NotInTime
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.calls.shared_parts import CallParts
from fleetgate.proxy.calls.slots import left_s
from fleetgate.proxy.errors import ProxyRefusal, no_slot
from fleetgate.proxy.unproven_keys import TooManyTrials, TrialPlace


async def wait_for_trial(parts: CallParts, exchange: Exchange) -> None:
    """Take a place among the calls with unproven keys, and find out whose key it is. ProxyRefusal."""
    callers, trials = parts.callers, parts.slots.trials
    place = TrialPlace(exchange.route.provider, exchange.account)
    try:
        async with asyncio.timeout(left_s(exchange)):
            await trials.enter(place)
            exchange.place = place
            callers.look_again(exchange)
            if exchange.apart:
                await callers.identify(exchange)
            if exchange.apart and callers.shows_login(exchange):
                lock = trials.login_lock(place.provider)
                await lock.acquire()
                exchange.login_lock = lock
                await callers.reload()
    except (TimeoutError, TooManyTrials):
        sentence = "too many calls wait until the provider has accepted their keys for the first time"
        raise ProxyRefusal(429, "unverified_key", sentence, 1) from None
    if exchange.apart and not callers.counts_at_once(exchange):
        await _guard_logins(parts, exchange)
    elif exchange.login_lock is None:
        parts.slots.release_trial_place(exchange)


async def _guard_logins(parts: CallParts, exchange: Exchange) -> None:
    """Hold a slot of each account that the token of a login may be a new one of, until its answer says whose it is.

    So the call exceeds no cap, and it is counted as of none of them before. The slots are taken in one order, so no two
    calls wait for each other. An account that is held back for long admits no calls anyway. ProxyRefusal.
    """
    for account, model in parts.callers.possible_logins(exchange):
        exchange.set_accounts = (account,) if account == DEFAULT_ACCOUNT else ()  # that one, and no other of a set
        try:
            pending = parts.slots.enqueue(exchange, models=(model,))
            lease = await parts.calls.enter(pending, left_s(exchange))
        except NotInTime as error:
            if not error.outlasts:
                raise no_slot(error) from None
            continue
        except StoreError:
            continue  # no call of that account gets a slot now
        finally:
            exchange.pending, exchange.set_accounts = None, ()
        exchange.guards[account] = lease.id
