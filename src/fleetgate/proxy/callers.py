"""The caller of a request: its key, its account, and the models that may answer.

The rules kept here:

- A credential of the config goes upstream only for a caller that is trusted: one that shows the service's token, or a
  local user whom the service trusts. A request of any other goes upstream with the key that it brought, or not at all.
- An account is named by a caller that is trusted, or that shows the account's own key.
- A key that the provider has not accepted yet is of no account: `proxy/unproven_keys.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fleetgate.config.settings import Settings
from fleetgate.core.access.keys import AGENT, VIEWER, AccessKey
from fleetgate.core.entities import Spec
from fleetgate.core.model_names import DEFAULT_ACCOUNT, Model, parse_model, shown
from fleetgate.gate.access_keys import PREFIX
from fleetgate.log.protocol import StoreError
from fleetgate.proxy.calls.conversations import conversation_of
from fleetgate.proxy.calls.exchange import CallCandidate, Exchange
from fleetgate.proxy.calls.shared_logins import SharedLogins
from fleetgate.proxy.errors import ProxyRefusal
from fleetgate.proxy.headers import bare_key, key_of, keys_in, text_of, without_keys
from fleetgate.proxy.http_client.connection import UpstreamResponse
from fleetgate.proxy.identity_question import ask_identity
from fleetgate.proxy.key_accounts import ANY_KEY, KeyAccounts, KeyOwner
from fleetgate.proxy.login_identities import LoginIdentities, is_unnamed
from fleetgate.proxy.providers import ProxiedProviders
from fleetgate.proxy.request_body import (
    clean_name,
    is_counted,
    model_in_path,
    read_call,
    readable_path,
    without_encoding,
)
from fleetgate.proxy.routes import Route
from fleetgate.proxy.unproven_keys import ACCOUNT as UNVERIFIED

_MOST_NAMES = 4096
_LONGEST_NAME = 300  # characters of a model's name: `clean_name` looks at fewer
_MOST_GUARDS = 16
STORED_S = 5.0  # how long a call waits until what was learned is stored
_NO_PROJECT = Spec().project  # of a call that names none
_PROVES = frozenset(("rate_limited", "usage_window", "quota", "overloaded"))  # refusals that are not about the key


class Callers:
    """Judges what a request brings along, by one config."""

    def __init__(
        self,
        settings: Settings,
        upstreams: ProxiedProviders,
        accounts: KeyAccounts,
        identities: LoginIdentities,
        is_token: Callable[[bytes], bool],
        find_key: Callable[[str], AccessKey | None],
        here: str,
        accounts_of_set: Callable[[str], tuple[str, ...]],
    ) -> None:
        self._settings = settings
        self._accounts_of_set = accounts_of_set
        self._upstreams = upstreams
        self._accounts = accounts
        self._identities = identities
        self._is_token = is_token
        self._find_key = find_key
        self._here = here  # who is trusted without a token, in words
        self._names: dict[tuple[str, str, str], str] = {}
        self.logins = SharedLogins(accounts, accounts_of_set)

    def read_key(self, exchange: Exchange, is_local: Callable[[], bool]) -> str:
        """The key that a request brings along, without ours; `is_local`: a trusted local user sent it. ProxyRefusal."""
        asked = exchange.headers
        if len(asked.keys) == 1 and not keys_in(exchange.query):  # as nearly all calls
            key = key_of(asked, b"")
            if key and key != ANY_KEY and not self._is_ours(key, exchange):
                exchange.trusted = is_local()
                return key
        first = key_of(asked, exchange.query)
        said = {name: text_of(bare_key(name, value)) for name, value in asked.keys.items()}
        ours = [name for name, key in said.items() if self._is_ours(key, exchange)]
        ours_in_query = [key for key in keys_in(exchange.query) if self._is_ours(key, exchange)]
        first_is_ours = bool(first) and self._is_ours(first, exchange)
        token = bool(ours or ours_in_query)
        if first_is_ours or first == ANY_KEY:  # it means the key of the config
            asked.keys.clear()
            exchange.query = without_keys(exchange.query)
        for name in ours:
            asked.keys.pop(name, None)
        if ours_in_query:
            exchange.query = without_keys(exchange.query, ours_in_query)
        exchange.shows_token = token and exchange.access_key is None
        exchange.trusted = token or is_local()
        key = key_of(asked, exchange.query)
        if not key and not exchange.trusted:
            sentence = f"{self._here}: send a key of the provider's, an access key, or Fleetgate's own token as one"
            raise ProxyRefusal(401, "key_needed", sentence)
        return key

    def _is_ours(self, text: str, exchange: Exchange) -> bool:
        """Whether a key is the service's token, or an access key, which is noted. ProxyRefusal."""
        begin = text.find(PREFIX)  # it may stand behind a scheme that is not meant there: it must never go upstream
        if begin < 0:
            return self._is_token(b"Bearer " + text.encode("utf-8", "surrogatepass"))
        key = self._find_key(text[begin:].strip())
        if key is None:
            raise ProxyRefusal(401, "key_wrong", "this access key is not valid: it is unknown, removed or expired")
        if key.role == VIEWER:
            sentence = f"the key {key.name} has the role viewer: calls need the role agent, operator or admin"
            raise ProxyRefusal(403, "role_needed", sentence)
        exchange.access_key = key
        return True

    def apply_rights(self, exchange: Exchange, key: AccessKey) -> None:
        """Keep a call within what its access key allows. ProxyRefusal."""
        exchange.access_key_name = key.name
        if key.project and exchange.project not in (_NO_PROJECT, key.project) and key.role == AGENT:
            sentence = f"the key {key.name} works for the project {key.project}, not for {shown(exchange.project)}"
            raise ProxyRefusal(403, "role_needed", sentence)
        if key.project and (key.role == AGENT or exchange.project == _NO_PROJECT):
            exchange.project = key.project
        if key.work_class:
            exchange.work_class = key.work_class
        if key.max_priority is not None:
            exchange.priority = min(exchange.priority, key.max_priority)

    # The account.

    def choose(self, exchange: Exchange, key: str) -> None:
        """The models that may answer it; none where no model is called, and no slot is needed. ProxyRefusal."""
        provider = exchange.route.provider
        exchange.key, exchange.roams, exchange.uses_set, exchange.set_accounts = "", False, False, ()
        exchange.secret = key
        named = exchange.route.account or self._account_to_swap(exchange)
        known = self._accounts.find(provider, key) if key else None
        if named and not exchange.trusted and (known is None or known != (named, True)):
            sentence = f"{provider}@{named} is for callers that show its own key or Fleetgate's token"
            raise ProxyRefusal(401, "key_wrong", sentence)
        login = self._login_of_run(exchange, known) if not named else ""
        if login:
            exchange.account, exchange.own = login, known is not None
        elif named or not key:
            exchange.account = named or DEFAULT_ACCOUNT
            if exchange.trusted:
                exchange.key = self._accounts.key_of(provider, exchange.account)
            exchange.own = bool(exchange.key) or known == (exchange.account, True)
        elif known is not None:
            exchange.account, exchange.own = known
            exchange.roams = self._identities.is_login(exchange) and self.logins.roams(exchange, known)
        else:
            exchange.account = self._accounts.accepted_as(provider, key)
            if not exchange.account:
                exchange.unproven, exchange.account = True, _account_of_run(exchange)
                exchange.apart = not exchange.account and self._stays_apart(exchange)
                exchange.account = exchange.account or self._accounts.name_of(provider, key)
        if not exchange.own and not exchange.key and key and known is None and self._accounts.is_refused(provider, key):
            raise _refused(provider)
        self._name_model(exchange, login)

    def _login_of_run(self, exchange: Exchange, known: KeyOwner | None) -> str:
        """The account of the call's run, where its login is sent instead of another one, or of nothing."""
        if exchange.secret and (known is None or not self._identities.is_login(exchange)):
            return ""  # it brings a key, or a token that nothing is known of
        return self.logins.of_run(exchange, _account_of_run(exchange), known)

    def _account_to_swap(self, exchange: Exchange) -> str:
        """The account of the call's run, where the config has its key, which goes upstream then."""
        account = _account_of_run(exchange)
        return account if account != DEFAULT_ACCOUNT and self._accounts.key_of(exchange.route.provider, account) else ""

    def _stays_apart(self, exchange: Exchange) -> bool:
        """Whether a call with an unproven key stays out of the log until it is known whose key it is.

        The token of a login may be a new one of an account that is known, where that can be found out.
        """
        if not exchange.trusted or self._accounts.many_are_refused:
            return True
        return self._identities.is_login(exchange) and not self._identities.is_nameless(exchange.route.provider)

    def _name_model(self, exchange: Exchange, login: str) -> None:
        if not is_counted(exchange.method, exchange.path):
            return
        exchange.path = readable_path(exchange.path)
        exchange.name = model_in_path(exchange.path.decode("latin-1"))
        exchange.model_in_path = bool(exchange.name)
        try:
            exchange.fields = read_call(exchange.body, exchange.headers.content_type, exchange.headers.encoding)
        except ProxyRefusal:
            if not exchange.name:
                raise
        exchange.name = exchange.name or exchange.fields.model
        if exchange.name:
            self._fill(exchange, login)

    def _fill(self, exchange: Exchange, login: str = "") -> None:
        """The candidates of a call, by the account that it has now; with `login`, sent with the login of that one."""
        route, account = exchange.route, UNVERIFIED if exchange.apart else exchange.account
        if exchange.roams:
            account = DEFAULT_ACCOUNT
        exchange.model = self._as_known(route.provider, account, exchange.name)
        upstream = self._upstreams.find(route.provider, login) if login else exchange.upstream
        candidate = CallCandidate(upstream, "", exchange.key, exchange.own, bool(login))
        exchange.candidates = {exchange.model: candidate}
        if login:
            exchange.models = (exchange.model,)
            exchange.set_accounts = (login,) if login == DEFAULT_ACCOUNT else ()
            return
        if self._settings.fallback and exchange.body.whole and _can_be_renamed(exchange):
            self._add_fallbacks(exchange, route, account)
        exchange.models = tuple(exchange.candidates)
        if account == DEFAULT_ACCOUNT and (members := self._accounts_of_set(route.provider)):
            self._use_set(exchange, members)

    def _use_set(self, exchange: Exchange, members: tuple[str, ...]) -> None:
        """Let a call that names no account use the accounts of the set whose credential may be sent with it.

        Those are accounts with a key in the config, those whose login is shared with such calls, and its own. A call
        that brings the key of the default account uses that account. ProxyRefusal.
        """
        provider = exchange.route.provider
        if not exchange.trusted or (exchange.secret and not exchange.roams):
            exchange.set_accounts = (DEFAULT_ACCOUNT,)
            return
        usable: dict[str, tuple[str, bool, bool]] = {}  # by account: key, whether it is the account's own, login
        for account in members:
            if key := self._accounts.key_of(provider, account):
                usable[account] = key, True, False
            elif exchange.roams and account == exchange.account:
                usable[account] = "", exchange.own, False
            elif self.logins.may_use(exchange, account, brings_login=exchange.roams):
                usable[account] = "", exchange.roams, True
        if not usable:
            table = f"[providers.'{provider}@{members[0]}']"
            sentence = f"no account of {provider} has a key here: set key_env in {table}, or share_login to use a login"
            raise ProxyRefusal(503, "no_credentials", sentence)
        found: dict[str, CallCandidate] = {}
        for model, candidate in exchange.candidates.items():
            head, _, name = model.partition("/")
            if head != provider:
                found[model] = candidate
                continue
            for account, (key, own, login) in usable.items():
                upstream = self._upstreams.find(provider, account)
                found[str(Model(provider, account, name))] = CallCandidate(upstream, candidate.name, key, own, login)
        exchange.candidates, exchange.uses_set = found, True
        exchange.set_accounts = () if len(usable) == len(members) else tuple(usable)
        ours, salt = exchange.access_key, self._accounts.salt
        project = ours.project if ours is not None and ours.role == AGENT else ""
        exchange.conversation = conversation_of(salt, exchange.session, exchange.fields.messages, project)

    def _add_fallbacks(self, exchange: Exchange, route: Route, account: str) -> None:
        model = exchange.model
        plain = f"{route.provider}/{model.partition('/')[2]}"
        for text in self._settings.fallback.get(model) or self._settings.fallback.get(plain, ()):
            head, _, name = text.partition("/")
            provider, _, other = head.partition("@")
            if provider == route.provider and other in ("", account):
                candidate = CallCandidate(exchange.upstream, name, exchange.key, exchange.own)
                text = self._as_known(provider, account, name)
            elif provider in self._upstreams and exchange.trusted:
                upstream = self._upstreams.find(provider, other)
                key = self._accounts.key_of(provider, other or DEFAULT_ACCOUNT)
                candidate = CallCandidate(upstream, name, key, True)
                if upstream.api != exchange.api or not key:
                    continue
            else:
                continue
            exchange.candidates.setdefault(text, candidate)

    def _as_known(self, provider: str, account: str, name: str) -> str:
        """The model as the gate knows it: what cannot be in a name is left out of it."""
        name = name[:_LONGEST_NAME]
        known = self._names.get((provider, account, name))
        if known is None:
            known = str(Model(provider, account, clean_name(name)))
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[provider, account, name] = known
        return known

    # What the provider says of a key.

    def look_again(self, exchange: Exchange) -> None:
        """Another call may have shown meanwhile what an unproven key is worth. ProxyRefusal."""
        provider = exchange.route.provider
        if self._accounts.is_refused(provider, exchange.secret):
            raise _refused(provider)
        account = self._accounts.accepted_as(provider, exchange.secret)
        if account:
            exchange.unproven, exchange.apart, exchange.account = False, False, account
            self._fill(exchange)

    async def identify(self, exchange: Exchange) -> None:
        """Find out whose login an unproven token is, before its call is counted (rule M1).

        What a token says of itself is believed of a trusted caller, for its place in the queue, and learned when the
        provider has accepted it. Otherwise the provider is asked.
        """
        row = self._identities.claimed(exchange)
        asked = not row and bool(exchange.upstream.identity_path) and self._identities.is_login(exchange)
        if asked:
            row = self._identities.said(exchange, await ask_identity(exchange))
        if not row:
            return
        if stored := self._identities.learn(row, self._identities.name_of(row)) if asked else None:
            await asyncio.wait((stored,), timeout=STORED_S)
        exchange.account = self._account_of_row(exchange, row)
        exchange.apart, exchange.unproven = False, not asked
        if asked:
            self._accounts.accept(exchange.route.provider, exchange.secret, exchange.account)
        self._fill(exchange)

    def shows_login(self, exchange: Exchange) -> bool:
        """Whether the answer to a trusted caller's call will show whose login its token is."""
        is_nameless = self._identities.is_nameless(exchange.route.provider)
        return exchange.trusted and self._identities.is_login(exchange) and not is_nameless

    async def reload(self) -> None:
        """Learn what other processes have learned about logins."""
        with suppress(StoreError):
            await self._identities.load()

    def counts_at_once(self, exchange: Exchange) -> bool:
        """Let a call to the queue whose token nothing identifies, where it can be of no account that is known."""
        known = self._identities.accounts(exchange.route.provider) or self._accounts.many_are_refused
        if not exchange.trusted or known or not self._identities.is_login(exchange):
            return False
        exchange.apart = False
        self._fill(exchange)
        return True

    def possible_logins(self, exchange: Exchange) -> list[tuple[str, str]]:
        """The accounts that the unproven token of a trusted caller's login may be of, each with the call's model."""
        if not exchange.trusted or not self._identities.is_login(exchange):
            return []
        provider = exchange.route.provider
        known = sorted(self._identities.accounts(provider))
        return [(account, self._as_known(provider, account, exchange.name)) for account in known[:_MOST_GUARDS]]

    def learn(self, exchange: Exchange, response: UpstreamResponse) -> asyncio.Task[None] | None:
        """Learn whose login an accepted call has used. What ends when that is stored; None if nothing is new."""
        if not exchange.candidates or not (exchange.own or exchange.unproven):
            return None
        row = self._row(exchange, response)
        account = self._identities.name_of(row) if exchange.apart else exchange.account
        return self._identities.learn(row, account) if row else None

    def _row(self, exchange: Exchange, response: UpstreamResponse) -> str:
        return self._identities.said(exchange, response.raw_headers) or self._identities.claimed(exchange)

    def accept(self, exchange: Exchange, response: UpstreamResponse) -> bool:
        """The provider answers a call. Whether that has shown that its key, unproven until now, is good."""
        if not exchange.candidates or not exchange.unproven:
            return False
        provider, row = exchange.route.provider, self._row(exchange, response)
        account = exchange.account
        if row and not _account_of_run(exchange):
            account = self._account_of_row(exchange, row)
        if exchange.apart:
            exchange.account = account
        exchange.unproven = False
        self._accounts.accept(provider, exchange.secret, account)
        if not row and self._identities.is_login(exchange):
            self._identities.note_nameless(provider)
        return True

    def _account_of_row(self, exchange: Exchange, row: str) -> str:
        """The account of an identity; one that the config names is for callers that are trusted."""
        learned = self._identities.account_of(row)
        return learned if learned and (exchange.trusted or is_unnamed(learned)) else self._identities.name_of(row)

    def hear_refusal(self, exchange: Exchange, response: UpstreamResponse) -> bool:
        """The provider refuses a call. Whether that has shown all the same that an unproven key is good."""
        kind = exchange.outcome.kind if exchange.outcome is not None else ""
        if (
            kind == "auth"
            and response.status != 403
            and exchange.candidates
            and not exchange.key
            and exchange.secret
            and not exchange.own
        ):
            self._accounts.refuse(exchange.route.provider, exchange.secret)
        if not exchange.unproven or not exchange.trusted or kind not in _PROVES:
            return False
        self.learn(exchange, response)
        return self.accept(exchange, response)


def _refused(provider: str) -> ProxyRefusal:
    return ProxyRefusal(
        401, "key_refused", f"{provider} has just refused this key: use another, or try again in a minute"
    )


def _account_of_run(exchange: Exchange) -> str:
    """The account of the run that a call belongs to, where it is with the same provider."""
    if not exchange.trusted or not exchange.run_model:
        return ""
    model = parse_model(exchange.run_model)
    return model.account if model.provider == exchange.route.provider else ""


def may_name_run(exchange: Exchange, project: str) -> bool:
    """Whether a call may say that it belongs to a run of this project: an agent's key works for one project."""
    key = exchange.access_key
    return key is None or key.role != AGENT or key.project == project


def _can_be_renamed(exchange: Exchange) -> bool:
    """Whether another model's name can be put in the place of the one that was asked for."""
    return (
        exchange.model_in_path
        or not exchange.headers.encoding
        or without_encoding(exchange.body.data, exchange.headers.encoding) is not None
    )
