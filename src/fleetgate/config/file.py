"""The config file, read and checked (rules C1, C6): all of it or nothing, and every problem at once; and followed.

A file is known by the digest of its bytes: the gate takes in each content once, and only a newer one (rule C2).
"""

from __future__ import annotations

import os

from msgspec import Struct

from fleetgate.config.errors import ConfigError, ConfigProblem, Problems
from fleetgate.config.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_FILE = 1 << 20

_QUOTE_NAMES = 'names with / * @ or : are written in quotes, like "anthropic/claude-opus-*" = 4'
_QUOTE_VALUES = 'text is written in quotes, like "350ms" or "auto"'


class Loaded(Struct, frozen=True):
    """A config file that is valid: what it says, and which content of it was read."""

    path: str
    digest: str
    mtime_ms: int
    settings: Settings


class ConfigWatch:
    """A config file that a running process follows: it is read again when its stat has changed.

    `say` gets a sentence about a file that is not valid, once; then what it said before stays in force.
    """

    def __init__(self, path: str, loaded: Loaded | None, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._seen: object = None
        self.loaded = loaded

    def current(self) -> Loaded | None:
        """The file as it is now; None if there is none."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self.loaded = load(self.path)
            except ConfigError as error:
                self._say(f"{error} (going on as before)")
        return self.loaded

    def news(self) -> Loaded | None:
        """The file, if its content has changed since the last call."""
        before = self.loaded
        now = self.current()
        return now if now is not None and (before is None or before.digest != now.digest) else None

    def _look(self) -> object:
        try:
            about = os.stat(self.path)
        except OSError:
            return None
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def load(path: str, *, required: bool = False) -> Loaded | None:
    """Read and check a file. None when there is none, unless it is `required`; ConfigError when it is bad."""
    try:
        with open(path, "rb", buffering=0) as file:
            mtime_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
            data = _read(file.fileno(), path)
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise ConfigError(ConfigProblem(path, "there is no such file")) from None
        return None
    except OSError as error:
        hint = "; a config file is expected" if isinstance(error, IsADirectoryError) else ""
        raise ConfigError(ConfigProblem(path, f"cannot be read: {error.strerror}{hint}")) from error
    except ValueError:  # a NUL in the path
        raise ConfigError(ConfigProblem(repr(path), "is not a path")) from None
    return Loaded(path, digest(data), mtime_ms, check(decode(data, path), path))


def check(text: str, name: str) -> Settings:
    """The settings of a config file's text; ConfigError names every problem, with `name` as the file's."""
    from fleetgate.config.document import settings_of, shown_path

    document = _parse(text, name)
    problems: Problems = []
    settings = settings_of(document, problems)
    if problems:
        from fleetgate.config.key_lines import line_of

        found = [ConfigProblem(name, sentence, line_of(path, text), shown_path(path)) for path, sentence in problems]
        raise ConfigError(*sorted(found, key=lambda problem: problem.line))
    return settings


def decode(data: bytes, name: str) -> str:
    """The text of a file's bytes, without a byte order mark."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(ConfigProblem(name, "is not UTF-8 text here; save the file as UTF-8", line)) from None


def digest(data: bytes) -> str:
    """What identifies a content."""
    try:
        from _blake2 import blake2b  # hashlib's own, without the 4 ms that it takes to load OpenSSL
    except ImportError:  # pragma: no cover - another Python
        from hashlib import blake2b
    return blake2b(data, digest_size=16).hexdigest()


def _read(fd: int, path: str) -> bytes:
    chunks, size = [], 0
    while chunk := os.read(fd, LARGEST_FILE):
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_FILE:
            raise ConfigError(ConfigProblem(path, "is larger than 1 MiB; a config file is expected"))
    return b"".join(chunks)


def _parse(text: str, name: str) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(ConfigProblem(name, "is nested too deeply")) from None
    except tomllib.TOMLDecodeError as error:
        sentence, _, place = str(error).partition(" (at ")
        number = place.removeprefix("line ").partition(",")[0]
        line = int(number) if number.isdigit() else text.count("\n") + 1
        raise ConfigError(
            ConfigProblem(name, f"not valid TOML: {sentence}{_hint(sentence, text, line)}", line)
        ) from None
    except ValueError as error:  # a number of thousands of digits, an impossible date
        raise ConfigError(ConfigProblem(name, f"not valid TOML: {str(error).partition(';')[0]}")) from None


def _hint(sentence: str, text: str, line: int) -> str:
    """What the usual mistakes on that line mean; the line itself is not shown, it may hold a key."""
    if not sentence.startswith(("Expected", "Invalid")):
        return ""
    statement = text.split("\n")[line - 1].strip()
    name, equals, value = statement.partition("=")
    if statement[:1] not in ("", "[", '"', "'", "#") and any(char in name for char in "/*@:"):
        return f"; {_QUOTE_NAMES}"
    return f"; {_QUOTE_VALUES}" if equals and value.strip()[:1].isalnum() else ""
