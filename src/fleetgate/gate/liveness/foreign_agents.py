"""Agents that were started outside Fleetgate, by the model they use (rule A13). They are counted, never touched.

A process counts when its command line matches a pattern of the config and no ancestor of it does. Not counted
are processes of Fleetgate and all that runs under them, and all that runs under a process with a lease or a
ticket (its holder, or the agent that runs under it). Processes of other users than the gate's are not looked at: they
could pretend to be agents. A model is named as `fleetgate run` names it.

Anyone can start a process with a long and odd command line, and the time of Python's patterns grows faster than the
text. So only the start of each argument is matched, only two thousand characters of each command line, and a census
that takes too long stops with what it has seen so far.

Two steps, because they have different needs. `take` reads the command lines of the whole machine, a few
milliseconds, and its answer is shared by all processes for about a second. `tally` sets that answer against
the current leases, and checks of each candidate whether it is still alive. So a cached census never makes an agent
foreign whose lease is younger than the census, and never keeps a slot for an agent that has ended, provided that
the leases are read *after* the census.
"""

from __future__ import annotations

import os
from _thread import get_ident
from time import monotonic

import msgspec

from fleetgate.core.errors import BadName
from fleetgate.core.model_names import read_model
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.store_users import StoreUsers
from fleetgate.log.clock import boot_ms
from fleetgate.log.store_files import remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping, Sequence


FRESH_MS = 1000
BUDGET_MS = 250  # for matching all command lines of a census
_ARGUMENT_CHARS = 256  # a prompt among the arguments is long, and the flags behind it matter
_LINE_CHARS = 2048

# What follows on a command line (of `timeout`, `sh -c`, `uv run`) is what Fleetgate is asked to run, and is not
# what the process itself is: a run that waits in the queue must not count as the agent that it waits to start.
_REQUEST = r"(?:^|[\s/;&|('\"])fleetgate(?:\s+-\S+)*\s+(?:run|submit)\s"

