"""`fleetgate init`: finds the agents of this machine, asks three questions, and sets Fleetgate up for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from fleetgate.cli.click_helpers import tell
from fleetgate.cli.init.journal import Journal
from fleetgate.cli.init.plan import Choice, SetupPlan, left, planned
from fleetgate.cli.init.status_line import COMMAND
from fleetgate.cli.init.steps import AddedBlock, AnyStep, NewFile, lock_home
from fleetgate.cli.init.survey import Survey, below_home, survey
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.cli.shims.shim_folder import ShimFolder
from fleetgate.cli.shims.startup_files import CannotChange
from fleetgate.config.paths import config_path
from fleetgate.config.units import format_size
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.present.text import count

EXTRAS = ("completion", "service", COMMAND)
_DEFAULT_EXTRAS = ("completion",)
_NONE = "none"
_MOST = 10_000


@click.command(short_help="Set Fleetgate up for the agents of this machine.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: use the defaults.")
@click.option("--host", metavar="N|auto", help="How many agents may run here at the same time.")
@click.option("--shims/--no-shims", default=None, help="Count agents that are started by name (default: yes).")
@click.option("--with", "extras", metavar="WHAT,…", help="completion, service, statusline, or none.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--undo", is_flag=True, help="Take back everything that init has done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; asks nothing.")
def command(
    yes: bool, host: str | None, shims: bool | None, extras: str | None, dry_run: bool, undo: bool, as_json: bool
) -> None:
    """Set Fleetgate up for the agents of this machine: a config file, shims, completion and more.

    It looks for agents, logins, memory and cores, and asks three questions. Secrets are not read. An existing config
    file is never changed. Running it again changes nothing that is done already.

    \b
    fleetgate init
    fleetgate init --yes --with completion,service
    fleetgate init --dry-run
    fleetgate init --undo

    Exit codes: 0; 64 without a terminal to ask on, or when something cannot be changed.
    """
    lock = lock_home(os.environ.get("HOME", ""))
    click.get_current_context().call_on_close(lambda: os.close(lock))
    if undo:
        _undo(dry_run=dry_run)
        return
    found = survey(os.environ)
    asks = not (yes or dry_run or as_json)
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadRequest("init asks three questions, and there is no terminal: use --yes, or --dry-run to see first")
    if not as_json:
        _show_survey(found)
    plan = planned(found, _chosen(found, host, shims, extras, asks=asks), os.environ)
    todo = left(plan.steps)
    failures = [] if dry_run else _do(todo)
    if as_json:
        _say_json(found, plan, todo, failures, dry_run=dry_run)
    else:
        _show_result(plan, todo, failures, dry_run=dry_run)
    if failures:
        raise BadRequest(f"{count(len(failures), 'change')} could not be made; the rest is done (see above)")


# The questions.


def _chosen(found: Survey, host: str | None, shims: bool | None, extras: str | None, *, asks: bool) -> Choice:
    """What the options say, and what is asked for the rest."""
    room, offered = str(found.room()), _offered(found)
    if asks:
        tell("")
    if host is None and not os.path.lexists(config_path()):
        host = _ask(f"1. How many agents may run here at the same time? A number, or auto [{room}]", room, asks, _host)
    names = ", ".join(agent.name for agent in found.agents)
    if shims is None and found.agents:
        question = f"2. Count these whenever you start them by name: {names}? [Y/n]"
        shims = _ask(question, "y", asks, _yes_or_no) == "y"
    if extras is None:
        question = f"3. Set up more? Any of {', '.join(offered)}; or none [{' '.join(_DEFAULT_EXTRAS)}]"
        extras = _ask(question, ",".join(_DEFAULT_EXTRAS), asks, lambda text: ",".join(_extras(text, offered)))
    return Choice(_host(host or room), bool(shims), _extras(extras, EXTRAS))


def _offered(found: Survey) -> tuple[str, ...]:
    """The extras that this machine has a use for."""
    has_claude = any(agent.name == "claude" for agent in found.agents)
    return EXTRAS if has_claude else tuple(extra for extra in EXTRAS if extra != COMMAND)


def _ask(question: str, default: str, asks: bool, read: Callable[[str], str]) -> str:
    """The answer, checked; an empty one is the default."""
    while asks:
        answer = click.prompt(question, default="", show_default=False, prompt_suffix=" ").strip()
        try:
            return read(answer or default)
        except BadRequest as error:
            note(str(error))
    return default


def _host(text: str) -> str:
    if text != "auto" and not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST):
        raise BadRequest(f"--host {shown(text)}: valid is a whole number from 1 to {_MOST}, or auto")
    return text


def _yes_or_no(text: str) -> str:
    answer = text.lower()[:1]
    if answer not in ("y", "n"):
        raise BadRequest(f"{shown(text)}: valid is y or n")
    return answer


def _extras(text: str, offered: tuple[str, ...]) -> tuple[str, ...]:
    words = text.replace(",", " ").split()
    for word in words:
        if word not in (*offered, _NONE):
            raise BadRequest(f"{shown(word)}: valid is any of {', '.join(offered)}, or none")
    return tuple(word for word in dict.fromkeys(words) if word != _NONE)


# The steps.


def _do(todo: list[AnyStep]) -> list[str]:
    """Do the steps; what could not be done, as sentences."""
    failures = []
    journal = Journal()
    for step in todo:
        try:
            journal.do(step)
        except (CannotChange, BadRequest) as error:
            failures.append(str(error))
        except OSError as error:
            failures.append(f"{step.path}: {error.strerror}")
    return failures


def _undo(*, dry_run: bool) -> None:
    journal = Journal()
    if not journal.steps:
        tell("nothing to undo: `fleetgate init` has changed nothing here")
        return
    if dry_run:
        for step in reversed(journal.steps):
            tell(f"would undo  {below_home(step.path, os.environ)}: {step.change}")
        return
    for step, trouble in journal.undo():
        if trouble:
            note(trouble)
        else:
            tell(f"undone  {below_home(step.path, os.environ)}: {step.change}")
    if journal.steps:
        raise BadRequest(f"{count(len(journal.steps), 'change')} could not be taken back; see above, and try again")
    tell("in open shells, type: hash -r")


# Output.


def _show_survey(found: Survey) -> None:
    screen = Screen()
    screen.line(Cell("On this machine", "bold"))
    rows = [("agents", agent.name, agent.path) for agent in found.agents] or [("agents", "none found", "")]
    rows += [("logins", login.provider or "several", login.where) for login in found.logins]
    rows += [] if found.logins or found.accounts else [("logins", "none found", "")]
    rows += [("logins", account.name, account.credential_file) for account in found.accounts]
    memory = format_size(found.memory_bytes // 2**20 * 2**20) if found.memory_bytes else "unknown"
    if found.memory_bytes and found.memory_bytes >= 2**30:
        memory = f"{found.memory_bytes / 2**30:.1f} GiB"
    rows.append(("machine", f"{memory} of memory, {count(found.cores, 'core')}", ""))
    before = ""
    for kind, name, where in rows:
        screen.line(f"  {kind if kind != before else '':<9}{name:<15} {where}".rstrip())
        before = kind
    screen.show()


def _show_result(plan: SetupPlan, todo: list[AnyStep], failures: list[str], *, dry_run: bool) -> None:
    screen = Screen()
    screen.line()
    screen.line(Cell("Would change" if dry_run else "Changed", "bold"))
    for step in todo:
        screen.line(f"  {below_home(step.path, os.environ)}: {step.change}")
        if dry_run:
            for line in _preview(step):
                screen.line(Cell(f"    + {line}", "green"))
    if not todo:
        screen.line("  nothing: everything is there already")
    if plan.suggestions:
        screen.line()
        screen.line(
            Cell(
                f"Your config file {below_home(config_path(), os.environ)} is not changed. It could also have:", "bold"
            )
        )
        for line in plan.suggestions.splitlines():
            screen.line(f"    {line}")
    screen.show()
    for text in (*plan.notes, *failures):
        note(text)
    if not dry_run:
        _show_problems()
        _show_next()


def _preview(step: AnyStep) -> list[str]:
    if isinstance(step, NewFile) and step.path == config_path():
        return step.text.splitlines()
    return step.block.text.splitlines() if isinstance(step, AddedBlock) else []


def _show_problems() -> None:
    """What `fleetgate doctor` would warn about, except that this shell does not use new shims yet."""
    from fleetgate.cli.doctor.command import examine

    for finding in examine():
        if finding.level != "ok" and finding.check != "shims":
            note(f"{finding.check}: {finding.text}{f' `{finding.do}`' if finding.do else ''}")


def _show_next() -> None:
    shims = ShimFolder(os.environ)
    tell("")
    tell("Next")
    if names := shims.names():
        if os.environ.get("PATH", "").split(":")[0] != shims.path:
            tell(f'  open a new terminal, or type: export PATH="{shims.path}:$PATH"')
        tell(f"  {names[0]:<24} starts as before, and counts")
    else:
        tell("  fleetgate run -- AGENT   run an agent under the gate")
    tell("  fleetgate ps             what is running")
    tell("  fleetgate init --undo    take all of this back")


def _say_json(found: Survey, plan: SetupPlan, todo: list[AnyStep], failures: list[str], *, dry_run: bool) -> None:
    say_json(
        {
            "found": found,
            "dry_run": dry_run,
            "changes": [{"path": step.path, "change": step.change} for step in todo],
            "suggestions": plan.suggestions or None,
            "notes": plan.notes,
            "failures": failures,
        }
    )
