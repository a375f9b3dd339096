"""The newcomer's script, `make newcomer`: it installs from a clone, so no other run collects it."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("FLEETGATE_NEWCOMER") else ["test_*.py"]
