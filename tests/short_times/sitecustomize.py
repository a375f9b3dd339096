"""Shorter times for processes that a test starts: this folder is in their PYTHONPATH (tests/processes/fleet.py).

Three constants are replaced in the source of the module that defines them, before anything is derived from them:
FLEETGATE_TEST_BEAT_S is the time between two beats of a host, FLEETGATE_TEST_AWAY_S how long a store may be away,
FLEETGATE_TEST_KILL_S the time from TERM to KILL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType

CONSTANTS = {
    "fleetgate.log.host_beats": (b"\nBEAT_S = 10.0\n", os.environ.get("FLEETGATE_TEST_BEAT_S")),
    "fleetgate.gate.liveness.process_group": (
        b"\nKILL_AFTER_S = 10.0  # how long an agent may take to end after TERM\n",
        os.environ.get("FLEETGATE_TEST_KILL_S"),
    ),
    "fleetgate.cli.store_outage": (b"\n_RESTART_S = 10.0\n", os.environ.get("FLEETGATE_TEST_AWAY_S")),
}


class ShortTimeLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        line, value = CONSTANTS[fullname]
        source = self.get_data(self.path)
        assert line in source, f"{fullname} has no line {line!r}"
        shorter = line.partition(b"=")[0] + f"= {value}\n".encode()
        code: CodeType = self.source_to_code(source.replace(line, shorter), self.path)
        return code


class ShortTimeFinder:
    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if fullname not in CONSTANTS or not CONSTANTS[fullname][1]:
            return None
        found = PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        return ModuleSpec(fullname, ShortTimeLoader(fullname, found.origin), origin=found.origin)


sys.meta_path.insert(0, ShortTimeFinder())
