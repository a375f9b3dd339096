"""The sentence about an unknown key: the nearest known one, where else it belongs, and what is valid here (rule C6).
Needed only when something is wrong, so it may import anything."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fleetgate.config.schema.keys import SCHEMA
from fleetgate.config.schema.shapes import Array, Map, OneOrMore, Shape, Short, Table


def unknown_key(name: str, table: Table) -> str:
    """What to say about a key that `table` does not have."""
    here = [key.name for key in table.keys]
    valid = f"valid here: {', '.join(here)}"
    near = [key.name for key in table.keys if name.lower() in key.tried]
    near = near or difflib.get_close_matches(name.lower(), here, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean {near[0]}? ({valid})"
    everywhere = dict(places())
    belongs = [place for place, last in everywhere.items() if last == name]
    general = [place for place in belongs if "SELECTOR" in place]  # says it of host and project too
    if belongs:
        return f"it does not belong here but at {' or '.join(general or belongs)}; {valid}"
    nearest = difflib.get_close_matches(name.lower(), list(everywhere.values()), n=1, cutoff=0.0)[0]
    place = next(place for place, last in everywhere.items() if last == nearest)
    return f"unknown key; the nearest known one is {place} ({valid})"


def places(shape: Shape = SCHEMA, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the schema as its place, like `requests.SELECTOR.cooldown`, and its name."""
    if isinstance(shape, Table):
        for key in shape.keys:
            place = f"{path}.{key.name}" if path else key.name
            yield place, key.name
            yield from places(key.shape, place)
    elif isinstance(shape, Short | OneOrMore):
        yield from places(shape.table, path)
    elif isinstance(shape, Array):
        yield from places(shape.item, path)
    elif isinstance(shape, Map):
        for name, special in shape.special.items():
            yield from places(special, f"{path}.{name}")
        yield from places(shape.value, f"{path}.{shape.placeholder}")
