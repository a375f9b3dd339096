"""The table of the handler of each command. The engine itself adds `Tick` and `Bypass`.

This module is not compiled, unlike the engine: it runs once for each engine, and as C it would be 60 kB
(docs/decisions/0018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleetgate.core import commands as cmd
from fleetgate.core.access.key_handler import AccessKeyHandler
from fleetgate.core.access.keys import CreateKey, RemoveKey, RotateKey
from fleetgate.core.handlers.adopt import AdoptHandler
from fleetgate.core.handlers.caps import CapHandler
from fleetgate.core.handlers.hosts import HostHandler
from fleetgate.core.handlers.jobs import JobHandler
from fleetgate.core.handlers.tickets import TicketHandler

if TYPE_CHECKING:
    from fleetgate.core import events as ev
    from fleetgate.core.handlers.acquire import AcquireHandler
    from fleetgate.core.handlers.backoffs import BackoffHandler
    from fleetgate.core.handlers.budgets import BudgetHandler
    from fleetgate.core.handlers.leases import LeaseHandler
    from fleetgate.core.handlers.plans import PlanHandler
    from fleetgate.core.handlers.rate_limits import RateLimitHandler
    from fleetgate.core.handlers.request_validation import RequestValidator
    from fleetgate.core.handlers.usage_answers import UsageAnswerHandler
    from fleetgate.core.state.state import State


def command_table(
    state: State,
    record: Callable[[ev.Event], None],
    validator: RequestValidator,
    requests: AcquireHandler,
    leases: LeaseHandler,
    budgets: BudgetHandler,
    plans: PlanHandler,
    rate_limits: RateLimitHandler,
    usage_answers: UsageAnswerHandler,
    backoffs: BackoffHandler,
) -> dict[type, Callable[[Any, int], None]]:
    tickets, jobs = TicketHandler(state, record), JobHandler(state, record)
    caps, hosts = CapHandler(state, record), HostHandler(state, record)
    keys = AccessKeyHandler(state, record)
    return {
        cmd.Acquire: requests.acquire,
        cmd.Offer: jobs.offer,
        cmd.Withdraw: jobs.withdraw,
        cmd.Approve: jobs.approve,
        cmd.EndJob: jobs.end,
        cmd.Ask: tickets.ask,
        cmd.Claim: leases.claim,
        cmd.Adopt: AdoptHandler(state, validator, record).adopt,
        cmd.Recover: hosts.recover,
        cmd.Drain: hosts.drain,
        cmd.Renew: leases.renew,
        cmd.Release: leases.release,
        cmd.Settle: leases.settle,
        cmd.Reclaim: leases.reclaim,
        cmd.Stop: leases.stop,
        cmd.Cancel: tickets.cancel,
        cmd.Bump: tickets.bump,
        cmd.Lost: leases.lost,
        cmd.Observe: hosts.observe,
        cmd.SetRule: caps.set_rule,
        cmd.RemoveCap: caps.remove_cap,
        cmd.ResetCap: caps.reset_cap,
        cmd.LoadFile: caps.load_file,
        cmd.SetBudget: budgets.set,
        cmd.RemoveBudget: budgets.remove,
        cmd.UnsetBudget: budgets.unset,
        cmd.ResetBudget: budgets.reset,
        cmd.AddBudget: budgets.add,
        cmd.ObserveRates: budgets.observe_rates,
        cmd.ObservePlan: plans.observe,
        CreateKey: keys.create,
        RotateKey: keys.rotate,
        RemoveKey: keys.remove,
        cmd.Pause: caps.pause,
        cmd.Resume: caps.resume,
        cmd.UseUp: rate_limits.use_up,
        cmd.Report: rate_limits.report,
        cmd.Active: rate_limits.active,
        cmd.AskUsage: usage_answers.ask,
        cmd.AnswerUsage: usage_answers.answer,
        cmd.BackOff: backoffs.set,
        cmd.EndBackoff: backoffs.end,
        cmd.Credential: backoffs.credential,
        cmd.Select: backoffs.select,
    }
