"""`fleetgate accounts`: the accounts of providers side by side."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.gate.providers.account_login import IDENTITIES, identified_accounts
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.json.accounts import AccountShape, AccountsShape, accounts_json
from fleetgate.present.json.state import PoolShape
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import count

_COLUMNS = (
    Column("ACCOUNT", least=12, name=True),
    Column("SET"),
    Column("LOGIN"),
    Column("IDENTITY"),
    Column("RUNNING"),
    Column("WAITING", right=True),
    Column("SLOTS", least=8),
    Column("WINDOWS", least=8),
    Column("NOTES", least=12),
)
_STYLES = {"found": "green", "missing": "red", "unreadable": "red"}


@click.command(short_help="The accounts of providers side by side.")
@json_option
def command(as_json: bool) -> None:
    """List the accounts of providers: login, slots, plan windows, budgets, backoffs.

    An account is listed when the config has a table for it, when a cap names it, or when Fleetgate has seen it. Keys,
    tokens and identities are never shown.

    \b
    fleetgate accounts
    fleetgate accounts --json | jq '.accounts[] | select(.login == "missing")'
    """
    with opened() as gate:
        found = listing(gate)
    if as_json:
        say_json(found)
    else:
        _draw(found)


def listing(gate: DirectGate) -> AccountsShape:
    """All accounts, as this process sees them: it looks for logins where its own user has them."""
    return accounts_json(
        current(gate),
        LogTimes(gate),
        gate.host,
        configured=gate.settings.providers,
        identified=identified_accounts(gate.log.side_items(IDENTITIES)),
        place_of=gate.credentials.place,
    )


def _draw(found: AccountsShape) -> None:
    screen = Screen()
    if found.accounts:
        sets = any(account.in_set for account in found.accounts)
        columns = _COLUMNS if sets else [column for column in _COLUMNS if column.title != "SET"]
        screen.table(columns, [_row(account, sets) for account in found.accounts])
    else:
        screen.line(
            "no accounts: one is listed when the config or a cap names it, and while an agent or a call uses it"
        )
    screen.show()


def _row(account: AccountShape, sets: bool) -> list[str | Cell]:
    kinds = [(account.agents, "agent"), (account.calls, "call")]
    running = ", ".join(count(number, word) for number, word in kinds if number)
    return [
        Cell(account.account, "bold"),
        *([account.in_set or "-"] if sets else []),
        Cell(account.login, _STYLES.get(account.login, "")),
        "known" if account.identity_known else "-",
        running or "-",
        str(account.waiting or "-"),
        ", ".join(_slots(pool, account.account) for pool in account.pools if pool.limit is not None) or "-",
        ", ".join(f"{each.window} {each.used_percent:.0f} %" for each in account.windows) or "-",
        "; ".join(_notes(account)),
    ]


def _slots(pool: PoolShape, account: str) -> str:
    """`2/4 agents`; of a pool of some models, with their names."""
    models = pool.pool.removeprefix(account).lstrip("/") if pool.pool.startswith(account) else pool.selector
    return f"{pool.in_flight + pool.foreign}/{pool.limit} {pool.kind}{f' of {models}' if models else ''}"


def _notes(account: AccountShape) -> list[str]:
    notes = [f"backed off: {each.reason}" for each in account.backoffs]
    notes += [f"{pool.pool} is paused" for pool in account.pools if pool.paused]
    notes += [f"{each.window} runs dry" for each in account.windows if each.runway == "dry"]
    return notes + [f"{each.name}: used up" for each in account.budgets if each.free <= 0]
