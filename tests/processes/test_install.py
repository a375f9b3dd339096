"""`pip install` compiles the core, and does without where it cannot (docs/decisions/0018). An sdist and a wheel work in
a clean environment, and bring little."""

from __future__ import annotations

import gzip
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


MOST_PACKAGES = 5
MOST_BYTES = 12_000_000
MAKE_SDIST = "import setuptools.build_meta as backend; backend.build_sdist('../out')"


def _copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = _copy(tmp_path / "sources")
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


# A release.


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a wheel that was made from an sdist, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    sources = _copy(folder / "sources")
    env = {**os.environ, "FLEETGATE_VERSION": "1.2.3"}
    subprocess.run([sys.executable, "-c", MAKE_SDIST], cwd=sources, env=env, capture_output=True, check=True)
    (sdist,) = folder.glob("out/*.tar.gz")
    env = {name: value for name, value in os.environ.items() if name != "FLEETGATE_VERSION"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    make = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "out", str(sdist)]
    subprocess.run(make, cwd=folder, env={**env, "FLEETGATE_COMPILE": "0"}, capture_output=True, check=True)
    (wheel,) = folder.glob("out/*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python, pins = folder / "env" / "bin" / "python", ROOT / "constraints.txt"
    install = [*pip, "--python", str(python), "install", "--constraint", str(pins), str(wheel)]
    subprocess.run(install, env=env, capture_output=True, check=True)
    return folder / "env"


def _fleetgate(clean: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(clean.parent)}
    command = [str(clean / "bin" / "fleetgate"), *argv]
    return subprocess.run(command, env=env, cwd=clean, capture_output=True, text=True, timeout=60, check=False)


def test_a_wheel_from_an_sdist_has_its_version_and_runs_agents(clean: Path):
    assert _fleetgate(clean, "--version").stdout == "fleetgate, version 1.2.3\n"
    done = _fleetgate(clean, "run", "--", "sh", "-c", "echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n"), done.stderr
    assert _fleetgate(clean, "status").returncode == 0


def test_a_wheel_has_every_file_of_the_dashboard_compressed(clean: Path):
    (installed,) = clean.glob("lib/python*/site-packages/fleetgate/dashboard")
    sources = ROOT / "src" / "fleetgate" / "dashboard"
    wanted = {str(path.relative_to(sources)): path.read_bytes() for path in sources.rglob("*") if path.is_file()}
    found = {str(path.relative_to(installed)): path.read_bytes() for path in installed.rglob("*") if path.is_file()}
    assert {name.removesuffix(".gz"): gzip.decompress(data) for name, data in found.items()} == wanted
    assert all(name.endswith(".gz") for name in found)


def test_a_base_installation_is_small(clean: Path):
    (packages,) = clean.glob("lib/python*/site-packages")
    brought = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert len(brought) <= MOST_PACKAGES, brought
    files = [path for path in packages.rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix == ".pyc"]) > 100, "pip compiles what it installs"
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
