"""The start-up files of shells, and the marked blocks of lines that Fleetgate adds at their end.

A block is separated from what is before it by exactly one line end. So its removal restores every byte of the file,
even if the last line had no end. A block goes to the end because version managers such as nvm, before it, put their own
folders first on PATH.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys

from msgspec import Struct

from fleetgate.cli.shims.other_writers import other_writer
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_files import write_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SHELLS = ("bash", "zsh", "fish")
_MADE = "# Fleetgate made this file.\n"


class CannotChange(BadRequest):
    """A start-up file that Fleetgate does not change, and why."""


class Block(Struct, frozen=True):
    """Lines for the start-up files of one shell. `purpose` is a word that names the block in its file."""

    purpose: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        body = "".join(f"{line}\n" for line in self.lines)
        return f"# >>> fleetgate {self.purpose} >>>\n{body}# <<< fleetgate {self.purpose} <<<\n"


def user_shell(environ: Mapping[str, str]) -> str:
    """The user's shell, if it is one whose start-up files are known; otherwise ""."""
    given = environ.get("SHELL", "")
    if not given:
        import pwd

        try:
            given = pwd.getpwuid(os.geteuid()).pw_shell
        except KeyError:
            return ""
    name = os.path.basename(given)
    return name if name in SHELLS else ""


def startup_files(shell: str, environ: Mapping[str, str]) -> list[str]:
    """The files that an interactive shell reads, and a login shell where that reads another one."""
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        raise BadRequest("HOME is not set to an absolute path, so the start-up files of your shell cannot be found")
    if shell == "fish":
        base = environ.get("XDG_CONFIG_HOME", "")
        return [f"{base if os.path.isabs(base) else f'{home}/.config'}/fish/config.fish"]
    if shell == "zsh":
        folder = environ.get("ZDOTDIR", "")
        return [f"{folder if os.path.isabs(folder) else home}/.zshrc"]
    login = [f"{home}/{name}" for name in (".bash_profile", ".bash_login", ".profile")]
    there = next((path for path in login if os.path.exists(path)), login[0] if sys.platform == "darwin" else "")
    # Most login files read .bashrc; then one block is enough.
    needs_own = there and "bashrc" not in _read(there)
    return [f"{home}/.bashrc", *([there] if needs_own else [])]


def path_block(shell: str, folder: str) -> Block:
    """Puts a folder first on PATH, if it exists."""
    about = "# The shims of Fleetgate come first on PATH (`fleetgate shim ls`)."
    name = quoted(shell, folder)
    if shell == "fish":
        line = f"test -d {name}; and set -gx PATH {name} (string match -v -- {name} $PATH)"
        return Block("shims", (about, line))
    first = f'case ":$PATH" in :{name}:*) ;; *) [ -d {name} ] && export PATH={name}:"$PATH" ;; esac'
    return Block("shims", (about, first))


def has_block(path: str, block: Block) -> bool:
    """Whether a file has exactly this block."""
    return block.text in _read(path)


def add_block(path: str, block: Block) -> bool:
    """Put a block at the end of a file, in place of an older one; False if it is there already. CannotChange."""
    before = _read(path)
    if block.text in before:
        return False
    whole = without_block(before, block.purpose) if os.path.lexists(path) else _MADE
    separator = "\n" if whole else ""
    _write(path, f"{whole}{separator}{block.text}")
    return True


def remove_block(path: str, purpose: str) -> bool:
    """Remove a block, and the file if Fleetgate made it for blocks alone; False if there is none. CannotChange."""
    before = _read(path)
    after = without_block(before, purpose)
    if after == before:
        return False
    if after == _MADE:
        os.unlink(path)
    else:
        _write(path, after)
    return True


def without_block(text: str, purpose: str) -> str:
    """The text without a block and without the line end that separates it."""
    begin, end = f"^# >>> fleetgate {purpose} >>>\\n", f"^# <<< fleetgate {purpose} <<<\\n"
    found = re.search(rf"{begin}(?:(?!{begin}).)*?{end}", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return text
    before, after = text[: found.start()].removesuffix("\n"), text[found.end() :]
    # What was written behind the block later starts a line of its own.
    joins = before and after and not after.startswith("\n") and not before.endswith("\n")
    return f"{before}\n{after}" if joins else before + after


def quoted(shell: str, text: str) -> str:
    """A word as a shell reads it."""
    if shell != "fish":
        return shlex.quote(text)
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _read(path: str) -> str:
    """A file's text, whatever its bytes are; "" if it is not there."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise CannotChange(f"{path} cannot be read: {error.strerror}") from error


def _write(path: str, text: str) -> None:
    """Replace a file in one step, with its rights; through links, as many keep these files elsewhere."""
    place = os.path.realpath(path)
    if why := other_writer(place):
        raise CannotChange(f"{path} is not changed, because another user could change it: {why}")
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode) if os.path.exists(place) else 0o644
        os.makedirs(os.path.dirname(place), exist_ok=True)
        write_own(place, text.encode("utf-8", "surrogateescape"), mode)
    except OSError as error:
        raise CannotChange(f"{path} cannot be changed: {error.strerror}") from error
