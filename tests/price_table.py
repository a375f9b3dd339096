"""The table of published prices in a state folder, as a service finds it that has run before.

Without it each service starts a process that makes the table, which costs as much as the service itself.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from fleetgate.gate.prices.lookup import FILE, package_source


@cache
def _table() -> bytes:
    command = [sys.executable, "-m", "fleetgate.gate.prices.extract", package_source() or ""]
    return subprocess.run(command, capture_output=True, check=True).stdout


def put_prices(folder: Path) -> None:
    """Put the table into a state folder, which is made if need be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / FILE).write_bytes(_table())
    (folder / FILE).chmod(0o644)
