"""The log's time on one machine: the boot clock plus an offset that is chosen once per boot.

The boot clock counts sleep and cannot be set; the offset makes it read like wall time as it was when the
boot was first seen. Every process of a boot uses the same offset, which the store keeps. So setting the wall
clock neither freezes a cooldown nor expires a lease. All times are integer milliseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Clock = Callable[[], int]

# The clock that goes on counting while the machine sleeps.
if sys.platform == "darwin":
    _BOOT_CLOCK = time.CLOCK_MONOTONIC_RAW
elif sys.platform == "linux":
    _BOOT_CLOCK = time.CLOCK_BOOTTIME
else:
    _BOOT_CLOCK = time.CLOCK_MONOTONIC


def boot_ms() -> int:
    """Time since the machine was started, sleep included."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def wall_ms() -> int:
    """Wall time, which can be set at any moment."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """A name for this boot of this machine; "" where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return _darwin_boot_id() if sys.platform == "darwin" else ""


def steady(offset: int) -> int:
    """What to add to times of the log to make wall time of them, given what two looks at two clocks say.

    Rounded to a second: so a wall time is the same time of the log for every process at every moment.
    """
    return (offset + 500) // 1000 * 1000


def choose_offset(last_at: int, wall: int, boot: int) -> int:
    """The offset for a new boot: wall time, but never before what the log has already seen."""
    return max(wall, last_at) - boot


def anchored(offset: int) -> Clock:
    """The boot clock with its offset."""
    gettime, clock = time.clock_gettime_ns, _BOOT_CLOCK

    def now() -> int:
        return gettime(clock) // 1_000_000 + offset

    return now


def _darwin_boot_id() -> str:
    import ctypes

    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(64)
    text = ctypes.create_string_buffer(size.value)
    failed = libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode("ascii", "replace")
