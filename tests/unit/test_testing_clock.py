"""The fake clock moves only when told, in whole milliseconds, and never backwards."""

from __future__ import annotations

from typing import Any

import pytest

import fleetgate.testing
from fleetgate.testing import FakeClock


def test_it_stands_still_until_it_is_advanced():
    clock = FakeClock(start_ms=1000)
    assert clock.now() == clock() == 1000
    assert clock.advance(250) == 1250
    assert clock.now() == clock() == 1250
    assert clock.advance(0) == 1250
    assert "1250 ms" in repr(clock)


@pytest.mark.parametrize("ms", [-1, 0.5, True, "1"])
def test_what_is_no_way_forward_is_refused_and_changes_nothing(ms: Any):
    clock = FakeClock(5)
    with pytest.raises((TypeError, ValueError)):
        clock.advance(ms)
    with pytest.raises((TypeError, ValueError)):
        FakeClock(ms)
    assert clock.now() == 5


def test_the_package_offers_its_names_and_no_others():
    assert {"FakeClock", "FakeProvider", "Fault"} <= set(dir(fleetgate.testing))
    for name in fleetgate.testing.__all__:
        assert getattr(fleetgate.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        fleetgate.testing.Nothing  # noqa: B018
