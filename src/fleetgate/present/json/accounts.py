"""The accounts of providers, each with its login, slots, windows, budgets and backoffs (rule M4).

An account is listed when the config has a table for it, when a cap names it, when something of it is running, waiting,
paused, backed off or reported, or when its login was seen. Of an identity nothing is shown but whether it is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from fleetgate.core.model_names import DEFAULT_ACCOUNT, account_of, parse_model
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import budget_views
from fleetgate.core.views.pool_and_lease_views import pool_views
from fleetgate.gate.providers.credentials import CredentialPlace
from fleetgate.present.budgets.listing import BudgetShape, budget_json
from fleetgate.present.budgets.plan_windows import PlanShape, plans_json
from fleetgate.present.budgets.text import split_name
from fleetgate.present.json.listings import backoffs
from fleetgate.present.json.state import BackoffShape, PoolShape, pool_json
from fleetgate.present.log_time import LogTimes


class AccountShape(Struct):
    """An account. `login` is found, missing, unreadable or unknown: whether its credential is where it should be."""

    account: str  # PROVIDER, or PROVIDER@NAME
    provider: str
    name: str  # `default` for the one without a name
    configured: bool  # the config has a table for it
    login: str
    identity_known: bool  # the provider has named the organization of its login
    agents: int  # running
    calls: int  # in flight
    waiting: int
    pools: list[PoolShape]
    windows: list[PlanShape]
    budgets: list[BudgetShape]
    backoffs: list[BackoffShape]
    in_set: str | None = None  # "use" or "then": requests that name no account may use it (rule Z1)


class AccountsShape(Struct):
    """The answer of `fleetgate accounts --json` and `GET /v1/accounts`."""

    accounts: list[AccountShape]


def accounts_json(
    state: State,
    moments: LogTimes,
    host: str,
    *,
    configured: Iterable[str],
    identified: set[str],
    place_of: Callable[[str], CredentialPlace],
) -> AccountsShape:
    """All accounts. `configured`: those of the config; `identified`: those whose identity is known."""
    configured = set(configured)
    running: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    for lease in state.leases.values():
        if lease.model:
            running[account_of(parse_model(lease.model)), lease.ticket.spec.kind] += 1
    for ticket in state.tickets.values():
        waiting.update({account_of(parse_model(model)) for model in state.accounts.expand(ticket.spec.models)})
    pools = [pool_json(view, moments) for view in pool_views(state, moments.now, host) if view.account]
    windows, held = plans_json(state, moments), backoffs(state, moments)
    budgets = [budget_json(view, moments) for view in budget_views(state, moments.now)]
    seen = {pool.account or "" for pool in pools if pool.in_flight or pool.queued or pool.paused or "@" in pool.pool}
    seen |= {account for account, _ in running} | set(waiting) | {each.account for each in windows}
    sets = _sets(state)
    seen |= {each.key.partition("/")[0] for each in held} | set(sets) | configured | identified
    providers = {account.partition("@")[0] for account in seen}
    seen |= {pool.account or "" for pool in pools if _is_named(pool) and pool.account not in providers}

    def shape(account: str) -> AccountShape:
        provider, _, name = account.partition("@")
        return AccountShape(
            account=account,
            provider=provider,
            name=name or DEFAULT_ACCOUNT,
            configured=account in configured,
            login=place_of(account).state,
            identity_known=account in identified,
            agents=running[account, "agents"],
            calls=running[account, "requests"],
            waiting=waiting[account],
            pools=[pool for pool in pools if pool.account == account],
            windows=[each for each in windows if each.account == account],
            budgets=[each for each in budgets if _is_of(each, account)],
            backoffs=[each for each in held if each.key.partition("/")[0] == account],
            in_set=sets.get(account),
        )

    return AccountsShape([shape(account) for account in sorted(seen)])


def _sets(state: State) -> dict[str, str]:
    """How each account of a set is used: "use", or "then" when none of the others has room."""
    found: dict[str, str] = {}
    for provider, rule in state.accounts.rules.items():
        for how, names in (("use", rule.use), ("then", rule.then)):
            found |= {provider if name == DEFAULT_ACCOUNT else f"{provider}@{name}": how for name in names}
    return found


def _is_named(pool: PoolShape) -> bool:
    """Whether a cap names the provider of a pool; one on `*/claude-opus-*` makes pools of any provider."""
    return "*" not in pool.selector.partition("/")[0]


def _is_of(budget: BudgetShape, account: str) -> bool:
    """Whether a budget is of this account: `anthropic@work usd/day`, `*/claude-opus-*:anthropic calls/1m`."""
    instance = split_name(budget.name)[0]
    return instance.partition("/")[0] == account or instance.endswith(f":{account}")
