"""What `HEADGATE_COMPILE=1` would compile can be compiled; whether it is right then, `make compiled` tells."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headgate"
COMPILED = ast.literal_eval(re.search(r"^COMPILED = (\(.*?^\))", (ROOT / "setup.py").read_text(), re.M | re.S)[1])  # type: ignore[index]


def test_what_is_compiled_is_there_and_has_no_struct():
    for path in COMPILED:
        tree = ast.parse((SOURCES / path).read_text())
        bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
        assert not bases & {"Struct", "msgspec.Struct"}, f"{path}: mypyc cannot compile it"


def test_without_the_variable_nothing_is_compiled():
    """A plain installation needs neither mypy nor a compiler."""
    text = (ROOT / "setup.py").read_text()
    imports = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {ast.unparse(node) for node in imports} == {"import os", "from setuptools import setup"}
