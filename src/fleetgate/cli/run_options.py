"""The options of `fleetgate run`, defined once: for the quick parser here and for click's help and completion.

The quick parser understands every correct command line. At anything else it gives up, and click, which is slow to
load, says what is wrong.
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
        "Candidate models in order of preference, e.g. anthropic/claude-opus-4-6; none: it uses no model.",
        "MODEL,…",
    ),
    Option(("--any",), "any", "Move on to the next candidate also when the first one's pools are full."),
    Option(("--no-wait",), "no_wait", "Do not wait in the queue: exit 75 with the reason if there is no slot now."),
    Option(("--wait",), "wait", "Wait in the queue at most this long, then exit 75.", "DURATION"),
    Option(("--expires",), "expires", "Leave the queue after this long (default 24h).", "DURATION"),
    Option(("--priority",), "priority", "-100 to 100; each point is worth 12 s of waiting.", "N"),
    Option(("--since",), "since", "When the prompt started: ISO 8601, epoch seconds, or an age like 10m.", "TIME"),
    Option(("--project",), "project", "Fairness group (default: $FLEETGATE_PROJECT, else `default`).", "NAME"),
    Option(("--slots",), "slots", "Slots to take in every pool (default 1).", "N"),
    Option(("--key",), "key", "Idempotency key: exit 75 if one with this key is queued or running.", "KEY"),
    Option(("--session",), "session", "Resume the agent's session of the last run with this key.", "KEY"),
    Option(("--role",), "role", "What this agent is for; kept in the history.", "NAME"),
    Option(("--classify",), "classify", "Whose output this is, if not guessed: claude, codex, …, none.", "AGENT"),
    Option(("--silence",), "silence", "End a known agent that prints nothing for so long (default 20m).", "DURATION"),
    Option(
        ("--patience",),
        "patience",
        "Let an agent that met a rate limit call again by itself for so long (default 2m; 0: end it).",
        "DURATION",
    ),
    Option(("--proxied",), "proxied", "Send the agent's requests through the proxy of `fleetgate serve`."),
    Option(("--supervisor",), "supervisor", "An agent that only delegates: takes no host slot."),
    Option(("--share-slot",), "share_slot", "Inside another run: run in its slot, one at a time."),
    Option(("--fail-open",), "fail_open", "Without a store, go ahead without a slot, and be counted when it is back."),
    Option(("--status-file",), "status_file", "Write what really happened to this file, as JSON.", "FILE"),
    Option(("--json",), "json", "Print a refusal as JSON on stdout."),
    Option(("-q", "--quiet"), "quiet", "Say nothing while waiting."),
)


class RunOptions(Struct):
    """What was asked for, as text; checked and converted by cli/commands/run.py."""

    command: list[str]
    model: str = ""
    any: bool = False
    no_wait: bool = False
    wait: str = ""
    expires: str = ""
    priority: str = ""
    since: str = ""
    project: str = ""
    slots: str = ""
    key: str = ""
    session: str = ""
    role: str = ""
    classify: str = ""
    silence: str = ""
    patience: str = ""
    proxied: bool = False
    supervisor: bool = False
    share_slot: bool = False
    fail_open: bool = False
    status_file: str = ""
    json: bool = False
    quiet: bool = False


_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def parse_fast(argv: list[str]) -> RunOptions | None:
    """Options and command of a correct command line; None for whatever click should explain."""
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
