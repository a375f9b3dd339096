"""The suite of the real agents, `make agents`: it downloads them, so no other run collects it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agents import table
from tests.agents.running import Place

collect_ignore_glob = [] if os.environ.get("FLEETGATE_AGENTS") else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="write the results into docs/agents.md")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if table.ROWS:
        terminalreporter.write_sep("-", "what was read from the real agents")
        terminalreporter.write(table.as_table(table.ROWS))
    if table.COMPARED:
        terminalreporter.write_sep("-", "ten at once against a hidden limit of three")
        terminalreporter.write(table.as_comparison(table.COMPARED))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-docs"):
        table.write()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
