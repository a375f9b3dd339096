"""Claims about time: what takes too long is tried again, since the machine may have been the slow one.

`within(took_s, 0.9, "…")` is an assertion about how long, or how much, something took. A test that fails by one is run
again, fixtures and all, up to three times in all, and what was late is told at the end of the run. No other failure is
ever tried again: a cap that was exceeded once was exceeded.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

TRIES = 3
_late = pytest.StashKey[bool]()
_told: list[str] = []


class TooSlow(AssertionError):
    """Right, and later than it may be."""


def within(took: float, most: float, what: str) -> None:
    """It took less than that."""
    if took >= most:
        raise TooSlow(f"{took:.3f}, and not less than {most}: {what}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    item.stash[_late] = item.stash.get(_late, False) or (
        call.excinfo is not None and call.excinfo.errisinstance(TooSlow)
    )
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(TRIES)):
        item.stash[_late] = False
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        if not (item.stash[_late] and left and all(report.when == "call" for report in failed)):
            break
        _told.append(f"{item.nodeid}: {failed[0].longreprtext.splitlines()[-1]}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _told:
        terminalreporter.write_sep("-", "too slow, and tried again")
        terminalreporter.write_line("\n".join(_told))
