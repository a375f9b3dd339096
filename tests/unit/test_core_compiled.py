"""Which core this is: the sources, or what `pip install` made of them."""

from __future__ import annotations

import ast
import traceback
from collections import Counter
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

from fleetgate.core.compiled import COMPILED
from fleetgate.core.queue.order import order_key
from tests.unit.test_setup import COMPILED as PATHS

SOURCES = Path(__file__).parents[2] / "src" / "fleetgate"
MOST_BYTES = 12_100_000
CORE = [path for path in (SOURCES / "core").rglob("*.py") if path.name != "__init__.py"]


def test_all_of_the_core_is_compiled_or_none_of_it():
    files = [import_module("fleetgate." + path[:-3].replace("/", ".")).__file__ or "" for path in PATHS]
    assert {file.endswith(".so") for file in files} == {COMPILED}
    assert {file.endswith(".py") for file in files} == {not COMPILED}


def test_a_class_and_its_base_are_both_compiled_or_neither():
    """mypyc fails only when the compiled class is imported: an installed Fleetgate would not start."""
    modules = {"fleetgate." + path[:-3].replace("/", ".") for path in PATHS}
    names = {f"fleetgate.{path.relative_to(SOURCES).with_suffix('')}".replace("/", ".") for path in CORE}
    for name in names:
        for each in vars(import_module(name)).values():
            if isinstance(each, type) and each.__module__ == name:
                for base in each.__bases__:
                    if base.__module__.startswith("fleetgate."):
                        assert (name in modules) == (base.__module__ in modules), f"{name}.{each.__name__}"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(not COMPILED, reason="this looks at an installation with a compiled core: make compiled")
def test_an_installation_with_a_compiled_core_is_small_and_has_no_source_of_what_is_compiled():
    folder = Path(import_module("fleetgate").__file__ or "").parent
    assert not [path for path in PATHS if (folder / path).exists()]
    brought = [file.locate() for name in ("click", "msgspec") for file in distribution(name).files or ()]
    assert len(list(folder.rglob("*.pyc"))) > 100, "pip compiles what it installs"
    assert _size(folder.parent) + sum(Path(str(path)).stat().st_size for path in brought) < MOST_BYTES


@pytest.mark.skipif(not COMPILED, reason="this looks at an installation with a compiled core: make compiled")
def test_a_traceback_through_compiled_code_names_file_function_and_line():
    with pytest.raises(TypeError) as error:
        order_key("no number", 0, 0, None)  # type: ignore[arg-type]
    last = traceback.extract_tb(error.tb)[-1]
    assert (last.filename, last.name) == ("src/fleetgate/core/queue/order.py", "order_key")
    assert last.lineno == _line_of("def order_key", SOURCES / "core/queue/order.py")


def _line_of(start: str, path: Path) -> int:
    return 1 + next(at for at, line in enumerate(path.read_text().splitlines()) if line.startswith(start))


def test_a_name_stands_for_one_kind_of_error_in_a_function():
    """In compiled code, a second `except … as error` of another kind would raise a TypeError."""
    for path in PATHS:
        for each in ast.walk(ast.parse((SOURCES / path).read_text())):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                handlers = [inner for inner in ast.walk(each) if isinstance(inner, ast.ExceptHandler)]
                names = Counter(handler.name for handler in handlers if handler.name)
                assert not [name for name, times in names.items() if times > 1], f"{path}: {each.name}"
