"""The identities of logins, as the provider reports them: a refreshed token belongs to the same account (rule M1).

Logins (OAuth) change their token every few hours. The provider names the organization or the account in the headers of
its answers; that is learned once, and a new token with the same name is of the same account, so that its caps, its
learned limits and its backoffs go on. API keys do not change: each is an account of its own.

The rules:

- Only what the provider says of a token that it has accepted is learned, never what a request says of itself: a value
  that the client has sent along in the same header is an echo, and says nothing. A token of Codex names its account in
  itself. That counts for a caller that is trusted, and is learned when the provider has accepted the token.
- Stored is a hash, salted with the store's salt, with the account's name. It is on disk before the client has its
  answer, so that a killed service forgets nothing that anyone has seen.
- An identity without a name in the config is named by that hash: all processes of a service find the same name.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable

from fleetgate.gate.providers.credential_owner import claims_of
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.headers import Pairs

_MOST = 10_000
_SAID_BY_PROVIDER = (b"anthropic-organization-id", b"openai-organization", b"chatgpt-account-id")
_CLAIMED = b"chatgpt-account-id"  # by Codex
_API_KEYS = ("sk-", "gsk_", "xai-", "AIza", "pplx-")
_LOGINS = ("sk-ant-oat", "sk-ant-sid")
_CLAIMS = "https://api.openai.com/auth"
_UNNAMED = "key-"

Rows = Iterable[tuple[str, bytes]]  # of the side table
Remember = Callable[[str, str, str], "asyncio.Task[str]"]  # stores an account instead of another; what is stored then


class LoginIdentities:
    """The accounts of logins, by whom the provider says they are of."""

    def __init__(self, salt: Callable[[], bytes], remember: Remember, read: Callable[[], Awaitable[Rows]]) -> None:
        self._salt = salt
        self._remember = remember
        self._read = read
        self._accounts: dict[str, str] = {}
        self._nameless: set[str] = set()  # providers that have accepted a login without naming it

    async def load(self) -> None:
        """What was learned before, here or by another process of the store."""
        for row, account in await self._read():
            self._accounts[row] = account.decode("utf-8", "replace")

    def is_nameless(self, provider: str) -> bool:
        """Whether a provider is known to name no logins."""
        return provider in self._nameless and not self.accounts(provider)

    def note_nameless(self, provider: str) -> None:
        """A provider has accepted a login, without a name in its answer."""
        self._nameless.add(provider)

    def accounts(self, provider: str) -> set[str]:
        """The accounts of a provider whose logins were seen before."""
        return {account for row, account in self._accounts.items() if row.startswith(f"{provider}:")}

    def is_login(self, exchange: Exchange) -> bool:
        """Whether a call is sent with a token of a login, which is refreshed; not with an API key."""
        key = exchange.key or exchange.secret
        return key.startswith(_LOGINS) or (_is_bearer(exchange) and not key.startswith(_API_KEYS))

    def said(self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The row of the login that the provider names in an answer; "" if it names none."""
        if not self.is_login(exchange):
            return ""
        said = {name.lower(): value for name, value in headers}
        sent = exchange.headers.sent
        for name in _SAID_BY_PROVIDER:
            if said.get(name) and (name, said[name]) not in sent:
                return self._row(exchange.route.provider, name, said[name])
        return ""

    def claimed(self, exchange: Exchange) -> str:
        """The row of the login that a token names in itself, for a caller that is trusted; "" if it names none."""
        account = _claimed(exchange.key or exchange.secret) if exchange.trusted and self.is_login(exchange) else b""
        return self._row(exchange.route.provider, _CLAIMED, account) if account else ""

    def account_of(self, row: str) -> str:
        """The account that was learned, or nothing."""
        return self._accounts.get(row, "")

    def name_of(self, row: str) -> str:
        """The account of an identity that has no other name."""
        return f"{_UNNAMED}{row.rpartition(':')[2][:8]}"

    def learn(self, row: str, account: str) -> asyncio.Task[None] | None:
        """This is the account of a row from now on, unless it has a name of the config already.

        Returns what ends when it is stored, with what another process has stored before; None where nothing is new.
        """
        known = self._accounts.get(row, "")
        if known == account or (known and (not is_unnamed(known) or is_unnamed(account))):
            return None
        if len(self._accounts) >= _MOST and not known:
            return None
        self._accounts[row] = account
        return asyncio.get_running_loop().create_task(self._store(row, known, account))

    async def _store(self, row: str, known: str, account: str) -> None:
        stored = await self._remember(row, known, account)
        if stored and stored != account:
            self._accounts[row] = stored
            if is_unnamed(stored) and not is_unnamed(account):
                self._accounts[row] = await self._remember(row, stored, account) or account

    def _row(self, provider: str, kind: bytes, name: bytes) -> str:
        text = b"identity\0%s\0%s\0%s" % (provider.encode(), kind, name)
        return f"{provider}:{hmac.digest(self._salt(), text, 'sha256').hex()[:32]}"


def is_unnamed(account: str) -> bool:
    """Whether an account has its name of a key or of an identity, not of the config."""
    return account.startswith(_UNNAMED)


def of_account(headers: Pairs, token: str) -> Pairs:
    """The headers of a request that is sent with another login: Codex names its account in one of them."""
    if not any(name == _CLAIMED for name, _ in headers):
        return headers
    account = _claimed(token)
    return [pair for pair in headers if pair[0] != _CLAIMED] + ([(_CLAIMED, account)] if account else [])


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
