"""The credentials that agents use here: whether there are any, and which (rules B3, B4).

Secrets stay in this process. What goes to the engine is a hash, salted with a random value that the store keeps beside
its log: it shows that a credential has changed, and nothing else. A file is read when its stat has changed, and only
if it is an ordinary file of reasonable size; anything else is an unknown credential. So is a credential in a place
that no config names: unknown means neither "none" nor "another one".

Where the config names no place, the usual variables and the login files of agents (`gate/providers/login_files.py`)
count together, as an agent may use any of them. Each gives one hash, so a new login can be told from one that is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from stat import S_ISREG
from time import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import expand_home
from fleetgate.config.settings import Provider, Settings
from fleetgate.core import commands as cmd
from fleetgate.core.accounts.sets import AccountSets
from fleetgate.core.model_names import account_of, canonical, parse_model
from fleetgate.core.pools.backoff import NO_CREDENTIAL, ended_by
from fleetgate.gate.providers.account_login import login_variables
from fleetgate.gate.providers.login_files import LoginFile, login_files
from fleetgate.log.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetgate.core.state.state import State

LARGEST_FILE = 1 << 20
SALT = ("salt", "credentials")  # the row beside the log
_YOUNG_S = 2.0  # a file that changed this recently may change again with the same time stamp

# Where the agents of well-known providers look for a key. The first that is set wins there, which one depends on the
# agent: so a change of any of them counts as a change.
WELL_KNOWN = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    "azure": ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshotai": ("MOONSHOT_API_KEY",),
    "openai": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY",),
    "perplexity": ("PERPLEXITY_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}


class SideCredentials(Protocol):
    """Reads and writes values beside the log, where the salt is."""

    def side_value(self, table: str, key: str) -> bytes | None: ...

    def set_side_value_once(self, table: str, key: str, value: bytes) -> bytes: ...


class HeldCredential(NamedTuple):
    """A credential as the engine gets it; "" is unknown."""

    digest: str = ""  # one hash for each place that is not empty, separated by commas
    identity: str = ""  # whose account it names, as `kind:hash`


class CredentialPlace(NamedTuple):
    """Where a provider's credential should be, in words, and whether it is found, missing, unreadable or unknown."""

    where: str
    state: str


_UNKNOWN = HeldCredential()


