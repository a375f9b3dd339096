"""The shapes of values in a config file: one value, an array, a table, a table whose keys the user names.

The schema is made of them; reading, the page docs/config.md and the sentence about an unknown key follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field


class Scalar(Struct, frozen=True):
    """One value. `read` returns it in Fleetgate's unit or raises BadValue or BadName."""

    what: str
    read: Callable[[object], Any]


class Array(Struct, frozen=True):
    """Values of one shape."""

    what: str
    item: Shape


class Table(Struct, frozen=True):
    """Named keys."""

    what: str
    keys: tuple[Key, ...]


class Short(Struct, frozen=True):
    """A table that may be shortened to the value of its key `key`: `host = 3` for `host = { cap = 3 }`."""

    what: str
    key: str
    table: Table


class Map(Struct, frozen=True):
    """A table whose keys the user names. `special` names have another shape than the rest."""

    what: str
    placeholder: str
    read_name: Callable[[str], str]
    value: Shape
    special: dict[str, Shape] = field(default_factory=dict)


class OneOrMore(Struct, frozen=True):
    """A table, or an array of such tables. It is read as a list of places and tables."""

    what: str
    table: Table


Shape = Scalar | Array | Table | Short | Map | OneOrMore


class Key(Struct, frozen=True):
    """One key: its doc is a sentence, its example TOML, its default as the page shows it ("" is none)."""

    name: str
    shape: Shape
    doc: str
    example: str
    default: str = ""
    required: bool = False
    tried: tuple[str, ...] = ()  # other names that people try
