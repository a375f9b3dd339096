"""The login of an account, by the variables that an agent is started with (`env` of `[providers."NAME@ACCOUNT"]`).

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
    from collections.abc import Mapping

    from fleetgate.config.settings import Provider

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


def _expanded(value: str) -> str:
    try:
        return expand_home(value)
    except ConfigError:
        return value  # there is no home folder
