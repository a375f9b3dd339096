"""Names of models and selectors (rules N1 to N4).

A model is `provider[@account]/model`. A selector names the pools that a cap makes: `host`, `project`, `key`, `session`,
`provider[@account]` or `provider[@account]/model`, the last two with `*` globs. A selector that names no
account, project or key makes one pool for each of them.
"""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.errors import BadName

DEFAULT_ACCOUNT = "default"
# Other names of providers that agents and SDKs use, and the name by which they are known here. The only such table.
# What comes from outside is renamed where it is read (`canonical`); names in an old log are matched, too.
ALIASES = {
    "amazon-bedrock": "bedrock",
    "aws-bedrock": "bedrock",
    "azure-openai": "azure",
    "fireworks-ai": "fireworks",
    "gemini": "google",
    "google-generative-ai": "google",
    "google-vertex": "vertex",
    "mistralai": "mistral",
    "moonshot": "moonshotai",
    "togetherai": "together",
    "vertex-ai": "vertex",
    "vertex_ai": "vertex",
    "x-ai": "xai",
}
KINDS = ("agents", "requests")
MOST_KEY_NAME = 40
_OWN_SCOPES = ("session", "project", "key", "host")  # what caps are for besides models

# The families whose caps are named by default (rule A6): "opus_concurrency_cap".
_FAMILIES = ("opus", "sonnet", "haiku")

_MODEL_HELP = "a model is provider/model or provider@account/model, for example anthropic@work/claude-opus-4-6"
_SELECTOR_HELP = (
    "a selector is host, project, project:NAME, key, key:NAME, session, provider, provider/model, or one of the last "
    "two with @account and * globs, for example umans, anthropic@work or */claude-opus-*"
)


class Model(Struct, frozen=True):
    """One model of one provider account."""

    provider: str
    account: str
    name: str

    def __str__(self) -> str:
        if self.account == DEFAULT_ACCOUNT:
            return f"{self.provider}/{self.name}"
        return f"{self.provider}@{self.account}/{self.name}"


class Selector(Struct, frozen=True):
    """What a cap applies to. `scope` is host, project, key, session or model; the rest are patterns of a model scope.

    An empty `account` means one pool for each account; an empty `name` means every model of the provider, or each
    project or key.
    """

    text: str
    scope: str
    provider: str = ""
    account: str = ""
    name: str = ""

    def matches(self, model: Model) -> bool:
        return (
            self.scope == "model"
            and glob(self.provider, canonical(model.provider))
            and (not self.account or glob(self.account, model.account))
            and (not self.name or glob(self.name, model.name) or _is_dated(self.name, model.name))
        )

    @property
    def narrowness(self) -> tuple[int, int, int]:
        """Sorts the narrowest first: exact models, globbed models, providers, then session, project, key and host."""
        if self.scope != "model":
            return (3 + _OWN_SCOPES.index(self.scope), 0, 0)
        literal = len(self.name.replace("*", ""))
        rank = 2 if not self.name else 1 if "*" in self.name else 0
        return (rank, -literal, -len(self.provider.replace("*", "")) - len(self.account))

    @property
    def names_one(self) -> bool:
        """Whether it names its account, project or key, and is not for each of them."""
        return bool(self.account or (self.name and self.scope != "model"))

    def is_for(self, project: str, key: str, session: str = "") -> bool:
        """Whether a selector of a project, key or session applies to a request with these; "" is none."""
        if self.scope == "project":
            return not self.name or self.name == project
        if self.scope == "session":
            return bool(session)
        return bool(key) and (not self.name or self.name == key)

    @property
    def family(self) -> str:
        """The claude family that this selector caps, or "" (it names the reason, rule A6)."""
        if "claude" in self.name:
            for family in _FAMILIES:
                if family in self.name:
                    return family
        return ""


def parse_model(text: str) -> Model:
    """Read a model's name, or raise BadName with what a valid one looks like."""
    head, slash, name = text.partition("/")
    provider, at, account = head.partition("@")
    account = account if at else DEFAULT_ACCOUNT
    if not slash or not (_word(provider) and _word(account) and _word(name, "/:")) or "*" in text:
        raise BadName(f"not a model: {shown(text)}; {_MODEL_HELP}")
    return Model(provider, account, name)


