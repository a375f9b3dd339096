"""Which agent does a command line start?

By the name of its program, also behind wrappers (`env`, `timeout`, `nice`), package runners (`npx @openai/codex`, `uvx
aider`) and interpreters (`node …/opencode`, `python -m aider`). `find_program` does not look into a shell's `-c`: whose
output that is, `--classify` says. `find_start` does, as far as it can be read: which model is used counts there too.
"""

from __future__ import annotations

from os.path import basename

from msgspec import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Known by the name of the program, which is the name of the file here too; and by its package.
KNOWN = ("claude", "opencode", "codex", "aider", "gemini")
_PACKAGES = {
    "@anthropic-ai/claude-code": "claude",
    "claude-code": "claude",
    "opencode-ai": "opencode",
    "@openai/codex": "codex",
    "aider-chat": "aider",
    "@google/gemini-cli": "gemini",
    "gemini-cli": "gemini",
}

# Programs that run another one: their options that take the next word, and how many words of their own come first.
_WRAPPERS: dict[str, tuple[frozenset[str], int]] = {
    "env": (frozenset(("-u", "--unset", "-C", "--chdir")), 0),
    "timeout": (frozenset(("-k", "--kill-after", "-s", "--signal")), 1),
    "gtimeout": (frozenset(("-k", "--kill-after", "-s", "--signal")), 1),
    "nice": (frozenset(("-n", "--adjustment")), 0),
    "ionice": (frozenset(("-c", "--class", "-n", "--classdata")), 0),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "stdbuf": (frozenset(("-i", "-o", "-e")), 0),
    "unbuffer": (frozenset(), 0),
    "caffeinate": (frozenset(("-t", "-w")), 0),
    "exec": (frozenset(("-a",)), 0),
    "command": (frozenset(), 0),
    "time": (frozenset(("-f", "--format", "-o", "--output")), 0),
    "chronic": (frozenset(), 0),
    "taskset": (frozenset(), 1),
    "flock": (frozenset(("-w", "--timeout", "-E", "--conflict-exit-code")), 1),
    "systemd-run": (frozenset(("-p", "--property", "-u", "--unit", "-E", "--setenv")), 0),
    "doas": (frozenset(("-u", "-C")), 0),
    "sudo": (frozenset(("-u", "--user", "-g", "--group", "-h", "-p", "-C", "-D")), 0),
    "npx": (frozenset(("-p", "--package", "-w", "--workspace")), 0),
    "bunx": (frozenset(("-p", "--package")), 0),
    "uvx": (frozenset(("--from", "--with", "-p", "--python", "--index", "--index-url")), 0),
    "node": (frozenset(("-r", "--require", "--import", "--env-file", "-C", "--conditions")), 0),
    "bun": (frozenset(("-r", "--preload", "--env-file", "--cwd")), 0),
    "deno": (frozenset(), 0),
    "python": (frozenset(("-W", "-X")), 0),
    "npm": (frozenset(("-p", "--package", "-w", "--workspace", "--prefix")), 0),
    "pnpm": (frozenset(("-C", "--dir", "--filter")), 0),
    "yarn": (frozenset(("-p", "--package", "--cwd")), 0),
    "uv": (frozenset(("--from", "--with", "-p", "--python", "--directory", "--project")), 0),
    "pipx": (frozenset(("--spec", "--python")), 0),
}
# `npm exec X`, `uv tool run X`, `node run X`: words of a runner that say "run", before the name.
_RUN_WORDS = frozenset(("exec", "x", "dlx", "run", "tool", "run-script"))
_RUNNERS = frozenset(("npm", "pnpm", "yarn", "uv", "pipx", "bun", "deno"))
_LAYERS = 6
_FILLED_LATER = ("FLEETGATE_MODEL",)  # what is there now is of the run that we are in
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "fish"))
# Words of a shell's language before a command.
_SHELL_WORDS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "nohup", "exec", "command"))


class Start(Struct):
    """An agent that a command starts: its arguments, its environment, and where in the command its name is.

    `at` is -1 within a shell's `-c`, where nothing can be changed.
    """

    name: str
    args: list[str]
    environ: dict[str, str]
    at: int


