"""One reader for each type of value: takes what TOML gives, returns what Settings keeps, or raises `BadValue` (or
`BadName`) with what was found and what is valid. A value that may be a secret is never shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from fleetgate.config.errors import BadValue
from fleetgate.config.model_families import not_a_provider
from fleetgate.config.settings import TOLD
from fleetgate.config.units import found, parse_duration_ms, parse_size
from fleetgate.core.entities import CLASSES
from fleetgate.core.limits import POLICIES
from fleetgate.core.model_names import account_of, canonical, parse_model, parse_selector, shown
from fleetgate.core.pools.effective_caps import REFUSALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MOST_SLOTS = 1_000_000
MOST_WEIGHT = 1_000
APIS = ("openai", "anthropic", "gemini")
WHEN_EMPTY = ("hold", "stop", "fallback", "warn")
ESTIMATES = ("expected", "max")
LOCAL_USERS = ("self", "group", "all")
CAP_HELP = f"a whole number from 1 to {MOST_SLOTS}"
_PROVIDER_HELP = (
    'a provider\'s name, for example "umans": letters, digits and . _ - + only; or with an account, "umans@work"'
)


_MANY = 16  # a repetition of more than this is one without an end


def read_cap(value: object) -> int:
    """A whole number of slots; `true` is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_SLOTS:
        raise _invalid(value, CAP_HELP)
    return value


def read_host_cap(value: object) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return read_cap(value)
    except BadValue:
        raise _invalid(value, f'{CAP_HELP}, or "auto"') from None


def read_cap_text(text: str) -> int:
    """A cap from the environment or a foreign file."""
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) <= 20:
        return read_cap(int(digits))
    raise _invalid(text, CAP_HELP)


def read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(value, "true or false")
    return value


def read_on_429(value: object) -> str:
    return read_choice(value, POLICIES)


def read_refusals(value: object) -> str:
    return read_choice(value, REFUSALS)


def read_on_cutoff(value: object) -> str:
    return read_choice(value, ("keep", "end"))


def read_local_users(value: object) -> str:
    return read_choice(value, LOCAL_USERS)


def read_host_name(value: object) -> str:
    """A name without a port, in lower case."""
    if isinstance(value, str) and 0 < len(value) <= 253 and value.isascii():
        labels = value.lower().split(".")
        if all(label and label.replace("-", "a").replace("_", "a").isalnum() for label in labels):
            return value.lower()
    raise _invalid(value, 'a host name without a port, for example "gate.example.org"')


def read_listen_address(value: object) -> str:
    """An IP address, or a host name."""
    import ipaddress

    try:
        return str(ipaddress.ip_address(value)) if isinstance(value, str) else read_host_name(value)
    except ValueError:
        pass
    try:
        return read_host_name(value)
    except BadValue:
        raise _invalid(value, 'an address or a host name, for example "127.0.0.1" or "0.0.0.0"') from None


