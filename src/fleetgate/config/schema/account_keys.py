"""The keys of `[accounts]`: several accounts of a provider that requests use as one. Defaults are the engine's."""

from __future__ import annotations

from typing import Any

from fleetgate.config import value_types as v
from fleetgate.config.errors import BadValue, Path, Problems
from fleetgate.config.schema.shapes import Array, Key, Map, Scalar, Table
from fleetgate.config.units import format_duration, found, parse_duration_ms
from fleetgate.core.accounts.sets import CHOICES, MOST_ACCOUNTS, STICKY
from fleetgate.core.entities import AccountSet
from fleetgate.core.model_names import parse_model

_DEFAULTS = AccountSet("", ())


def _read_account(value: object) -> str:
    if isinstance(value, str):
        try:
            return parse_model(f"provider@{value}/model").account
        except ValueError:
            pass
    raise BadValue(f'found {found(value)}; valid is the name of an account, for example "work"')


def _read_provider(text: str) -> str:
    name = v.read_provider_name(text)
    if "@" in name:
        raise BadValue(f"found {found(text)}; valid is a provider without an account, for example anthropic")
    return name


_ACCOUNTS = Array("array of accounts", Scalar("account", _read_account))

ACCOUNTS_DOC = (
    "Several accounts of a provider as one. A request that names no account (`anthropic/claude-opus-4-6`) uses one of "
    "these; one that does (`anthropic@work/claude-opus-4-6`) uses that one. See [accounts](accounts.md)."
)
ACCOUNTS_EXAMPLE = '{ anthropic = { use = ["work", "spare"], then = ["api"] } }'
ACCOUNTS = Map(
    "table of sets",
    "PROVIDER",
    _read_provider,
    Table(
        "the accounts of a provider",
        (
            Key(
                "use",
                _ACCOUNTS,
                "The accounts to use. `default` is the one without a name.",
                '["work", "spare"]',
                required=True,
            ),
            Key(
                "then",
                _ACCOUNTS,
                "The accounts that are used only while none of the others has room, for example one that is billed by "
                "the token.",
                '["api"]',
                "none",
            ),
            Key(
                "choose",
                Scalar(" or ".join(f'"{choice}"' for choice in CHOICES), lambda value: v.read_choice(value, CHOICES)),
                "Which account a new conversation uses: the one with the most left of its slots, budgets and plan "
                "windows, or the first that has room.",
                f'"{_DEFAULTS.choose}"',
                f'"{_DEFAULTS.choose}"',
            ),
            Key(
                "sticky",
                Scalar(" or ".join(f'"{choice}"' for choice in STICKY), lambda value: v.read_choice(value, STICKY)),
                "Whether a conversation keeps its account, and with it the provider's prompt cache.",
                f'"{_DEFAULTS.sticky}"',
                f'"{_DEFAULTS.sticky}"',
            ),
            Key(
                "patience",
                Scalar("duration", parse_duration_ms),
                "How long a conversation waits for its own account before it moves to another. It moves at once when "
                "its account is known to stay closed for longer.",
                '"10s"',
                format_duration(_DEFAULTS.patience_ms),
            ),
        ),
    ),
)


def account_sets(said: dict[str, dict[str, Any]], problems: Problems) -> tuple[AccountSet, ...]:
    """The sets of a file, in the names of the engine."""
    return tuple(_account_set(name, keys, ("accounts", name), problems) for name, keys in said.items())


def _account_set(provider: str, keys: dict[str, Any], path: Path, problems: Problems) -> AccountSet:
    use, then = tuple(keys.get("use", ())), tuple(keys.get("then", ()))
    if "use" in keys and not 1 <= len(use) <= MOST_ACCOUNTS - len(then):
        problems.append(((*path, "use"), f"found {len(use)} accounts; valid are 1 to {MOST_ACCOUNTS}, with `then`"))
    for name, accounts in (("use", use), ("then", then)):
        for at, account in enumerate(accounts):
            if account in accounts[:at] or (name == "then" and account in use):
                problems.append(((*path, name, at), f"{found(account)} is in the set already"))
    said = {"patience_ms" if key == "patience" else key: value for key, value in keys.items()}
    return AccountSet(provider, **(said | {"use": use, "then": then}))
