"""The identities of logins, as the provider reports them: a refreshed token belongs to the same account.

Logins (OAuth) change their token every few hours. The provider names the organization or the account in the headers of
its answers; that is learned once, and a new token with the same name is of the same account, so that its caps, its
learned limits and its backoffs go on. API keys do not change: each is an account of its own.

The rule: only what the provider says of a call that it has accepted counts. What a request says of itself counts only
for a caller that is trusted. Stored is a hash, salted with the store's salt.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable

from fleetgate.gate.providers.credential_owner import claims_of
from fleetgate.proxy.calls.exchange import Exchange

TABLE = "identity"  # of the side table: the account of each identity, by its hash
_MOST = 10_000
_SAID_BY_PROVIDER = (b"anthropic-organization-id", b"openai-organization", b"chatgpt-account-id", b"x-account-id")
_SAID_BY_CLIENT = b"chatgpt-account-id"  # Codex
_API_KEYS = ("sk-", "gsk_", "xai-", "AIza", "pplx-")
_LOGINS = ("sk-ant-oat", "sk-ant-sid")
_CLAIMS = "https://api.openai.com/auth"


class LoginIdentities:
    """The accounts of logins, by whom the provider says they are of."""

    def __init__(self, salt: Callable[[], bytes], remember: Callable[[str, str], None]) -> None:
        self._salt = salt
        self._remember = remember  # stores the account of a hash
        self._accounts: dict[str, str] = {}

    def load(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """What was learned before."""
        for row, account in rows:
            self._accounts[row] = account.decode("utf-8", "replace")

    def knows_logins(self, provider: str) -> bool:
        """Whether a login of this provider was seen before."""
        return any(row.startswith(f"{provider}:") for row in self._accounts)

    def is_login(self, exchange: Exchange) -> bool:
        """Whether a call is sent with a token of a login, which is refreshed; not with an API key."""
        key = exchange.key or exchange.secret
        return key.startswith(_LOGINS) or (_is_bearer(exchange) and not key.startswith(_API_KEYS))

    def find(self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The row of the login that an accepted call has used; "" if unknown."""
        if not self.is_login(exchange):
            return ""
        key = exchange.key or exchange.secret
        said = {name.lower(): value for name, value in headers}
        for name in _SAID_BY_PROVIDER:
            if said.get(name):
                return self._row(exchange.route.provider, name, said[name])
        if exchange.trusted:
            asked = next((value for name, value in exchange.headers.sent if name == _SAID_BY_CLIENT), b"") or _claimed(
                key
            )
            if asked:
                return self._row(exchange.route.provider, _SAID_BY_CLIENT, asked)
        return ""

    def account_of(self, row: str) -> str:
        """The account that was learned, or nothing."""
        return self._accounts.get(row, "")

    def learn(self, row: str, account: str) -> None:
        """This is the account of a row from now on."""
        if len(self._accounts) >= _MOST and row not in self._accounts:
            return
        self._accounts[row] = account
        self._remember(row, account)

    def _row(self, provider: str, kind: bytes, name: bytes) -> str:
        text = b"identity\0%s\0%s\0%s" % (provider.encode(), kind, name)
        return f"{provider}:{hmac.digest(self._salt(), text, 'sha256').hex()[:32]}"


def _is_bearer(exchange: Exchange) -> bool:
    if exchange.key:
        return exchange.key.startswith("eyJ")  # of the config: a JSON web token
    return [name for name, value in exchange.headers.keys.items() if value] == [b"authorization"]


def _claimed(key: str) -> bytes:
    """The account that a token of a ChatGPT login names in itself."""
    claims = claims_of(key)
    own = claims.get(_CLAIMS) if isinstance(claims, dict) else None
    account = own.get("chatgpt_account_id") if isinstance(own, dict) else None
    return account.encode("utf-8", "surrogatepass") if isinstance(account, str) else b""
