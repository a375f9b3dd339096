"""Which agent does a command line start?

By the name of its program, also behind wrappers (`env`, `timeout`, `nice`), package runners (`npx @openai/codex`, `uvx
aider`) and interpreters (`node …/opencode`, `python -m aider`). A shell's `-c` is not taken apart: there `--classify`
says it.
"""

from __future__ import annotations

from os.path import basename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
