"""Tests of the HTTP front. An `async def` test runs in uvloop, as the service does."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import uvloop

LONGEST_S = 120


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(**arguments), LONGEST_S))
    return True