def parse_selector(text: str) -> Selector:
    """Read a selector, or raise BadName with what a valid one looks like."""
    if text in _OWN_SCOPES:
        return Selector(text, text)
    if text.startswith(("project:", "key:")):
        return _one_instance(text)
    head, slash, name = text.partition("/")
    provider, at, account = head.partition("@")
    valid = _word(provider, "*") and (not at or _word(account, "*")) and (not slash or _word(name, "*/:"))
    if not valid:
        raise BadName(f"not a selector: {shown(text)}; {_SELECTOR_HELP}")
    return Selector(text, "model", canonical(provider), account, name)


def _one_instance(text: str) -> Selector:
    """One project or key: `project:NAME`, `key:NAME`."""
    scope, _, name = text.partition(":")
    valid = is_key_name(name) if scope == "key" else 0 < len(name) <= 200 and name.isprintable()
    if not valid:
        raise BadName(f"not a {scope}: {shown(name)}; one {scope} is {scope}:NAME")
    return Selector(text, scope, name=name)


def is_key_name(name: str) -> bool:
    """Whether this can be the name of an access key: it is part of selectors, addresses and listings."""
    word = name.replace("-", "a").replace("_", "a")
    return 0 < len(name) <= MOST_KEY_NAME and word.isascii() and word.isalnum()


def pool_id(
    selector: Selector, model: Model | None, host: str, project: str, session: str = "", access_key: str = ""
) -> str:
    """The name of the pool that `selector` makes for a request: its instance filled in (rule N3)."""
    if selector.scope == "host":
        return f"host:{host}"
    if selector.scope == "project":
        return f"project:{project}"
    if selector.scope == "session":
        return f"session:{session}"
    if selector.scope == "key":
        return f"key:{access_key}"
    assert model is not None
    if selector.account:
        # Of one provider the default account is not written; `*@default/m:x` keeps it, since `*/m:x` is another's.
        silent = selector.account == DEFAULT_ACCOUNT and "*" not in selector.provider
        return selector.text.replace("@default", "", 1) if silent else selector.text
    tail = f"/{selector.name}" if selector.name else ""
    if "*" in selector.provider:
        return f"{selector.text}:{account_of(model)}"
    at = "" if model.account == DEFAULT_ACCOUNT else f"@{model.account}"
    return f"{selector.provider}{at}{tail}"


def canonical(text: str) -> str:
    """A provider, or what begins with one (a model, an account, a selector, a pool), by the name that is used here."""
    for end, char in enumerate(text):
        if char in "@/":
            head = text[:end]
            return ALIASES[head] + text[end:] if head in ALIASES else text
    return ALIASES.get(text, text)


def read_model(text: str) -> Model:
    """Read a model's name that comes from outside, or raise BadName with what a valid one looks like."""
    return parse_model(canonical(text))


def names_of(provider: str) -> list[str]:
    """All names of a provider, the one that is used here first."""
    return [provider, *(alias for alias, known in ALIASES.items() if known == provider)]


def _is_dated(name: str, text: str) -> bool:
    """Whether `text` is the model `name` with the date of its release: `claude-opus-4-5-20251101`."""
    date = text[len(name) + 1 :]
    return len(date) == 8 and date.isdigit() and text.startswith(f"{name}-")


def account_of(model: Model) -> str:
    """`provider` for the default account, else `provider@account`."""
    return account_name(model.provider, model.account)


def account_name(provider: str, account: str) -> str:
    """The same, of names."""
    return provider if account == DEFAULT_ACCOUNT else f"{provider}@{account}"


def glob(pattern: str, text: str) -> bool:
    """Whether `text` matches `pattern`, where `*` stands for any characters."""
    if "*" not in pattern:
        return pattern == text
    first, *middle, last = pattern.split("*")
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def shown(text: str) -> str:
    """`text` for a message: quoted, printable and short."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _word(text: str, extra: str = "") -> bool:
    """Letters, digits and . _ - + and whatever `extra` allows; not empty, no control characters, not huge."""
    if not text or len(text) > 200:
        return False
    return all(char.isalnum() or char in "._-+~" or char in extra for char in text)
