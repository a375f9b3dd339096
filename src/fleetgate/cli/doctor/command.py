"""`fleetgate doctor`: checks of everything that the gate depends on, with a fix for each problem.

It first checks folder, disk, lock and database file without opening the gate, so that it survives the problems that it
is looking for. It creates no store where there is none, and repairs nothing except wake sockets that killed processes
left behind. A check that fails is reported as a finding, too.
"""

from __future__ import annotations

import platform
import sqlite3
import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.doctor.check_old_name import old_name
from fleetgate.cli.doctor.check_shims import shims
from fleetgate.cli.doctor.check_store import Visit
from fleetgate.cli.doctor.finding import Finding, Findings
from fleetgate.cli.output.table import Cell, Screen
from fleetgate.cli.read_only_gate import say_json
from fleetgate.config.environment import Environment
from fleetgate.present.log_time import Json
from fleetgate.present.text import count

_STYLES = {"ok": "green", "warn": "yellow", "bad": "red"}
_OF_CONFIG = ("environment", "config", "store", "caps")  # a bad finding here means exit 78, any other 69


@click.command(short_help="Diagnose problems and suggest fixes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """Diagnose problems and suggest fixes: config, store, disk, clock, caps, providers and more.

    \b
    fleetgate doctor
    fleetgate doctor --json | jq '.checks[] | select(.level != "ok")'

    Exit codes: 0 when all is well or there are only warnings; 69 for a bad store; 78 for a bad config.
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
    """All findings. A check runs only if those that it relies on succeeded."""
    visit = Visit()
    findings = [*visit.look(versions, environment, old_name, shims, visit.config, visit.store)]
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
    yield Finding("ok", f"fleetgate {own} (core: {core}), SQLite {sqlite3.sqlite_version}, {python}")


def environment() -> Findings:
    found = Environment.read()
    if found.bypass:
        text = "FLEETGATE_BYPASS is set: agents started from here run without a slot, and no cap applies to them"
        yield Finding("warn", text, "unset FLEETGATE_BYPASS")
        return
    caps = [f"{selector}={cap}" for selector, cap in (*found.agents, *found.requests)]
    if found.opus_cap is not None:
        caps.append(f"opus={found.opus_cap}")
    yield Finding("ok", f"sets caps for agents started from here: {', '.join(caps)}" if caps else "changes no cap")
