"""The TypeScript client: it matches the API, type-checks, and works in Node.js against a real service."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.installing import CannotInstall, installed, installed_library, version_of
from tests.api.served import Served

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "typescript"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the client with what it needs from npm."""
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").mkdir()
    try:
        (folder / "node_modules" / "openapi-fetch").symlink_to(installed_library("openapi-fetch"))
        installed("tsc")
    except CannotInstall as error:
        pytest.skip(str(error))
    return folder


def test_the_client_matches_the_api():
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, and the generator comes by it")
    check = [sys.executable, str(ROOT / "tools" / "gen_typescript_client.py"), "--check"]
    ran = subprocess.run(check, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_client_is_tested_with_the_versions_that_it_names():
    package = (CLIENT / "package.json").read_text()
    assert f'"openapi-fetch": "{version_of("openapi-fetch")}"' in package
    assert f'"typescript": "{version_of("tsc")}"' in package


def test_the_client_type_checks_and_works_in_node(project: Path, tmp_path: Path):
    built = subprocess.run([installed("tsc"), "-p", project], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    wrong = project / "src" / "wrong.ts"
    wrong.write_text('import { createFleetgate } from "./index.js";\nvoid createFleetgate().GET("/v1/nothing");\n')
    assert subprocess.run([installed("tsc"), "-p", project, "--noEmit"], capture_output=True, check=False).returncode
    with Served(tmp_path) as served:
        environ = {
            **served.environ,
            "FLEETGATE_URL": f"http://127.0.0.1:{served.port}",
            "FLEETGATE_TOKEN": served.token,
        }
        node = shutil.which("node")
        assert node is not None, "npm has installed packages, so Node.js is here"
        ran = subprocess.run(
            [node, "--test", str(project / "test" / "client.test.mjs")],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
