"""The page comes with the package."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_D1_every_file_of_the_page_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fleetgate"]
    package = ROOT / "src/fleetgate"
    files = [str(path.relative_to(package)) for path in (package / "dashboard").rglob("*") if path.is_file()]
    assert "dashboard/index.html" in files
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_D1_text_is_only_ever_set_as_text() -> None:
    for path in (ROOT / "src/fleetgate/dashboard").rglob("*.js"):
        words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")
        assert [word for word in words if word in path.read_text()] == [], path.name
