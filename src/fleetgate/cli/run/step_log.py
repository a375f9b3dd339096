"""The steps of a run on the logger `fleetgate`: requested, queued, granted, started, ended (`fleetgate -v run`).

The rule: without `-v` nothing is logged and `logging`, which is slow to load, is not imported.
"""

from __future__ import annotations

import sys


def log_step(ident: str, text: str) -> None:
    """Log one step of the request or lease with this ID, if `-v` has set up the logger (cli/log_output.py)."""
    if "logging" in sys.modules:
        from fleetgate.gate.outage_log import logger

        logger().info("%s: %s", ident, text)
