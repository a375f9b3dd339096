"""`pip install` compiles the core, and does without where it cannot (docs/decisions/0018)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Three modules show what all of them would, and take a fifth of the time.
FEW = """COMPILED = (
    "core/deadlines.py",
    "simulate/agenda.py",
    "simulate/random_durations.py",
)
"""
# A C compiler that makes an empty object of the large file, and fails at the last of the small ones.
FAILS_IN_THE_MIDDLE = """#!/bin/sh
case "$*" in
*" build/__native_fleetgate.c "*)
    while [ "$1" != -o ]; do shift; done
    exec cc -fPIC -x c -c /dev/null -o "$2" ;;
*/simulate/random_durations.c*) echo "out of memory" >&2; exit 1 ;;
esac
exec cc "$@"
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    whole = (folder / "setup.py").read_text()
    few, replaced = re.subn(r"^COMPILED = \(\n.*?^\)\n", FEW, whole, flags=re.DOTALL | re.MULTILINE)
    assert replaced == 1
    (folder / "setup.py").write_text(few)
    return folder


def _wheel(sources: Path, **said: str) -> subprocess.CompletedProcess[str]:
    pip = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", "out", str(sources)]
    return subprocess.run(
        pip, cwd=sources.parent, env={**os.environ, **said}, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_compiler_that_fails_in_the_middle_leaves_a_package_that_works(sources: Path):
    compiler = sources.parent / "cc"
    compiler.write_text(FAILS_IN_THE_MIDDLE)
    compiler.chmod(0o755)
    made = _wheel(sources, CC=str(compiler), FLEETGATE_COMPILE="")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "fleetgate: the core is not compiled, and is slower" in made.stdout + made.stderr
    assert "out of memory" in made.stdout + made.stderr
    (wheel,) = sources.parent.glob("out/*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if name.endswith(".so")]
        packed.extractall(sources.parent / "installed")
    run = [sys.executable, "-m", "fleetgate", "simulate", "A1", "--policy", "adapt"]
    env = {**os.environ, "PYTHONPATH": str(sources.parent / "installed")}
    played = subprocess.run(run, cwd=sources.parent, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "adapt" in played.stdout


def test_with_FLEETGATE_COMPILE_1_a_compiler_that_fails_fails_the_installation(sources: Path):
    made = _wheel(sources, CC="false", FLEETGATE_COMPILE="1")
    assert made.returncode != 0
    assert "the core is not compiled" not in made.stdout + made.stderr
    assert not list(sources.parent.glob("out/*.whl"))