class Credentials:
    """The credentials that this process, and the agents that it starts, would use."""

    def __init__(self, settings: Settings, replica: SideCredentials) -> None:
        self._providers = settings.providers
        self._sets = AccountSets(settings.accounts)
        self._replica = replica
        self._read: dict[
            tuple[str, LoginFile], tuple[object, HeldCredential]
        ] = {}  # the stat of each file, and its content

    def news(self, state: State) -> list[cmd.Credential]:
        """Commands for the engine: credentials that end a backoff. Looks at nothing else."""
        if not state.backoffs:
            return []
        told = []
        marked = [each for each in state.backoffs.values() if each.credential or each.identity]
        for account in marked_accounts(state):
            held = self._of(account, make_salt=False)
            if any(ended_by(each, *held) for each in marked if each.key.partition("/")[0] == account):
                told.append(cmd.Credential(account, *held))
        return told

    def held_for(self, accounts: Iterable[str]) -> list[cmd.Credential]:
        """The known credentials of these accounts, for the process that compares them."""
        held = [(account, self._of(account, make_salt=False)) for account in accounts]
        return [cmd.Credential(account, *known) for account, known in held if known.digest]

    def used_for(self, model: str) -> HeldCredential:
        """The credential that an agent started now would use; NO_CREDENTIAL if all known places are empty.

        Never fails: a credential that cannot be read is unknown.
        """
        if not model:
            return _UNKNOWN
        account = account_of(parse_model(model))
        try:
            held = self._of(account, make_salt=True)
            if held != _UNKNOWN or not self._is_empty(account):
                return held
            self._salt(make=True)  # to know the next one by
        except StoreError:
            return _UNKNOWN
        return HeldCredential(NO_CREDENTIAL)

    def missing(self, model: str) -> str:
        """What a model is known to lack, in words; "" if there is a credential, or if that is unknown.

        A model that may use a set lacks what all accounts of the set lack.
        """
        lacks = [self._missing(each) for each in self._sets.expand((model,))]
        return "; ".join(dict.fromkeys(lacks)) if all(lacks) else ""

    def accounts_left(self, models: Sequence[str]) -> tuple[str, ...]:
        """The accounts of sets that these models may use, without those known to have no credential; none: all may."""
        found = {model: self._missing(model) for model in self._sets.expand(tuple(models))}
        if not self._sets.rules or not any(found.values()):
            return ()
        return tuple({parse_model(model).account: None for model, lacks in found.items() if not lacks})

    def _missing(self, model: str) -> str:
        account = account_of(parse_model(model))
        place = self.place(account)
        if place.state != "missing":
            return ""
        given = self._given(account)
        key, first = ("key_env", "export it") if given.key_env else ("credential_file", "log in")
        if key == "credential_file" and not given.credential_file:
            key = "env"
        table = f'providers."{account}"' if "@" in account else f"providers.{account}"
        return f"{place.where}: {first}, or correct {key} of [{table}] in the config"

    def with_credentials(self, models: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
        """The models without those that are known to have no credential, and what these lack, in words (rule B4)."""
        missing = {model: lacks for model in models if (lacks := self.missing(model))}
        alike = {lacks: ", ".join(model for model in missing if missing[model] == lacks) for lacks in missing.values()}
        left = tuple(model for model in models if model not in missing)
        return left, [f"{models}: {lacks}" for lacks, models in alike.items()]

    def place(self, account: str) -> CredentialPlace:
        """Where the credential of an account should be, and whether it is there."""
        given = self._given(account)
        if given.credential_file:
            return _place_of_file(given.credential_file)
        if given.key_env:
            if os.environ.get(given.key_env):
                return CredentialPlace(f"the variable {given.key_env} is set", "found")
            return CredentialPlace(f"the variable {given.key_env} is not set", "missing")
        there = [name for name in self._variables(account, given) if os.environ.get(name)]
        if there:
            return CredentialPlace(f"the variable {there[0]} is set", "found")
        places = self._files(account, given)
        files = [file.path for file in places if os.path.isfile(file.path)]
        if files:
            return CredentialPlace(f"{files[0]} is there", "found")
        if places and "@" in account:
            state = "unknown" if sys.platform == "darwin" else "missing"  # it may be in the keychain
            return CredentialPlace(f"there is no login in {os.path.dirname(places[0].path)}", state)
        return CredentialPlace("Fleetgate was not told where it is", "unknown")

    def _given(self, account: str) -> Provider:
        """The config of an account: `[providers.NAME]` is that of the default account, others have their own."""
        return self._providers.get(account, Provider())

    def _variables(self, account: str, given: Provider) -> tuple[str, ...]:
        if given.key_env:
            return (given.key_env,)
        return () if given.credential_file or given.env else WELL_KNOWN.get(canonical(account), ())

    def _files(self, account: str, given: Provider) -> list[LoginFile]:
        if given.credential_file:
            try:
                return [LoginFile(expand_home(given.credential_file))]
            except ConfigError:
                return []
        if given.key_env:
            return []
        login = login_variables(account, self._providers)
        if "@" in account:
            return login_files(account.partition("@")[0], login)
        return login_files(account, {**os.environ, **login})

    def _is_empty(self, account: str) -> bool:
        """Whether it is known where a credential would be, and nothing is there. An unreadable file is there."""
        given = self._given(account)
        variables, files = self._variables(account, given), self._files(account, given)
        nothing = not any(os.environ.get(name) for name in variables) and not any(_is_there(file) for file in files)
        return bool(variables or files) and nothing

    def _of(self, account: str, *, make_salt: bool) -> HeldCredential:
        """The credentials in all places of an account. Its owner is known only if there is a single place."""
        given = self._given(account)
        values = [value for name in self._variables(account, given) if (value := os.environ.get(name))]
        salt = self._salt(make_salt) if values else b""
        found = [HeldCredential(_digest(salt, b"credential", os.fsencode(value))) for value in values] if salt else []
        for file in self._files(account, given):
            if (held := self._in_file(account, file, make_salt)).digest:
                found.append(held)
        return HeldCredential(",".join(held.digest for held in found), found[0].identity if len(found) == 1 else "")

    def _in_file(self, account: str, file: LoginFile, make_salt: bool) -> HeldCredential:
        try:
            seen = os.stat(file.path)
        except OSError:
            return _UNKNOWN
        salt = self._salt(make_salt) if S_ISREG(seen.st_mode) else b""
        if not salt:
            return _UNKNOWN
        look = (salt, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        known = self._read.get((account, file))
        if known is not None and known[0] == look:
            return known[1]
        held = _held(salt, account, file.key, _content(file.path))
        if abs(time() - seen.st_mtime) > _YOUNG_S:
            self._read[account, file] = (look, held)
        return held

    def _salt(self, make: bool) -> bytes:
        return self._replica.side_value(*SALT) or (
            self._replica.set_side_value_once(*SALT, os.urandom(32)) if make else b""
        )


def marked_accounts(state: State) -> list[str]:
    """The accounts with a backoff that a changed credential may end."""
    marked = [each for each in state.backoffs.values() if each.credential or each.identity]
    return list(dict.fromkeys(each.key.partition("/")[0] for each in marked))


def _is_there(file: LoginFile) -> bool:
    """Whether a file may contain a login: a file for several providers without a part for this one does not."""
    if not os.path.lexists(file.path):
        return False
    from fleetgate.gate.providers.credential_owner import read_login

    content = _content(file.path) if file.key else b""
    return not content or bool(read_login(content, file.key).material)


def _held(salt: bytes, account: str, key: str, content: bytes) -> HeldCredential:
    from fleetgate.gate.providers.credential_owner import read_credential, read_login

    provider = account.partition("@")[0]
    material, kind, name = read_login(content, key) if key else read_credential(content, provider)
    if not material:
        return _UNKNOWN
    identity = f"{kind}:{_digest(salt, b'identity', name.encode())}" if name else ""
    return HeldCredential(_digest(salt, b"credential", material), identity)


def _digest(salt: bytes, of: bytes, data: bytes) -> str:
    try:
        from _blake2 import blake2b  # hashlib's own, without the 4 ms that it takes to load OpenSSL
    except ImportError:  # pragma: no cover - another Python
        from hashlib import blake2b
    return blake2b(data, key=salt, person=of, digest_size=16).hexdigest()


def read_file(path: str) -> bytes:
    """The content of a credential file, for other modules."""
    return _content(path)


def _content(path: str) -> bytes:
    """The content of an ordinary file; nothing if it cannot be read. Never waits, for example for a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if not S_ISREG(os.fstat(fd).st_mode):
            return b""
        chunks, size = [], 0
        while size <= LARGEST_FILE and (chunk := os.read(fd, LARGEST_FILE + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(chunks) if size <= LARGEST_FILE else b""


def _place_of_file(named: str) -> CredentialPlace:
    try:
        path = expand_home(named)
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return CredentialPlace(f"there is no file {named}", "missing")
    except (OSError, ConfigError) as error:
        why = getattr(error, "strerror", None) or error
        return CredentialPlace(f"{named} cannot be looked at: {why}", "unreadable")
    if not S_ISREG(mode):
        return CredentialPlace(f"{named} is not a file", "unreadable")
    if not os.access(path, os.R_OK):
        return CredentialPlace(f"{named} cannot be read by this user", "unreadable")
    return CredentialPlace(f"{named} is there", "found")
