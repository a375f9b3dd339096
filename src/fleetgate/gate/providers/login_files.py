"""Where agents keep their logins: the files that are watched without configuration, for a provider's default account.

An agent that logs in writes one of these files. Several may exist at once, as each agent has its own; which one an
agent uses is its own business, so all of them count. Nothing is opened here: this module knows only the places.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_GOOGLE = ("google", "gemini")


class LoginFile(NamedTuple):
    """One file, and the part of it that is the login. `key` is "" if the whole file is."""

    path: str
    key: str = ""


def login_files(provider: str, environ: Mapping[str, str] | None = None) -> list[LoginFile]:
    """The files in which an agent may keep a login of this provider, whether they exist or not."""
    return list(_places(provider, os.environ if environ is None else environ))


def _places(provider: str, environ: Mapping[str, str]) -> Iterator[LoginFile]:
    if provider == "anthropic" and (folder := _folder(environ, ("CLAUDE_CONFIG_DIR", ""), ".claude")):
        yield LoginFile(f"{folder}/.credentials.json", "claudeAiOauth")
    if provider == "openai" and (folder := _folder(environ, ("CODEX_HOME", ""), ".codex")):
        yield LoginFile(f"{folder}/auth.json")
    if provider in _GOOGLE and (folder := _folder(environ, ("GEMINI_CLI_HOME", "/.gemini"), ".gemini")):
        yield LoginFile(f"{folder}/oauth_creds.json")
    if provider == "openrouter" and (folder := _folder(environ, ("", ""), ".aider")):
        yield LoginFile(f"{folder}/oauth-keys.env")
    if folder := _folder(environ, ("XDG_DATA_HOME", "/opencode"), ".local/share/opencode"):
        for name in _GOOGLE if provider in _GOOGLE else (provider,):
            yield LoginFile(f"{folder}/auth.json", name)


def _folder(environ: Mapping[str, str], named: tuple[str, str], below_home: str) -> str:
    """The folder that a variable names, with a suffix; otherwise one below the home folder. "" if there is none."""
    variable, below = named
    base, home = environ.get(variable, ""), environ.get("HOME", "")
    if os.path.isabs(base):
        return base.rstrip("/") + below
    return f"{home.rstrip('/')}/{below_home}" if os.path.isabs(home) else ""
