"""The dashboard of an installation, whose files are compressed (setup.py)."""

from __future__ import annotations

import gzip
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.api.routes.dashboard_files import DashboardFiles
from tests.api.served import Served

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fleetgate"
PATHS = {
    "/": "index.html",
    "/assets/js/app.js": "js/app.js",
    "/assets/css/base.css": "css/base.css",
    "/favicon.ico": "favicon.svg",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service of a package as setup.py puts it into a wheel."""
    home = tmp_path_factory.mktemp("installed")
    package = home / "packages" / "fleetgate"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    runpy.run_path(str(ROOT / "setup.py"))["compress"](package / "dashboard")
    assert not list(package.glob("dashboard/**/*.js"))
    with Served(home, PYTHONPATH=str(package.parent)) as served:
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_accepts_gzip_gets_the_stored_bytes(installed: Served, path: str):
    answer = installed.get(path, Accept_Encoding="br, gzip;q=0.8")
    assert (answer.status, answer.headers["content-encoding"]) == (200, "gzip")
    assert answer.headers["vary"] == "accept-encoding"
    data = (PACKAGE / "dashboard" / PATHS[path]).read_bytes()
    assert gzip.decompress(answer.body) == data
    assert len(answer.body) < len(data)
    again = installed.get(path, Accept_Encoding="gzip", If_None_Match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("accepted", ["identity", "", "br, *;q=0.1", "gzip;q=0", "gzip; q=0.000"])
def test_a_client_without_gzip_gets_the_file_itself(installed: Served, path: str, accepted: str):
    answer = installed.get(path, Accept_Encoding=accepted)
    assert answer.status == 200
    assert "content-encoding" not in answer.headers
    assert answer.body == (PACKAGE / "dashboard" / PATHS[path]).read_bytes()
    packed = installed.get(path, Accept_Encoding="gzip")
    assert packed.headers["etag"] != answer.headers["etag"]
    assert packed.headers["content-type"] == answer.headers["content-type"]


def test_a_compressed_file_is_not_served_under_its_own_name(installed: Served):
    assert installed.get("/assets/js/app.js.gz", Accept_Encoding="gzip").status == 404


def test_a_compressed_file_that_is_a_link_to_elsewhere_is_not_served(tmp_path: Path):
    (tmp_path / "dashboard").mkdir()
    (tmp_path / "secret.js.gz").write_bytes(gzip.compress(b"secret"))
    (tmp_path / "dashboard" / "app.js.gz").symlink_to(tmp_path / "secret.js.gz")
    assert DashboardFiles(str(tmp_path / "dashboard")).find("app.js", accepts_gzip=True) is None
