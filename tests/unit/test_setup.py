"""setup.py: what is compiled can be, and an installation does without; versions come from tags."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

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


# Versions.


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of a setup.py that is in another folder."""
    monkeypatch.delenv("FLEETGATE_VERSION", raising=False)
    (tmp_path / "setup.py").write_text((ROOT / "setup.py").read_text())
    return runpy.run_path(str(tmp_path / "setup.py"))


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v0.1.0", "0.1.0"),
        ("v0.1.0-0-g0123abc", "0.1.0"),
        ("v0.1.0-4-g0123abc", "0.1.1.dev4+g0123abc"),
        ("v0.1.0-0-g0123abc-dirty", "0.1.1.dev0+g0123abc.dirty"),
        ("v1.2.9-12-gabc", "1.2.10.dev12+gabc"),
        ("v2.0.0rc1-0-gabc", "2.0.0rc1"),
        ("v2.0.0rc1-3-gabc", "2.0.0rc2.dev3+gabc"),
        ("", "0.1.0.dev0"),
        ("version-one", "0.1.0.dev0"),
    ],
)
def test_a_version_follows_from_the_last_tag(setup: dict[str, Any], described: str, version: str):
    assert setup["from_description"](described) == version


def test_the_version_is_found_in_a_repository_an_archive_and_an_sdist(
    setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert setup["version"]() == "0.1.0.dev0"  # no git, as in build/sources
    (tmp_path / ".git_archival.txt").write_text("describe-name: $Format:%(describe:tags=true,match=v[0-9]*)$\n")
    assert setup["version"]() == "0.1.0.dev0"  # git has not replaced it
    (tmp_path / ".git_archival.txt").write_text("describe-name: v0.3.0-2-gabc\n")
    assert setup["version"]() == "0.3.1.dev2+gabc"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert setup["version"]() == "0.1.0.dev0"  # no commit
    subprocess.run([*git, "add", "setup.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "One"], check=True)
    assert setup["version"]() == "0.1.0.dev0"  # no tag
    subprocess.run([*git, "tag", "v0.4.0"], check=True)
    assert setup["version"]() == "0.4.0"
    subprocess.run([*git, "commit", "-qm", "Two", "--allow-empty"], check=True)
    assert re.fullmatch(r"0\.4\.1\.dev1\+g[0-9a-f]+", setup["version"]())
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: fleetgate\nVersion: 0.9\n")
    assert setup["version"]() == "0.9"
    monkeypatch.setenv("FLEETGATE_VERSION", "7")
    assert setup["version"]() == "7"


def test_links_of_the_readme_have_their_whole_address_on_pypi(setup: dict[str, Any], tmp_path: Path):
    (tmp_path / "README.md").write_text("[a](doc/a.md) ![b](doc/b.png) [c](#c) [d](https://example.org)")
    assert setup["readme"]() == (
        "[a](https://github.com/fleetgate/fleetgate/blob/main/doc/a.md) "
        "![b](https://github.com/fleetgate/fleetgate/raw/main/doc/b.png) [c](#c) [d](https://example.org)"
    )


def test_the_newest_release_in_the_changelog_is_no_older_than_its_tag():
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert re.fullmatch(r"0\.1\.0 \(\d{4}-\d\d-\d\d\)", titles[-1])


# What is compiled.

CODE = """#include "__native_fleetgate.h"
#include "__native_internal_fleetgate.h"
    CPy_AddTraceback("src/a.py", "first", 12, CPyStatic_a___globals);
    CPy_TypeErrorTraceback("src/a.py", "first", 13, CPyStatic_a___globals, "int", cpy_r_r1);
    CPy_AttributeError("src/a.py", "second", "State", "usage", 20, CPyStatic_a___globals);
    CPy_AddTraceback("src/a.py", "second", 21, CPyStatic_a___globals);
    CPy_AddTraceback("src/a.py", "<lambda>", 21, CPyStatic_a___globals);
"""


def test_compiled_code_passes_only_the_line_to_a_traceback_if_it_belongs_to_one_function(setup: dict[str, Any]):
    head, helpers, *places = re.split(r"^(?=static const struct|    CPy_|    fleetgate_)", _short(setup), flags=re.M)
    assert head == "".join(CODE.splitlines(keepends=True)[:2]) + "\n"
    assert "{ {12, 0}, {20, 6} }" in helpers
    assert '= "first\\0second";' in helpers
    assert [place.strip() for place in places[-5:]] == [
        "fleetgate_CPy_AddTraceback(12);",
        'fleetgate_CPy_TypeErrorTraceback(13, "int", cpy_r_r1);',
        'fleetgate_CPy_AttributeError("State", "usage", 20);',
        'CPy_AddTraceback("src/a.py", "second", 21, CPyStatic_a___globals);',
        'CPy_AddTraceback("src/a.py", "<lambda>", 21, CPyStatic_a___globals);',
    ]


def _short(setup: dict[str, Any]) -> str:
    short: str = setup["with_short_tracebacks"](CODE)
    return short


def test_code_of_an_unknown_form_is_compiled_as_it_is(setup: dict[str, Any]):
    for code in (CODE.replace("CPyStatic_a", "other"), CODE.replace("#include", "# include"), ""):
        assert setup["with_short_tracebacks"](code) == code


def test_a_shim_of_an_unknown_form_is_compiled_as_it_is(setup: dict[str, Any]):
    known = 'capsule = PyObject_GetAttrString(tmp, "init_fleetgate___core___engine");'
    assert 'PyCapsule_Import("fleetgate__mypyc.init_fleetgate___core___engine", 0)' in setup["short_shim"](
        "fleetgate.core.engine", known
    )
    other = known.replace("init_", "exec_")
    assert setup["short_shim"]("fleetgate.core.engine", other) == other


def test_private_names_that_are_used_from_outside_stay_in_compiled_classes(setup: dict[str, Any]):
    folder = Path(setup["HERE"]) / "src" / "fleetgate"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "engine.py").write_text("other._compiled()")
    (folder / "plain.py").write_text("from a import b, _imported\nself._own()\nother._called()\n")
    names = setup["used_by_name"](["x = CPyStatics[7]; /* '_callback' */", "y = CPyStatics[8]; /* 'text' */"])
    assert names == {"_callback", "_imported", "_called"}
