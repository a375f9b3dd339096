"""`fleetgate doctor`: looks at everything the gate stands on, and says what to do where something is wrong.

It looks from the outside first (folder, disk, lock, the database file read-only), so that it survives what it looks
for; the gate is opened only when all that is sound. It makes no store where there is none, and repairs nothing but
wake sockets that killed processes left behind. A check that fails itself is a finding like any other.
"""

from __future__ import annotations

import platform
import sqlite3
import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.doctor.check_store import Visit
from fleetgate.cli.doctor.finding import Finding, Findings
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import say_json
from fleetgate.config.environment import Environment
from fleetgate.present.log_time import Json
from fleetgate.present.text import count

_STYLES = {"ok": "green", "warn": "yellow", "bad": "red"}
_OF_CONFIG = ("environment", "config", "store", "caps")  # what is bad here is exit 78, all else 69


@click.command(short_help="Check everything the gate stands on; say what to do.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """Check everything that the gate stands on, and say what to do where something is wrong.

    \b
    fleetgate doctor
    fleetgate doctor --json | jq '.checks[] | select(.level != "ok")'

    Exit: 0 when all is well or there are only warnings, 69 when the store is bad, 78 when the config is.
    """
    findings = examine()
    if as_json:
        levels = {finding.level for finding in findings}
        checks: list[Json] = [
            {"check": each.check, "level": each.level, "text": each.text, "do": each.do} for each in findings
        ]
        say_json({"level": next(level for level in ("bad", "warn", "ok") if level in levels), "checks": checks})
    else:
        _draw(findings)
    bad = {finding.check for finding in findings if finding.level == "bad"}
    if bad.difference(_OF_CONFIG):
        return exit_codes.UNAVAILABLE
    return exit_codes.CONFIG if bad else exit_codes.OK


def examine() -> list[Finding]:
    """Every check, in the order in which one relies on the other."""
    visit = Visit()
    findings = [*visit.look(versions, environment, visit.config, visit.store)]
    if visit.home:
        findings += visit.look(visit.folder, visit.disk)
    if visit.reachable and not visit.remote:
        findings += visit.look(visit.lock, visit.database)
    if visit.sound:

        def books() -> Findings:
            from fleetgate.cli.doctor import check_gate

            yield from check_gate.books(visit)

        findings += visit.look(books)
    return findings


def _draw(findings: list[Finding]) -> None:
    screen = Screen()
    indent = " " * 19
    for finding in findings:
        first = [Cell(f"{finding.level:<4}", _STYLES[finding.level]), Cell(f"  {finding.check:<11}  ")]
        screen.prose(finding.text, indent, first)
        if finding.do:
            screen.line(indent, Cell(f"do: {finding.do}", "bold"))
    bad, warned = (sum(each.level == level for each in findings) for level in ("bad", "warn"))
    screen.line()
    if bad:
        screen.line(Cell(f"{bad} bad" + (f", {count(warned, 'warning')}" if warned else ""), "red"))
    else:
        screen.line(Cell(count(warned, "warning") if warned else "all is well", "yellow" if warned else "green"))
    screen.show()


def versions() -> Findings:
    from importlib.metadata import PackageNotFoundError, version

    from fleetgate.core.compiled import COMPILED

    try:
        own = version("fleetgate")
    except PackageNotFoundError:
        own = "(not installed)"
    python = f"Python {platform.python_version()} ({sys.executable})"
    core = "compiled" if COMPILED else "plain Python"
    yield Finding("versions", "ok", f"fleetgate {own} (core: {core}), SQLite {sqlite3.sqlite_version}, {python}")


def environment() -> Findings:
    found = Environment.read()
    if found.bypass:
        text = "FLEETGATE_BYPASS is set: what is run from here asks nobody, and no cap holds for it"
        yield Finding("environment", "warn", text, "unset FLEETGATE_BYPASS")
        return
    caps = [f"{selector}={cap}" for selector, cap in (*found.agents, *found.requests)]
    if found.opus_cap is not None:
        caps.append(f"opus={found.opus_cap}")
    text = f"has caps for what is run from here: {', '.join(caps)}" if caps else "changes no cap"
    yield Finding("environment", "ok", text)
