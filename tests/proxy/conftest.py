"""A fake provider and a real `fleetgate serve` in front of it. `async def` tests run too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import Proxied

LONGEST_S = 100


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = inspect.signature(test).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the service has it
        runner.run(asyncio.wait_for(test(**arguments), LONGEST_S))
    return True


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """One for tests that leave it as they found it. No caps: what is seen is the proxy's own doing."""
    with FakeProvider() as provider, Proxied(tmp_path_factory.mktemp("proxied"), provider) as proxied:
        yield proxied
        proxied.check_nothing_is_held()


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[..., Proxied]]:
    """Makes one: `proxied(provider, requests="fake = 4", …)`. At the end nothing must be held there."""
    with ExitStack() as stack:

        def make(provider: FakeProvider | str | None = None, **options: str) -> Proxied:
            if provider is None:
                provider = stack.enter_context(FakeProvider())
            made = stack.enter_context(Proxied(tmp_path, provider, **options))
            stack.callback(made.check_nothing_is_held)
            return made

        yield make
