"""The options of `fleetgate run`, defined once: for the fast parser here and for click's help and completion.

The fast parser understands every correct command line. For anything else it gives up, and click, which is slow to
load, reports the mistake.
"""

from __future__ import annotations

from msgspec import Struct


class Option(Struct, frozen=True):
    """One option. Without `metavar` it is a flag."""

    names: tuple[str, ...]
    field: str
    help: str
    metavar: str = ""


OPTIONS = (
    Option(
        ("-m", "--model"),
        "model",
        "Models in order of preference, e.g. anthropic/claude-opus-4-6; none: no model.",
        "MODEL,…",
    ),
    Option(("--any",), "any", "Use the next model when the first is at capacity, too."),
    Option(("--no-wait",), "no_wait", "Do not wait: exit 75 with the reason if there is no slot now."),
    Option(("--wait",), "wait", "Wait at most this long, then exit 75.", "DURATION"),
    Option(("--expires",), "expires", "Leave the queue after this long (default 24h).", "DURATION"),
    Option(("--priority",), "priority", "-100 to 100; each point counts as 12s of waiting.", "N"),
    Option(("--since",), "since", "When the work was requested: ISO 8601, epoch seconds, or an age like 10m.", "TIME"),
    Option(("--project",), "project", "Fairness group (default: $FLEETGATE_PROJECT, or `default`).", "NAME"),
    Option(("--class",), "work_class", "interactive (default on a terminal), normal or batch.", "CLASS"),
    Option(("--batch",), "batch", "The same as --class batch: this run gives way to others."),
    Option(("--slots",), "slots", "Slots to take in every pool (default 1).", "N"),
    Option(("--key",), "key", "Idempotency key: exit 75 if a run with this key is waiting or running.", "KEY"),
    Option(("--session",), "session", "Resume the agent session of the last run with this key.", "KEY"),
    Option(("--name",), "name", "What to call this run in listings, and for `fleetgate stop NAME`.", "NAME"),
    Option(("--role",), "role", "What this agent is for; kept in the history.", "NAME"),
    Option(
        ("--classify",), "classify", "Agent whose output this is, if not detected: claude, codex, …, none.", "AGENT"
    ),
    Option(
        ("--silence",), "silence", "Stop a recognized agent after this long without output (default 20m).", "DURATION"
    ),
    Option(
        ("--patience",),
        "patience",
        "How long an agent may retry on its own after a rate limit (default 2m; 0: stop it at once).",
        "DURATION",
    ),
    Option(("--proxied",), "proxied", "Send the agent's requests through the proxy of `fleetgate serve`."),
    Option(("--supervisor",), "supervisor", "The agent only delegates: it uses no host slot."),
    Option(("--share-slot",), "share_slot", "Inside another run: use its slot, one at a time."),
    Option(
        ("--fail-open",),
        "fail_open",
        "Without a store, run without a slot; counted once it is back.",
    ),
    Option(
        ("--shim",),
        "shim",
        "As shims start an agent: unchanged, in the slot of an enclosing run, and always, even if Fleetgate fails.",
    ),
    Option(("--log",), "log", "Keep the output, for `fleetgate logs`. The agent then sees no terminal."),
    Option(("--status-file",), "status_file", "Write the result to this file, as JSON.", "FILE"),
    Option(("--json",), "json", "Print a refusal as JSON on stdout."),
    Option(("-q", "--quiet"), "quiet", "Print nothing while waiting."),
)


class RunOptions(Struct):
    """The options as text; cli/run/acquire_slot.py checks and converts them."""

    command: list[str]
    model: str = ""
    any: bool = False
    no_wait: bool = False
    wait: str = ""
    expires: str = ""
    priority: str = ""
    since: str = ""
    project: str = ""
    work_class: str = ""
    batch: bool = False
    slots: str = ""
    key: str = ""
    session: str = ""
    role: str = ""
    name: str = ""
    classify: str = ""
    silence: str = ""
    patience: str = ""
    proxied: bool = False
    supervisor: bool = False
    share_slot: bool = False
    fail_open: bool = False
    shim: bool = False
    log: bool = False
    status_file: str = ""
    json: bool = False
    quiet: bool = False


_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def parse_fast(argv: list[str]) -> RunOptions | None:
    """Options and command of a correct command line; None for one that click must explain."""
    values: dict[str, str | bool] = {}
    rest = iter(enumerate(argv))
    for index, word in rest:
        if word == "--":
            command = argv[index + 1 :]
            break
        if not word.startswith("-"):
            command = argv[index:]
            break
        name, equals, value = word.partition("=")
        option = _BY_NAME.get(name)
        if option is None or (equals and (not option.metavar or not name.startswith("--"))):
            return None
        if not option.metavar:
            values[option.field] = True
        elif equals:
            values[option.field] = value
        else:
            following = next(rest, None)
            if following is None:
                return None
            values[option.field] = following[1]
    else:
        return None
    return RunOptions(command, **values) if command else None  # type: ignore[arg-type]