def read_port(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 65_536:
        return value
    raise _invalid(value, "a whole number from 0 to 65535")


def read_rates(value: object) -> str:
    return read_choice(value, ("follow", "ignore"))


def read_when_empty(value: object) -> str:
    return read_choice(value, WHEN_EMPTY)


def read_estimate(value: object) -> str:
    return read_choice(value, ESTIMATES)


def read_share(value: object) -> int:
    """A part of a whole, in hundredths of a percent."""
    whole, _, part = value.strip().removesuffix("%").strip().partition(".") if isinstance(value, str) else ("", "", "")
    digits = whole + part
    if isinstance(value, str) and value.strip().endswith("%") and whole and digits.isascii() and digits.isdigit():
        share = int(whole) * 100 + int((part + "00")[:2])
        if len(digits) < 9 and share <= 10_000:
            return share
    raise _invalid(value, 'a percentage from "0%" to "100%"')


class Share(NamedTuple):
    """A part of a pool, in hundredths of a percent."""

    share: int


class Memory(NamedTuple):
    """An amount of memory, in bytes."""

    size: int


def read_reserve(value: object) -> int | Share:
    """Slots that are kept for interactive work: how many, or which part of the limit."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SLOTS:
        return value
    try:
        return Share(read_share(value))
    except BadValue:
        raise _invalid(value, 'a number of slots, or a percentage such as "25%"') from None


def read_reserve_text(text: str) -> int | Share:
    """The same, as it is typed: `1` or `25%`."""
    return read_reserve(int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else text)


def read_host_reserve(value: object) -> int | Share | Memory:
    """The same for agents of a machine; a size is the memory that an automatic cap leaves free."""
    try:
        return read_reserve(value)
    except BadValue:
        return Memory(parse_size(value))


def read_weight(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WEIGHT:
        raise _invalid(value, f"a whole number from 1 to {MOST_WEIGHT}")
    return value


def read_class(value: object) -> str:
    return read_choice(value, CLASSES)


def read_project_name(text: str) -> str:
    if not 0 < len(text) <= 100 or not text.isprintable() or text != text.strip():
        raise _invalid(text, "a project's name of up to 100 printable characters")
    if text.startswith(("project:", "key:")):  # as budgets name them: no request would have such a project
        raise _invalid(text, "a project's name alone; the class of a key is set by `fleetgate key create --class`")
    return text


def read_time_zone(value: object) -> str:
    from fleetgate.config.time_zone import check_time_zone

    if not isinstance(value, str):
        raise _invalid(value, 'the name of a time zone, for example "Europe/Berlin"')
    return check_time_zone(value)


def read_api(value: object) -> str:
    return read_choice(value, APIS)


def read_some_duration_ms(value: object) -> int:
    """A duration that is not zero."""
    duration_ms = parse_duration_ms(value)
    if not duration_ms:
        raise _invalid(value, 'a duration longer than zero, for example "30d"')
    return duration_ms


def read_some_size(value: object) -> int:
    """A size that is not zero."""
    size = parse_size(value)
    if not size:
        raise _invalid(value, 'a size larger than zero, for example "512MiB"')
    return size


def read_model(value: object) -> str:
    if not isinstance(value, str):
        raise _invalid(value, 'a model, for example "anthropic/claude-opus-4-6"')
    return str(parse_model(canonical(value)))


def read_selector(text: str, providers: Collection[str] = ()) -> str:
    """A selector, where neither a slip of the pen in `host` or the like nor a model is taken for a provider.

    `providers` are those that are known.
    """
    parse_selector(text)
    if meant := not_a_provider(text, providers):
        raise BadValue(f"{meant} (A provider really called so: {shown(text + '/*')})")
    for word in ("host", "project", "key", "session"):
        if _nearly(text, word):
            raise BadValue(f"{shown(text)}: did you mean {word}? (a provider really called so: {shown(text + '/*')})")
    return canonical(text)


def read_provider_name(text: str) -> str:
    """A provider, or one of its accounts other than the default one."""
    try:
        model = parse_model(f"{text}/model")
        if text in (model.provider, account_of(model)):
            return canonical(text)
    except ValueError:
        pass
    raise _invalid(text, _PROVIDER_HELP)


def read_cap_name(value: object) -> str:
    """What the reason is called: NAME_concurrency_cap."""
    if isinstance(value, str) and 0 < len(value) <= 40 and value.isascii() and _is_word(value.replace("-", "_")):
        return value
    raise _invalid(value, 'a short name of letters, digits, _ and -, for example "opus"')


def read_argument(value: object) -> str:
    """One word of a command."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise _invalid(value, "text that is not empty")
    return value


def read_base_url(value: object) -> str:
    valid = 'an http or https URL without key, ? or #, for example "https://api.umans.ai/v1"'
    if not isinstance(value, str):
        raise _invalid(value, valid)
    scheme, mark, rest = value.partition("://")
    host = rest.partition("/")[0]
    if "@" in host or "?" in value or "#" in value:
        raise BadValue(f"found a URL with more than an address in it (not shown, it may hold a key); valid is {valid}")
    if scheme not in ("http", "https") or not mark or not host.strip(":") or len(value) > 2000 or not _plain(value):
        raise _invalid(value, valid)
    return value.rstrip("/")


def read_key_env(value: object) -> str:
    valid = 'the name of an environment variable, for example "UMANS_API_KEY"'
    if isinstance(value, str) and value.isascii() and _is_word(value) and not value[0].isdigit():
        return value
    if isinstance(value, str):
        raise BadValue(f"found text that is no variable's name (not shown, it may be a key); valid is {valid}")
    raise _invalid(value, valid)


def read_credential_file(value: object) -> str:
    return _file(value, "~/.local/share/opencode/auth.json")


def read_tls_file(value: object) -> str:
    return _file(value, "/etc/fleetgate/tls.pem")


def _file(value: object, example: str) -> str:
    if isinstance(value, str) and value.startswith(("/", "~/")) and "\0" not in value:
        return value
    raise _invalid(value, f'an absolute path or one below ~/, for example "{example}"')


def read_usage_path(value: object) -> str:
    if isinstance(value, str) and value.startswith("/") and _plain(value):
        return value
    raise _invalid(value, 'a path that starts with /, for example "/usage"')


def read_usage_field(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and all(value.split(".")):
        return value
    raise _invalid(value, 'names joined by dots, for example "usage.concurrent_sessions"')


def read_pattern(value: object) -> str:
    """A regular expression for command lines. One that matches everything would count every process."""
    import re
    import warnings
    from importlib import import_module

    valid = r'a regular expression for a command line, for example "opencode.*-m (?P<model>\\S+)"'
    if not isinstance(value, str):
        raise _invalid(value, valid)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(value)
            nests = _repeats_nest(import_module("re._parser").parse(value))
    except (re.error, RecursionError, OverflowError) as error:
        raise BadValue(f"found {shown(value)}, which does not compile: {error}; valid is {valid}") from None
    if nests:
        raise BadValue(
            f"found {shown(value)}, which repeats a repetition and can take for ever on a long command line; "
            r"valid is one repetition, for example .* or \S+"
        )
    strange = [name for name in pattern.groupindex if name != "model"]
    if strange:
        raise BadValue(f"found a group named {shown(strange[0])}; the only named group is (?P<model>…)")
    if pattern.search(""):
        raise BadValue(f"found {shown(value)}, which matches every process; valid is {valid}")
    return value


def _repeats_nest(parsed: Any, inside: bool = False) -> bool:
    """Whether a pattern has a repetition without an end inside another one, such as `(a+)+`."""
    for operation, argument in parsed:
        name = str(operation)
        repeats = name in ("MAX_REPEAT", "MIN_REPEAT") and int(argument[1]) > _MANY
        if repeats and inside:
            return True
        for part in _parts(argument):
            if _repeats_nest(part, inside or repeats):
                return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns inside an operation of a parsed pattern, however it holds them."""
    if type(argument).__name__ == "SubPattern":
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _parts(each)


def read_user(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= 100 and _plain(value):
        return value
    raise _invalid(value, 'the name of a user, for example "alice", or "*" for every user')


def read_choice(value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    quoted = [f'"{choice}"' for choice in choices]
    raise _invalid(value, f"{', '.join(quoted[:-1])} or {quoted[-1]}")


def _invalid(value: object, valid: str) -> BadValue:
    return BadValue(f"found {found(value)}; valid is {valid}")


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _is_word(text: str) -> bool:
    return bool(text) and all(char.isalnum() or char == "_" for char in text)


def _nearly(text: str, word: str) -> bool:
    """Whether `text` is `word` with one letter more or less, in another order, or in capitals."""
    if text == word or abs(len(text) - len(word)) > 1:
        return False
    return (
        sorted(text.lower()) == sorted(word)
        or word in {text[:at] + text[at + 1 :] for at in range(len(text))}
        or text in {word[:at] + word[at + 1 :] for at in range(len(word))}
    )


def read_target_url(value: object) -> str:
    """Where messages go. Never shown: tokens are part of such URLs."""
    if isinstance(value, str) and value.isprintable() and value == value.strip():
        scheme, found, rest = value.partition("://")
        if found and rest and scheme.isascii() and scheme.replace("+", "a").isalnum():
            return value
    raise BadValue('not a URL, for example "https://example.org/hook" or "tgram://TOKEN/CHAT"')


def read_target_name(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= 40 and value.isascii() and value.replace("-", "a").isalnum():
        return value
    raise _invalid(value, 'a name of letters, digits and -, for example "team"')


def read_told(value: object) -> str:
    return read_choice(value, TOLD)
