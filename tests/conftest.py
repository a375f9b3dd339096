"""Every run looks at the same examples, unless HYPOTHESIS_PROFILE says otherwise: what fails today failed yesterday."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import dispositions

if TYPE_CHECKING:
    from tests.postgres_server import Server

pytest_plugins = ["tests.timed"]

dispositions.reset()

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile("long" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "same")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this test run's own; without one, its tests are skipped, and the reason said."""
    from tests.postgres_server import NoServer, Server

    try:
        server = Server()
    except NoServer as error:
        pytest.skip(str(error))
    yield server
    server.remove()
