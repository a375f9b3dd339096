"""Who calls, with whose key, and which models may answer.

The rules kept here:

- A credential of the config goes upstream only for a caller that is trusted: one that shows the service's token, or a
  local user whom the service trusts. A request of any other goes upstream with the key that it brought, or not at all.
- An account is named by a caller that is trusted, or that shows the account's own key.
- A key that the provider has not accepted yet is of no account: `proxy/unproven_keys.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.config.settings import Settings
from fleetgate.core.model_names import DEFAULT_ACCOUNT, Model, parse_model
from fleetgate.proxy.errors import Refusal
from fleetgate.proxy.exchange import Candidate, Exchange
from fleetgate.proxy.headers import bare_key, key_of, text_of, without_key
from fleetgate.proxy.http_client.connection import Response
from fleetgate.proxy.key_accounts import ANY_KEY, Accounts
from fleetgate.proxy.login_identities import Identities
from fleetgate.proxy.providers import Upstreams
from fleetgate.proxy.request_body import model_in, model_in_path, without_encoding
from fleetgate.proxy.routes import Route
from fleetgate.proxy.unproven_keys import ACCOUNT as UNVERIFIED

_UNCOUNTED = (b"/count_tokens", b"/input_tokens", b"/count-tokens", b":countTokens", b"/count-tokens:rawPredict")
_MOST_NAMES = 4096
_PROVES = frozenset(("rate_limited", "usage_window", "quota", "overloaded"))  # refusals that are not about the key


class Callers:
    """Judges what a request brings along, by one config."""

    def __init__(
        self,
        settings: Settings,
        upstreams: Upstreams,
        accounts: Accounts,
        identities: Identities,
        is_token: Callable[[bytes], bool],
        here: str,
    ) -> None:
        self._settings = settings
        self._upstreams = upstreams
        self._accounts = accounts
        self._identities = identities
        self._is_token = is_token
        self._here = here  # who is trusted without a token, in words
        self._names: dict[tuple[str, str, str], str] = {}

    def read_key(self, x: Exchange, is_local: Callable[[], bool]) -> str:
        """The key that a request brings along, without ours; `is_local`: a trusted local user sent it. Refusal."""
        asked = x.asked
        first = key_of(asked, x.query)
        said = {name: text_of(bare_key(name, value)) for name, value in asked.keys.items()}
        ours = [name for name, key in said.items() if self._is_ours(key)]
        token = bool(ours) or (bool(first) and self._is_ours(first))
        if (token and self._is_ours(first)) or first == ANY_KEY:  # it means the key of the config
            asked.keys.clear()
            x.query = without_key(x.query)
        for name in ours:
            asked.keys.pop(name, None)
        x.trusted = token or is_local()
        key = key_of(asked, x.query)
        if not key and not x.trusted:
            sentence = f"{self._here}: send a key of the provider's, or Fleetgate's own token as one"
            raise Refusal(401, "key_needed", sentence)
        return key

    def _is_ours(self, key: str) -> bool:
        return self._is_token(b"Bearer " + key.encode("utf-8", "surrogatepass"))

    # The account.

    def choose(self, x: Exchange, key: str) -> None:
        """The models that may answer it; none where no model is called, and no slot is needed. Refusal."""
        provider, named = x.route.provider, x.route.account
        known = self._accounts.find(provider, key) if key else None
        if named and not x.trusted and (known is None or known != (named, True)):
            sentence = f"{provider}@{named} is for callers that show its own key or Fleetgate's token"
            raise Refusal(401, "key_wrong", sentence)
        x.secret = key
        if named or not key:
            x.account = named or DEFAULT_ACCOUNT
            if x.trusted:
                x.key = self._accounts.key_of(provider, x.account)
            x.own = bool(x.key) or known == (x.account, True)
        elif known is not None:
            x.account, x.own = known
        else:
            x.account = self._accounts.accepted_as(provider, key)
            if not x.account:
                x.unproven, x.account = True, _account_of_run(x)
                x.apart = not x.account and self._stays_apart(x)
                x.account = x.account or self._accounts.name_of(provider, key)
        if not x.own and not x.key and key and known is None and self._accounts.is_refused(provider, key):
            raise _refused(provider)
        self._name_model(x)

    def _stays_apart(self, x: Exchange) -> bool:
        """Whether a call with an unproven key stays out of the log until it is known whose key it is.

        A new token of a login that was seen before, most likely, is of the same account.
        """
        if not x.trusted or self._accounts.many_are_refused:
            return True
        return self._identities.knows_logins(x.route.provider) and self._identities.is_login(x)

    def _name_model(self, x: Exchange) -> None:
        if x.method != "POST" or x.path.endswith(_UNCOUNTED):
            return
        x.name = model_in_path(x.path.decode("latin-1"))
        x.model_in_path = bool(x.name)
        x.name = x.name or model_in(x.body, x.asked.content_type, x.asked.encoding)
        if x.name:
            self._fill(x)

    def _fill(self, x: Exchange) -> None:
        """The candidates of a call, by the account that it has now."""
        route, account = x.route, UNVERIFIED if x.apart else x.account
        x.model = self._as_known(route.provider, account, x.name)
        x.candidates = {x.model: Candidate(x.upstream, "", x.key, x.own)}
        if self._settings.fallback and x.body.whole and _can_be_renamed(x):
            self._add_fallbacks(x, route, account)

    def _add_fallbacks(self, x: Exchange, route: Route, account: str) -> None:
        model = x.model
        plain = f"{route.provider}/{model.partition('/')[2]}"
        for text in self._settings.fallback.get(model) or self._settings.fallback.get(plain, ()):
            head, _, name = text.partition("/")
            provider, _, other = head.partition("@")
            if provider == route.provider and other in ("", account):
                candidate = Candidate(x.upstream, name, x.key, x.own)
                text = self._as_known(provider, account, name)
            elif provider in self._upstreams and x.trusted:
                upstream = self._upstreams.find(provider, other)
                key = self._accounts.key_of(provider, other or DEFAULT_ACCOUNT)
                candidate = Candidate(upstream, name, key, True)
                if upstream.api != x.api or not key:
                    continue
            else:
                continue
            x.candidates.setdefault(text, candidate)

    def _as_known(self, provider: str, account: str, name: str) -> str:
        """The model as the gate knows it: what cannot be in a name is left out of it."""
        known = self._names.get((provider, account, name))
        if known is None:
            clean = "".join(c if c.isalnum() or c in "._-+~/:" else "_" for c in name.removeprefix("models/")[:200])
            known = str(Model(provider, account, clean or "unknown"))
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[provider, account, name] = known
        return known

    # What the provider says of a key.

    def look_again(self, x: Exchange) -> None:
        """Another call may have shown meanwhile what an unproven key is worth. Refusal."""
        provider = x.route.provider
        if self._accounts.is_refused(provider, x.secret):
            raise _refused(provider)
        account = self._accounts.accepted_as(provider, x.secret)
        if account:
            x.unproven, x.apart, x.account = False, False, account
            self._fill(x)

    def accept(self, x: Exchange, response: Response) -> bool:
        """The provider answers a call. Whether that has shown that its key, unproven until now, is good."""
        if not x.candidates:
            return False
        provider = x.route.provider
        row = self._identities.find(x, response.raw_headers) if x.own or x.unproven else ""
        learned = self._identities.account_of(row) if row else ""
        if x.apart and learned and (x.trusted or _is_unnamed(learned)):
            x.account = learned
        if row and (not learned or (x.own and _is_unnamed(learned))):  # a name of the config is the better one
            self._identities.learn(row, x.account)
        if not x.unproven:
            return False
        x.unproven = False
        self._accounts.accept(provider, x.secret, x.account)
        return True

    def hear_refusal(self, x: Exchange, response: Response) -> bool:
        """The provider refuses a call. Whether that has shown all the same that an unproven key is good."""
        kind = x.outcome.kind if x.outcome is not None else ""
        if kind == "auth" and response.status != 403 and x.candidates and not x.key and x.secret and not x.own:
            self._accounts.refuse(x.route.provider, x.secret)
        return x.unproven and x.trusted and kind in _PROVES and self.accept(x, response)


def _refused(provider: str) -> Refusal:
    return Refusal(401, "key_refused", f"{provider} has just refused this key: use another, or try again in a minute")


def _is_unnamed(account: str) -> bool:
    """Whether an account has its name of a key, not of the config."""
    return account.startswith("key-")


def _account_of_run(x: Exchange) -> str:
    """The account of the run that a call belongs to, where it is with the same provider."""
    if not x.trusted or not x.run_model:
        return ""
    model = parse_model(x.run_model)
    return model.account if model.provider == x.route.provider else ""


def _can_be_renamed(x: Exchange) -> bool:
    """Whether another model's name can be put in the place of the one that was asked for."""
    return x.model_in_path or not x.asked.encoding or without_encoding(x.body.data, x.asked.encoding) is not None
