"""The route of accounts: their logins, slots, windows, budgets and backoffs side by side."""

from __future__ import annotations

from fleetgate.api.router.route import get
from fleetgate.api.service import Service
from fleetgate.gate.providers.account_login import IDENTITIES, identified_accounts
from fleetgate.present.json.accounts import AccountsShape, accounts_json


@get("/v1/accounts", summary="The accounts of providers: login, slots, windows, budgets, backoffs")
async def accounts(service: Service) -> AccountsShape:
    state, moments = await service.look()
    core = service.gate.core
    return accounts_json(
        state,
        moments,
        service.gate.host,
        configured=core.settings.providers,
        identified=identified_accounts(core.replica.log.side_items(IDENTITIES)),
        place_of=core.credentials.place,
    )
