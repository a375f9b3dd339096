"""What the tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.fleet import Fleet


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """A gate of its own, at first without any config; see tests/processes/fleet.py."""
    with Fleet() as fleet:
        yield fleet
