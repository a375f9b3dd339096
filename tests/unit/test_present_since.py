"""`since`, when a prompt started: what may be said, and that one wall time is one time of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import cycle

import pytest

from fleetgate.api.bodies import AcquireBody
from fleetgate.api.leases.acquire_command import read_acquire
from fleetgate.api.security.caller import OWNER
from fleetgate.core.errors import BadRequest
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import epoch_ms
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.clock import wall_ms
from fleetgate.log.memory import MemoryLog
from fleetgate.present.wall_time import parse_since_ms

MOMENT_MS = 1_769_860_800_123  # its seconds times 1000 are 1769860800122.9999, as a float
SAME = ["1769860800.123", "1769860800123", "2026-01-31T12:00:00.123Z", "2026-01-31T13:00:00.123+01:00"]


@pytest.mark.parametrize("text", SAME)
def test_no_millisecond_is_lost(text: str):
    assert parse_since_ms(text) == MOMENT_MS


def test_no_millisecond_is_lost_by_a_program():
    assert epoch_ms(MOMENT_MS / 1000) == MOMENT_MS
    assert epoch_ms(datetime.fromtimestamp(MOMENT_MS / 1000, UTC)) == MOMENT_MS


@pytest.mark.parametrize("text", ["never", "-5", "0", "1e30", "nan", "2026-13-01", "9999-99"])
def test_what_is_no_time_is_refused_with_what_is_one(text: str):
    with pytest.raises(BadRequest, match=r"epoch seconds.*10m"):
        parse_since_ms(text)


def node(jitter_ms: tuple[int, ...] = (0,)) -> ServiceGate:
    """Its log's clock and the wall's are read one after the other: a millisecond passes between them, or none."""
    late = cycle(jitter_ms)
    return ServiceGate(GateCore(MemoryLog(clock=lambda: wall_ms() + next(late))))


@pytest.mark.parametrize("given", [MOMENT_MS / 1000, MOMENT_MS, *SAME, "2026-01-31T12:00:00.123"])
def test_over_http_a_number_is_epoch_seconds_or_milliseconds_and_text_is_what_the_command_line_takes(
    given: float | str,
):
    command = read_acquire(node(), AcquireBody(models=["umans/coder"], since=given), OWNER, "c")
    assert command.since is not None
    assert command.since == MOMENT_MS


def test_equal_times_stay_equal_however_the_clocks_are_read():
    gate = node((0, 1, 0, 2, -1, 7, 0))
    body = AcquireBody(models=["umans/coder"], since=MOMENT_MS / 1000)
    assert len({read_acquire(gate, body, OWNER, "c").since for _ in range(20)}) == 1
    library = Gate(gate.core)
    leased = [library.lease("umans/coder", since=MOMENT_MS / 1000) for _ in range(20)]
    assert len({each._command.since for each in leased}) == 1
