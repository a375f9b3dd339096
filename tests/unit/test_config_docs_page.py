"""One definition of every key: the page, the example and the reading agree."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetgate.config.document import read_shape
from fleetgate.config.errors import Problems
from fleetgate.config.file import check
from fleetgate.config.schema.keys import SCHEMA
from fleetgate.config.schema.shapes import Array, Key, Map, OneOrMore, Shape, Short, Table
from fleetgate.config.schema.unknown_key import places
from fleetgate.config.settings import HostAuto, Provider, Settings
from tools.gen_config_docs import EXAMPLE, render

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def keys(shape: Shape = SCHEMA) -> Iterator[Key]:
    if isinstance(shape, Table):
        for key in shape.keys:
            yield key
            yield from keys(key.shape)
    elif isinstance(shape, Short | OneOrMore):
        yield from keys(shape.table)
    elif isinstance(shape, Array):
        yield from keys(shape.item)
    elif isinstance(shape, Map):
        for inner in (*shape.special.values(), shape.value):
            yield from keys(inner)


def test_c1_the_page_is_made_from_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python tools/gen_config_docs.py"


def test_c1_the_example_is_valid_and_in_the_page() -> None:
    settings = check(EXAMPLE, "docs/config.md")
    assert EXAMPLE in PAGE.read_text(encoding="utf-8")
    # It says something of everything that a file can say.
    assert all(
        getattr(settings, name) != getattr(Settings(), name) for name in Settings.__struct_fields__ if name != "keep_ms"
    )


def test_c1_the_example_has_every_key() -> None:
    said: set[str] = set()

    def collect(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(item)
        said.update(value if isinstance(value, dict) else ())

    collect(tomllib.loads(EXAMPLE))
    assert {name for _, name in places()} <= said


@pytest.mark.parametrize("key", [pytest.param(key, id=key.name) for key in keys()])
def test_c1_every_key_has_a_sentence_and_an_example_that_is_valid(key: Key) -> None:
    assert key.doc.endswith(".")
    assert key.doc[0].isupper() or key.doc[0] == "`"
    problems: Problems = []
    read_shape(tomllib.loads(f"example = {key.example}")["example"], key.shape, (key.name,), problems)
    assert problems == []


def test_c7_the_defaults_in_the_page_are_those_in_force() -> None:
    assert HostAuto() == HostAuto(6 * 1024**3, 512 * 1024**2, 8)
    assert Provider().api == "openai"
    page = render()
    for row in (
        "| `reserve` | number of slots, percentage, or size | 0 slots; 6GiB |",
        "| `per_agent` | size | 512MiB |",
        "| `keep` | duration | 30d |",
    ):
        assert row in page
    assert "| `cooldown` | duration | 0s in `[agents]`; 350ms in `[requests]` |" in page
    assert '`"host" = 3`, `"*/claude-opus-*" = 4`' in page
