"""Which core this is: the sources, or what `pip install` made of them."""

from __future__ import annotations

from importlib import import_module

from fleetgate.core.compiled import COMPILED
from tests.unit.test_setup import COMPILED as PATHS


def test_all_of_the_core_is_compiled_or_none_of_it():
    files = [import_module("fleetgate." + path[:-3].replace("/", ".")).__file__ or "" for path in PATHS]
    assert {file.endswith(".so") for file in files} == {COMPILED}
    assert {file.endswith(".py") for file in files} == {not COMPILED}
