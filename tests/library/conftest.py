"""Tests of the library as a program uses it. An `async def` test runs in asyncio's debug mode, and fails when the
loop complains of anything or a task is left behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

LONGEST_S = 100


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = inspect.signature(test).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(_clean(test(**arguments)), debug=True)
    return True


async def _clean(test: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = 60  # other tests keep the machine busy
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with asyncio.timeout(LONGEST_S):
        await test
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left behind: {left}"
    assert not complaints, f"the loop complained: {complaints}"


@pytest.fixture(autouse=True)
def own_store_and_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test here touches the store and the config of the user who runs it."""
    for name in ("FLEETGATE_CONFIG", "FLEETGATE_STORE", "FLEETGATE_AGENTS", "FLEETGATE_REQUESTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEETGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite://{tmp_path}/store"
