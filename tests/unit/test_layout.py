"""The layout of the sources: names are nouns, each class name is defined once, and what is private stays so."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fleetgate"

# Words that end in "ing" and are things all the same.
NOUNS = {"string", "thing", "setting", "settings", "ring", "spring", "finding", "listing", "encoding"}
NOUNS |= {"testing", "serving", "tuning", "parking", "reading"}

MOST_LINES = 450  # of a file
MOST_FILES = 15  # of a folder

# What is left of the old layout, at most how many for each folder (or file). What is not listed has none.
PRIVATE_ACCESSES = {"gate": 1}  # psutil's, on macOS
LONG_FILES = {
    "core/state/state.py": 480,
    "runner/supervisor.py": 500,
}
FULL_FOLDERS = {"cli/commands": 60, "proxy": 19}  # one file for each command
GERUNDS = {"Draining", "Recovering", "Waiting"}  # two are stored events
CLASSES_DEFINED_TWICE = 5  # three of them are the library twice: with asyncio, and without
WITHOUT_DOCSTRING = 0


@cache
def _modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _is_gerund(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    last = words[-1].lower() if words else ""
    return last.endswith("ing") and last not in NOUNS


def _classes(module: ast.Module) -> list[str]:
    return [node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)]


def test_no_module_and_no_class_is_named_by_a_gerund():
    names = [path.stem for path in _modules()] + [path.parent.name for path in _modules()]
    names += [name for module in _modules().values() for name in _classes(module)]
    assert {name for name in names if _is_gerund(name)} <= GERUNDS


def test_a_gerund_is_told_from_a_noun():
    assert [_is_gerund(name) for name in ("managing", "Settling", "settings", "SpringFinding", "pool")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_class_name_is_defined_once():
    defined = Counter(name for module in _modules().values() for name in _classes(module) if not _is_private(name))
    twice = sorted(name for name, count in defined.items() if count > 1)
    assert len(twice) <= CLASSES_DEFINED_TWICE, twice


def test_every_module_says_what_is_in_it():
    missing = [_name(path) for path, module in _modules().items() if not ast.get_docstring(module)]
    assert len(missing) <= WITHOUT_DOCSTRING, missing


def test_no_file_and_no_folder_is_too_big_to_read():
    long = {_name(path): lines for path in _modules() if (lines := len(path.read_text().splitlines())) > MOST_LINES}
    assert not {name: lines for name, lines in long.items() if lines > LONG_FILES.get(name, 0)}
    files = Counter(_name(path.parent) for path in _modules() if path.name != "__init__.py")
    full = {name: count for name, count in files.items() if count > FULL_FOLDERS.get(name, MOST_FILES)}
    assert not full


# --- private names -------------------------------------------------------------------------------------------------


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined_names(module: ast.Module) -> set[str]:
    """The underscore names that a module defines: functions, classes, variables, attributes of self, fields, slots."""
    defined: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                defined.add(node.attr)
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets
        ):
            defined.update(
                c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)
            )
    return defined


def private_accesses(module: ast.Module) -> list[str]:
    """Uses of underscore names of other modules: imports of them, and attributes of objects other than self and cls."""
    defined, found = _defined_names(module), []
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.lineno}: import of {alias.name}" for alias in node.names if _is_private(alias.name)]
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in defined:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")  # os._exit is documented
            found += [] if own else [f"{node.lineno}: {ast.unparse(node)}"]
    return found


def test_no_module_uses_a_private_name_of_another():
    found: dict[str, list[str]] = {}
    for path, module in _modules().items():
        folder = _name(path).split("/")[0]
        found.setdefault(folder, []).extend(f"{_name(path)}:{use}" for use in private_accesses(module))
    wrong = [uses for folder, uses in found.items() if len(uses) > PRIVATE_ACCESSES.get(folder, 0)]
    assert not wrong, "\n" + "\n".join(use for uses in wrong for use in uses)


def test_a_private_use_is_told_from_an_own_one():
    source = "from x import _a, b\nclass C:\n    def f(self, o):\n        self._x = o._x + o._y + self._z + b.__doc__\n"
    assert private_accesses(ast.parse(source)) == ["1: import of _a", "4: o._y"]


# --- docs/architecture.md ------------------------------------------------------------------------------------------


def _architecture() -> str:
    return (ROOT / "docs" / "architecture.md").read_text()


def test_every_path_that_the_architecture_names_exists():
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", _architecture())
    assert len(paths) > 100
    missing = [path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()]
    assert not missing, f"docs/architecture.md names {missing}"


def test_the_architecture_names_every_module():
    page, missing = _architecture(), []
    for path in _modules():
        name = _name(path)
        if not path.stem.startswith("__") and "/" in name and f"`{name}`" not in page:
            missing.append(name)
    assert not missing, f"docs/architecture.md lacks {missing}: run tools/gen_architecture_docs.py"


def test_the_layers_of_the_architecture_are_those_that_import_linter_checks():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["id"] == "layers")["layers"]
    checked = [{part.strip(" ()") for part in layer.split("|")} for layer in layers]
    table = _architecture().split("## Layers\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ((?:`[\w/.]+`(?:, )?)+) \|", table, re.MULTILINE)
    written = [{name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([\w/.]+)`", row)} for row in rows]
    assert written == checked


def test_the_stranger_test_names_files_that_exist():
    page = (ROOT / "tools" / "stranger_test.md").read_text()
    paths = re.findall(r"^\| \d+ \| .+ \| `([\w/]+\.py)` \|$", page, re.MULTILINE)
    assert len(paths) == len(set(paths)) == 60
    missing = [path for path in paths if not (PACKAGE / path).exists()]
    assert not missing, f"tools/stranger_test.md names {missing}"