def find_start(argv: Sequence[str], environ: Mapping[str, str]) -> Start | None:
    """The first known agent that a command starts, with what the command adds to the environment; None of any other."""
    given = dict(environ)
    at = 0
    for _ in range(_LAYERS):
        if at >= len(argv):
            return None
        if name := _agent_named(argv[at]):
            return Start(name, list(argv[at + 1 :]), given, at)
        if basename(argv[at]) in _SHELLS:
            return _in_script(argv[at + 1 :], given)
        wrapper = _wrapper(argv[at])
        if wrapper is None:
            return None
        inner = _inner(argv, at + 1, wrapper)
        if wrapper == "env":
            _apply(argv[at + 1 : inner], given)
        at = inner
    return None


def _apply(words: Sequence[str], environ: dict[str, str]) -> None:
    """What `env` does to the environment."""
    for index, word in enumerate(words):
        if word in ("-i", "--ignore-environment", "-"):
            environ.clear()
        elif word in ("-u", "--unset"):
            environ.pop("".join(words[index + 1 : index + 2]), None)
        elif not word.startswith("-") and "=" in word:
            name, _, value = word.partition("=")
            environ[name] = value


def _in_script(args: Sequence[str], environ: dict[str, str]) -> Start | None:
    """The first agent in the script of `sh -c`. What a shell would fill in is filled in where the environment tells."""
    import re
    import shlex

    flag = next((index for index, word in enumerate(args) if word.startswith("-") and word.endswith("c")), None)
    if flag is None or flag + 1 >= len(args):
        return None
    lexer = shlex.shlex(args[flag + 1].replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return None

    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return found[0] if name in _FILLED_LATER else environ.get(name, found[0])

    def filled(word: str) -> str:
        return re.sub(r"\$(?:\{(\w+)\}|(\w+))", fill, word)

    command: list[str] = []
    for word in (*words, ";"):
        if word.strip(";&|()"):
            command.append(filled(word))
            continue
        if command[:1] == ["export"]:
            _apply(command[1:], environ)
        while command and (command[0] in _SHELL_WORDS or _assigns(command[0])):
            _apply(command[:1], environ)
            command.pop(0)
        if found := find_start(command, environ):
            found.at = -1
            return found
        command = []
    return None


def _assigns(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def find_program(argv: Sequence[str]) -> tuple[str, int]:
    """The known agent that is started, and where its name is in the command; ("", 0) for any other command."""
    at = 0
    for _ in range(_LAYERS):
        if at >= len(argv):
            break
        if name := _agent_named(argv[at]):
            return name, at
        wrapper = _wrapper(argv[at])
        if wrapper is None:
            break
        at = _inner(argv, at + 1, wrapper)
    return "", 0


def _agent_named(word: str) -> str:
    """`claude`, `/usr/bin/claude`, `@openai/codex@latest`, `/lib/node_modules/@google/gemini-cli/bundle/gemini.js`."""
    start, _sign, version = word.rpartition("@")
    package = start if start and "/" not in version else word
    if package in _PACKAGES:
        return _PACKAGES[package]
    name = basename(package)
    stem, dot, ending = name.rpartition(".")
    if dot and ending in ("js", "mjs", "cjs", "exe"):
        name = stem
        for folder, agent in _PACKAGES.items():
            if f"/{folder}/" in word:
                return agent
    return name if name in KNOWN else ""


def _wrapper(word: str) -> str | None:
    name = basename(word)
    if name.startswith("python"):  # python3, python3.12
        name = "python"
    return name if name in _WRAPPERS else None


def _inner(argv: Sequence[str], at: int, wrapper: str) -> int:
    """Where the command is that a wrapper runs."""
    with_value, own_words = _WRAPPERS[wrapper]
    while at < len(argv):
        word = argv[at]
        if wrapper == "python" and word == "-m":
            return at + 1
        if word == "--":
            return at + 1
        if word.startswith("-"):
            at += 2 if word in with_value else 1
        elif own_words:
            own_words -= 1
            at += 1
        elif (wrapper == "env" and "=" in word) or (wrapper in _RUNNERS and word in _RUN_WORDS):
            at += 1
        else:
            break
    return at
