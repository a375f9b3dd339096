"""The login of an account: the variables that an agent is started with (`env` of `[providers."NAME@ACCOUNT"]`), and
whether the provider has named whose it is.

An agent finds its login by a folder, for example that of `CLAUDE_CONFIG_DIR`. An account whose table names such a
folder has its login there: agents that hold a slot of the account are started with it, and credentials are looked for
in it. A value with `{account}` in the provider's own table is that of every account of the provider.
"""

from __future__ import annotations

from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import expand_home
from fleetgate.core.model_names import DEFAULT_ACCOUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetgate.config.settings import Provider

IDENTITIES = "identity"  # of the side table: the account of each identity, by its hash (proxy/login_identities.py)
_ACCOUNT = "{account}"


def login_variables(account: str, providers: Mapping[str, Provider]) -> dict[str, str]:
    """The variables of an account, `NAME` or `NAME@ACCOUNT`; none where the config has none."""
    name, _, own = account.partition("@")
    own = own or DEFAULT_ACCOUNT
    given: dict[str, str] = {}
    if name in providers:
        for_all = own != DEFAULT_ACCOUNT
        given = {key: value for key, value in providers[name].env.items() if not for_all or _ACCOUNT in value}
    if account != name and account in providers:
        given |= providers[account].env
    if not given or not own.strip("."):  # an account `..` would be another folder
        return {key: _expanded(value) for key, value in given.items() if _ACCOUNT not in value}
    return {key: _expanded(value).replace(_ACCOUNT, own) for key, value in given.items()}


def identified_accounts(rows: Iterable[tuple[str, bytes]]) -> set[str]:
    """The accounts whose identity is known, by the rows of the side table."""
    found = ((row.partition(":")[0], account.decode("utf-8", "replace")) for row, account in rows)
    return {provider if name == DEFAULT_ACCOUNT else f"{provider}@{name}" for provider, name in found}


def _expanded(value: str) -> str:
    try:
        return expand_home(value)
    except ConfigError:
        return value  # there is no home folder