# Options of the interpreter that take the next argument.
_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A process that matches: which one, its model ("" when unknown), and the pids above it."""

    process: str
    model: str
    above: tuple[int, ...]


class Census(msgspec.Struct, array_like=True):
    """The result of a census, as in its cache file. It is valid only for the same patterns, users and place."""

    place: str
    patterns: list[str]
    at_ms: int
    seen: list[Seen]
    trouble: str = ""  # what it could not do


def take(cache_path: str, patterns: Sequence[str], users: StoreUsers | None = None) -> Census:
    """The matching processes of the gate's users, as of at most about a second ago, and what the census could not do.

    `cache_path` is "" for no cache.
    """
    users = users or StoreUsers("")
    place, at_ms = f"{_place()}|{users.key}", boot_ms()
    if not patterns:
        return Census(place, [], at_ms, [])
    cached = _load(cache_path) if cache_path else None
    if cached and (cached.place, cached.patterns) == (place, list(patterns)) and 0 <= at_ms - cached.at_ms < FRESH_MS:
        return cached
    lines = command_lines(users)
    budget = TimeLimit()
    seen = [
        Seen(process, model, above)
        for pid, model, above in find(patterns, lines, process_identity.parent_of, budget)
        if (process := process_identity.identify(pid))
    ]
    found = Census(place, list(patterns), at_ms, seen, budget.trouble())
    if cache_path:
        _save(cache_path, found)
    return found


def tally(seen: Iterable[Seen], own: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """How many of them are foreign now, by model. `own`: the processes of all leases and tickets, read just now."""
    candidates = [one for one in seen if not process_identity.is_gone(one.process)]
    if not candidates:
        return ()
    mine = {pid: process for process in own if (pid := process_identity.local_pid(process))}
    counts: dict[str, int] = {}
    for one in candidates:
        pid = process_identity.pid_of(one.process)
        chain = (pid, *one.above)
        # A holder that is gone, and whose pid another process has by now, owns nothing.
        owned = any(above in mine and not process_identity.is_gone(mine[above]) for above in chain if above)
        if pid != os.getpid() and not owned:
            counts[one.model] = counts.get(one.model, 0) + 1
    return tuple(sorted(counts.items()))


class TimeLimit:
    """How long a census may match command lines; at the end of it, how many were left."""

    def __init__(self, ms: float | None = None) -> None:
        self._until = monotonic() + (BUDGET_MS if ms is None else ms) / 1000
        self.skipped = 0

    def is_spent(self) -> bool:
        if monotonic() < self._until:
            return False
        self.skipped += 1
        return True

    def trouble(self) -> str:
        if not self.skipped:
            return ""
        left = f"{self.skipped} processes were not looked at"
        return f"the census took longer than {BUDGET_MS} ms, and {left}: use simpler patterns in [[census]]"


def find(
    patterns: Sequence[str],
    argvs: Mapping[int, Sequence[str]],
    parent_of: Callable[[int], int],
    budget: TimeLimit | None = None,
) -> list[tuple[int, str, tuple[int, ...]]]:
    """The topmost matching processes that are not under Fleetgate: pid, model, and the pids above.

    Parents are asked for one by one, and only of matches: they are the expensive part of /proc.
    """
    compiled, request = _compile(patterns)
    matches: dict[int, str] = {}
    for pid, argv in argvs.items():
        if budget is not None and budget.is_spent():
            continue
        model = _match(compiled, request, argv)
        if model is not None and not is_fleetgate(argv):
            matches[pid] = model
    found = []
    for pid, model in matches.items():
        above = _ancestors(pid, parent_of)
        if not any(parent in matches or is_fleetgate(_argv_of(parent, argvs)) for parent in above):
            found.append((pid, model, above))
    return found


def _argv_of(pid: int, argvs: Mapping[int, Sequence[str]]) -> Sequence[str]:
    """The arguments of an ancestor. Those of another user (root's `fleetgate run` above a `sudo`) are read here."""
    return argvs[pid] if pid in argvs else process_identity.command_line(pid)


def is_fleetgate(argv: Sequence[str]) -> bool:
    """Whether this is a process of Fleetgate: the command itself, or an interpreter that runs it."""
    if not argv:
        return False
    program = os.path.basename(argv[0])
    if program == "fleetgate":
        return True
    if not program.startswith(("python", "Python", "pypy")):
        return False
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument in _TAKES_VALUE:
            next(arguments, None)
        elif not argument.startswith("-"):
            return os.path.basename(argument) == "fleetgate"
        elif argument.endswith("m") and not argument.startswith(("--", "-X", "-W", "-c")):
            return next(arguments, "").partition(".")[0] == "fleetgate"
        elif argument.endswith("c") and not argument.startswith(("--", "-X", "-W")):
            return False
    return False


def command_lines(users: StoreUsers) -> dict[int, list[str]]:
    """The arguments of every process of these users that has any: kernel threads and zombies have none."""
    found = {}
    for pid in process_identity.all_pids():
        if process_identity.owner_of(pid) in users and (argv := process_identity.command_line(pid)):
            found[pid] = argv
    return found


def _compile(patterns: Sequence[str]) -> tuple[list[re.Pattern[str]], re.Pattern[str]]:
    import re  # only a gate with a census pays for this import

    return [re.compile(pattern) for pattern in patterns], re.compile(_REQUEST)


def _match(patterns: Sequence[re.Pattern[str]], request: re.Pattern[str], argv: Sequence[str]) -> str | None:
    """The model that a command line names, "" when it matches and names none, None when it does not match.

    Of several patterns that match, the first that names a model decides.
    """
    # One line: prompts among the arguments have many, and `.*` should reach over them.
    text = " ".join(word[:_ARGUMENT_CHARS] for word in argv[:_LINE_CHARS])[:_LINE_CHARS].replace("\n", " ")
    if "fleetgate" in text and (asked := request.search(text)):
        text = text[: asked.start()]
    best = None
    for pattern in patterns:
        if match := pattern.search(text):
            best = _model(match.groupdict().get("model"), argv, match.group())
            if best:
                break
    return best


def _model(name: str | None, argv: Sequence[str], matched: str) -> str:
    """The model that a pattern caught, as `fleetgate run` would name it for that agent."""
    if not name:
        return ""
    from fleetgate.signals.agents import model_of

    try:
        return model_of(argv) or str(read_model(name))
    except BadName:
        return model_of(matched.split()) or ""


def _ancestors(pid: int, parent_of: Callable[[int], int]) -> tuple[int, ...]:
    """The pids above a process, nearest first. The tree changes while it is read, so it may even have a loop."""
    above: dict[int, None] = {}
    parent = parent_of(pid)
    while parent > 0 and parent != pid and parent not in above:
        above[parent] = None
        parent = parent_of(parent)
    return tuple(above)


def _place() -> str:
    """The view of processes from here: user (some see only their own), boot and pid namespace."""
    _, boot, pidns, _, _ = process_identity.this_process().split("|")
    return f"{os.geteuid()}|{boot}|{pidns}"


def _load(path: str) -> Census | None:
    try:
        return msgspec.json.decode(process_identity.read(path), type=Census)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _save(path: str, cached: Census) -> None:
    """Replace the cache in one step. If that fails, every process takes its own census."""
    draft = f"{path}.{os.getpid()}-{get_ident()}"
    try:
        with open(draft, "wb") as file:
            file.write(msgspec.json.encode(cached))
        os.replace(draft, path)
    except OSError:
        remove_file(draft)
