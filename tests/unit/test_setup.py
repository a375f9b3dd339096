"""What is compiled can be, and an installation does without. That the compiled core is right is told by its tests."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fleetgate"
COMPILED = ast.literal_eval(re.search(r"^COMPILED = (\(.*?^\))", (ROOT / "setup.py").read_text(), re.M | re.S)[1])  # type: ignore[index]


@pytest.mark.parametrize("path", COMPILED)
def test_what_is_compiled_can_be(path):
    for each in ast.walk(ast.parse((SOURCES / path).read_text())):
        if isinstance(each, ast.ClassDef):
            bases = {ast.unparse(base) for base in each.bases}
            assert not bases & {"Struct", "msgspec.Struct"}, f"{path}: mypyc cannot compile {each.name}"
            defaults = [field.value for field in each.body if isinstance(field, ast.AnnAssign) and field.value]
            assert all(isinstance(value, (ast.Constant, ast.Name)) for value in defaults), (
                f"{path}: mypyc leaves a field of {each.name} unset whose default is no constant"
            )


def test_a_base_installation_needs_two_packages():
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    linux = {re.split("[<>=;]", need)[0] for need in needs if "sys_platform != 'linux'" not in need}
    assert linux == {"click", "msgspec"}
