"""The page comes with the package."""

from __future__ import annotations

import re
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


def test_D1_every_import_names_something_that_its_module_exports_and_uses_it() -> None:
    folder = ROOT / "src/fleetgate/dashboard/js"
    wrong = []
    for path in folder.rglob("*.js"):
        source = path.read_text()
        for names, target in re.findall(r'^import \{([^}]*)\} from "([^"]+)";', source, re.MULTILINE):
            file = (path.parent / target).resolve()
            exported = file.read_text() if file.is_file() else ""
            for part in names.split(","):
                name, _, here = part.strip().partition(" as ")
                if not re.search(rf"^export (async )?(function|const|class|let) {name}\b", exported, re.MULTILINE):
                    wrong.append(f"{path.name}: {target} exports no {name}")
                if len(re.findall(rf"\b{here or name}\b", source)) < 2:
                    wrong.append(f"{path.name}: {here or name} is imported and not used")
    assert wrong == []
