"""The logins of accounts that the proxy sends for calls that did not bring them (rule Z6).

Theory of operation
-------------------
A login belongs to a person, and to the agents of that person. The proxy uses it for others only as `share_login` of its
account says:

| share_login | the login is sent with |
| --- | --- |
| `none` | calls that bring it themselves |
| `agents` | also calls of the service's own user that bring another login of the provider: those of the user's agents |
| `owner` | also calls of the service's own user that bring nothing, such as those of scripts |
| `trusted` | also calls with access keys, and of local users whom the service trusts |

A call is of the service's own user if it shows the service's token, or if the kernel says so: such a process can read
the login file anyway. A call with an access key is never one of them, and neither is a call of a run that was requested
with an access key, or one that a reverse proxy passed on.

A refusal of a login counts against its account only if the call brought a login itself: a provider may accept logins
from its own agents only, and the calls of a script say nothing about the account then.

The token is read from the agent's own file when the call is sent, at each attempt. It is kept for that attempt only,
and is neither stored, logged nor shown. Refreshing it is left to the agent: a login whose token has expired is passed
over until then.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core.model_names import DEFAULT_ACCOUNT, parse_model
from fleetgate.proxy.calls.exchange import CallCandidate, Exchange
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.key_accounts import KeyAccounts, KeyOwner
from fleetgate.signals.outcome import outcome

_ENDED = outcome("local_error", "proxy.login_ended", "the login of the account has expired, or was refreshed")


class SharedLogins:
    """Decides which logins a call may be sent with, and reads them."""

    def __init__(self, accounts: KeyAccounts, accounts_of_set: Callable[[str], tuple[str, ...]]) -> None:
        self._accounts = accounts
        self._accounts_of_set = accounts_of_set

    def roams(self, exchange: Exchange, known: KeyOwner) -> bool:
        """Whether a call that brings the login of an account of a set may use the other accounts of it."""
        provider = exchange.route.provider
        return (
            known.account in self._accounts_of_set(provider)
            and self._accounts.shared_with(provider, known.account) != "none"
            and _is_owners(exchange)
        )

    def of_run(self, exchange: Exchange, account: str, known: KeyOwner | None) -> str:
        """The account of a call's run, where its login is to be sent instead of what the call brings; else nothing.

        `account`: that of the run. `known`: whose login the call brings; None: it brings nothing.
        """
        provider = exchange.route.provider
        if not account or (known is not None and known.account == account):
            return ""
        if account == DEFAULT_ACCOUNT and account not in self._accounts_of_set(provider):
            return ""
        return account if self.may_use(exchange, account, brings_login=known is not None) else ""

    def may_use(self, exchange: Exchange, account: str, *, brings_login: bool) -> bool:
        """Whether a call may be sent with the login of this account, and there is a valid one now."""
        provider = exchange.route.provider
        shared = self._accounts.shared_with(provider, account)
        if shared == "none" or not exchange.trusted:
            return False
        if shared != "trusted" and not ((brings_login or shared == "owner") and _is_owners(exchange)):
            return False
        return bool(self._accounts.login_of(provider, account))

    def read(self, exchange: Exchange, candidate: CallCandidate) -> CallCandidate | None:
        """The candidate with the token that its login has now; None where it has none any longer."""
        exchange.login_sent = candidate.login
        if not candidate.login:
            return candidate
        model = parse_model(exchange.model)
        token = self._accounts.login_of(model.provider, model.account)
        exchange.key, exchange.outcome = token, None if token else _ENDED
        return CallCandidate(candidate.upstream, candidate.name, token, candidate.own, True) if token else None

    def judge_refusal(self, exchange: Exchange) -> bool:
        """Whether a call is tried again since a login that it did not bring was refused. ProxyRefusal.

        That refusal is not passed on: the client would take it for one of its own login, and log in again.
        """
        said = exchange.outcome
        if said is None or said.kind != "auth" or not (exchange.login_sent and exchange.own):
            return False
        exchange.logins_refused += 1
        model = parse_model(exchange.model)
        if self._accounts.login_of(model.provider, model.account) not in ("", exchange.key):
            exchange.outcome = _ENDED  # it was refreshed meanwhile, and the old token says nothing about the account
            again = True
        else:
            again = len(exchange.candidates) > 1
        if again and exchange.body.kept and exchange.logins_refused <= len(exchange.candidates):
            return True
        account = exchange.model.partition("/")[0]
        raise ProxyRefusal(503, "no_credentials", f"the login of {account} was refused: log in again with its agent")


def _is_owners(exchange: Exchange) -> bool:
    """Whether a call is one of the service's own user."""
    if exchange.access_key is not None or exchange.access_key_name:
        return False
    return exchange.shows_token or exchange.by_own_user()
