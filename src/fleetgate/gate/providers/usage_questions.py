"""Questions of the usage gate: the providers that this process can ask, and asking them (rules G3, Y3).

The engine says which pools want a question (`Engine.questions`); that this process asks it is written to the log
first, so that no other process does, and what it learns is a command like any other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fleetgate.config.settings import Provider, Settings
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.accounts.sets import AccountSets
from fleetgate.core.model_names import account_of, parse_model
from fleetgate.gate.wakeup import mailbox

if TYPE_CHECKING:
    from fleetgate.core.engine import Engine
    from fleetgate.core.pools.pool import Pool
    from fleetgate.gate.slots.slot_gate import SlotGate

# Usage that no HTTP path describes: called with the account's name, gives the number in flight.
UsageCallable = Callable[[str], Awaitable[float]]
Wanted = tuple[str, str, str]  # kind, name and account of a pool


class UsageSources:
    """The providers that this process can ask, by the config and a key, and those that the program answers for."""

    def __init__(self, settings: Settings, own: Mapping[str, UsageCallable] | None = None) -> None:
        self._own = dict(own or {})
        self._sets = AccountSets(settings.accounts)
        self._providers = {
            name: provider for name, provider in settings.providers.items() if provider.usage_path and provider.base_url
        }

    def __bool__(self) -> bool:
        return bool(self._own or self._providers)

    def accounts(self, models: Iterable[str]) -> tuple[str, ...]:
        """The accounts of these models that this process can ask for."""
        if not self:
            return ()
        accounts = [account_of(parse_model(model)) for model in self._sets.expand(tuple(models))]
        return tuple(sorted({account for account in accounts if self.can_ask(account)}))

    def can_ask(self, account: str) -> bool:
        return account.partition("@")[0] in self._own or bool(self._key(account))

    def wanted(self, engine: Engine, now: int) -> list[Pool]:
        """The pools that this process should ask for now."""
        return [pool for pool in engine.questions(now) if self.can_ask(pool.account)] if self else []

    async def answer(self, account: str) -> tuple[int | None, str]:
        """The number in flight, or None and why it is unknown. Never raises."""
        import asyncio

        from fleetgate.gate.providers.usage_request import TIMEOUT_S, Unknown, count_of

        provider, _, name = account.partition("@")
        own = self._own.get(provider)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if own is None:
                    return await asyncio.to_thread(self.fetch, account)
                return count_of(await own(name or "default"), "in the answer"), ""
        except TimeoutError:
            return None, f"no answer within {TIMEOUT_S:g} s"
        except Unknown as unknown:
            return None, str(unknown)
        except Exception as error:
            return None, f"the question failed: {type(error).__name__}"

    def fetch(self, account: str) -> tuple[int | None, str]:
        """`answer` for programs without asyncio: blocks, and only asks providers over HTTP. Never raises."""
        from fleetgate.gate.providers import usage_request

        try:
            return usage_request.fetch(self._providers[account], self._key(account)), ""
        except usage_request.Unknown as unknown:
            return None, str(unknown)

    def _key(self, account: str) -> str:
        """The key as it is now; "" when there is none. Accounts other than the default have a table of their own."""
        known = self._providers.get(account, Provider())
        return os.environ.get(known.key_env, "") if known.key_env else ""


class UsageQuestions:
    """Questions of a process without asyncio: each is asked in a thread, while the process waits in the queue."""

    def __init__(self, gate: SlotGate, usage: UsageSources, wanted: Callable[[], list[Wanted]]) -> None:
        self._gate = gate
        self._usage = usage
        self._wanted = wanted  # the pools that the engine wants a question for
        self._answers: deque[cmd.AnswerUsage] = deque()  # filled by threads

    def ask_if_due(self) -> bool:
        """Pass answers to the gate and ask what is due now; whether there was an answer."""
        if not self._usage:
            return False
        answers = self._drain()
        if answers:
            self._gate.decide(answers)
        pools = {(kind, pool): account for kind, pool, account in self._wanted() if self._usage.can_ask(account)}
        if pools:
            me = self._gate.me
            for decided in self._gate.decide([cmd.AskUsage(kind, pool, me) for kind, pool in pools]):
                for event in decided.events:
                    if isinstance(event, ev.UsageAsked):
                        self._ask(event, pools[event.kind, event.pool])
        return bool(answers)

    def _drain(self) -> list[cmd.AnswerUsage]:
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def _ask(self, asked: ev.UsageAsked, account: str) -> None:
        from threading import Thread

        Thread(target=self._run, args=(asked, account), daemon=True).start()

    def _run(self, asked: ev.UsageAsked, account: str) -> None:
        count, error = self._usage.fetch(account)
        self._answers.append(cmd.AnswerUsage(asked.kind, asked.pool, asked.by, count, error))
        mailbox.send(self._gate.address, b"answered")
