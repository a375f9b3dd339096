"""The places of the state folder and of the config file (rules C1, C3).

The answer depends on the environment alone, never on the current directory: two processes that see the same
variables share one gate. Only a leading `~/` is expanded; `$NAME` in a value is left as it is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetgate.config.errors import ConfigError

_STORES = "valid is sqlite:///absolute/folder, postgresql://user@host/database or memory://"
_MAC = "Library/Application Support/fleetgate"


def state_folder(environ: Mapping[str, str] | None = None) -> str:
    """The folder of the log, the sockets and the token: `$FLEETGATE_HOME` or the platform's own."""
    environ = os.environ if environ is None else environ
    given = environ.get("FLEETGATE_HOME", "")
    if not given:
        return _utf8(_platform_folder(environ, "XDG_STATE_HOME", ".local/state", "FLEETGATE_HOME"), "FLEETGATE_HOME")
    folder = expand_home(given, environ)
    if not os.path.isabs(folder):
        # A relative folder would be another gate in every directory, and no cap would hold.
        raise _problem("FLEETGATE_HOME", f"found {folder!r}; valid is an absolute path")
    return _utf8(os.path.normpath(folder), "FLEETGATE_HOME")


def _utf8(path: str, variable: str) -> str:
    """The path itself: places in it are stored as text, so its name must be text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _problem(variable, f"found {path!r}; valid is a path whose name is UTF-8") from None
    return path


def config_path(environ: Mapping[str, str] | None = None) -> str:
    """The config file, whether it exists or not: `$FLEETGATE_CONFIG` or the platform's own."""
    environ = os.environ if environ is None else environ
    given = environ.get("FLEETGATE_CONFIG", "")
    if not given:
        return _platform_folder(environ, "XDG_CONFIG_HOME", ".config", "FLEETGATE_CONFIG") + "/config.toml"
    try:
        return os.path.abspath(expand_home(given, environ))
    except OSError as error:  # the current directory is gone
        raise _problem("FLEETGATE_CONFIG", f"{given!r} is relative, and {error.strerror}") from error


def data_folder(environ: Mapping[str, str] | None = None) -> str:
    """The folder of shims and of what `fleetgate init` made: `$XDG_DATA_HOME/fleetgate`, or the same below home.

    On macOS, too: it goes on PATH, and many tools take no PATH with blanks in it.
    """
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = f"{_home(environ, 'XDG_DATA_HOME')}/.local/share"
    return os.path.normpath(f"{base}/fleetgate")


def store_url(environ: Mapping[str, str] | None = None) -> str:
    """The store: `$FLEETGATE_STORE`, or SQLite in the state folder as `sqlite:///absolute/folder`.

    That of a PostgreSQL store may hold a password: see log/store_url.py for how to show it.
    """
    environ = os.environ if environ is None else environ
    given = environ.get("FLEETGATE_STORE", "")
    if not given:
        return "sqlite://" + state_folder(environ)
    scheme, _, rest = given.partition("://")
    if scheme == "sqlite" and os.path.isabs(rest):
        return "sqlite://" + _utf8(os.path.normpath("/" + rest.lstrip("/")), "FLEETGATE_STORE")
    if given == "memory://":
        return given
    if scheme in ("postgresql", "postgres") and rest:
        return f"postgresql://{rest}"
    # The value may contain a password, so no more than its scheme is shown.
    if scheme in ("sqlite", "memory", "postgres", "postgresql"):
        found = f"found a {scheme} URL that cannot be used"
    elif rest and scheme.isalnum():
        found = f"unsupported scheme {scheme!r}"
    else:
        found = "found no store URL"
    raise _problem("FLEETGATE_STORE", f"{found}; {_STORES}")


def sqlite_folder(url: str) -> str | None:
    """The folder of a `sqlite://` store, or None for another store."""
    return url.removeprefix("sqlite://") if url.startswith("sqlite://") else None


def expand_home(path: str, environ: Mapping[str, str] | None = None) -> str:
    """`path` with a leading `~/` replaced by the home folder; anything else stays as it is."""
    if path != "~" and not path.startswith("~/"):
        return path
    return _home(os.environ if environ is None else environ, "HOME") + path[1:]


def _platform_folder(environ: Mapping[str, str], variable: str, below_home: str, instead: str) -> str:
    if sys.platform == "darwin":
        return f"{_home(environ, instead)}/{_MAC}"
    base = environ.get(variable, "")
    if not os.path.isabs(base):  # the XDG standard: a relative path is to be ignored
        base = f"{_home(environ, instead)}/{below_home}"
    return os.path.normpath(f"{base}/fleetgate")


def _home(environ: Mapping[str, str], instead: str) -> str:
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home.rstrip("/")
    found = f"found {home!r}" if home else "is not set"
    hint = "" if instead == "HOME" else f", or set {instead}"
    raise _problem("HOME", f"{found}; set it to the absolute path of your home folder{hint}")


def _problem(variable: str, text: str) -> ConfigError:
    from fleetgate.config.errors import ConfigError, ConfigProblem  # late: most processes never need them

    return ConfigError(ConfigProblem(variable, text))
