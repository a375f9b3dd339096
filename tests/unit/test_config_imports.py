"""`fleetgate run` imports config on its way: what it brings along is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ON_THE_WAY = """
import sys
import msgspec, fleetgate.core.pools.effective_caps, os, typing
before = set(sys.modules)
from fleetgate.config import environment, file, paths
paths.config_path(), paths.store_url()
environment.Environment.read({"FLEETGATE_AGENTS": "host=3", "FLEETGATE_MODELS": "a/b"})
loaded = file.load(sys.argv[1])
print(" ".join(sorted(name for name in set(sys.modules) - before if not name.startswith("fleetgate"))))
print(" ".join(sorted(name for name in set(sys.modules) - before if name.startswith("fleetgate"))))
"""


def brought_along(path: Path) -> tuple[list[str], list[str]]:
    ran = subprocess.run([sys.executable, "-c", ON_THE_WAY, str(path)], capture_output=True, text=True, check=True)
    foreign, own = ran.stdout.split("\n")[:2]
    return foreign.split(), own.split()


def test_r6_without_a_config_file_nothing_but_config_itself_is_imported(tmp_path: Path) -> None:
    foreign, own = brought_along(tmp_path / "none.toml")
    assert set(foreign) <= {"bisect", "_bisect"}
    assert "fleetgate.config.schema.keys" not in own


def test_r6_a_valid_config_file_brings_only_what_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[agents]\nhost = 3\n", encoding="utf-8")
    foreign, own = brought_along(path)
    assert "tomllib" in foreign
    assert not {"hashlib", "_hashlib", "difflib", "pathlib", "dataclasses", "json"} & set(foreign)
    assert not {
        "fleetgate.config.key_lines",
        "fleetgate.config.schema.unknown_key",
    } & set(own)
