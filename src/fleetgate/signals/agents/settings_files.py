"""The files in which agents keep their settings, read as far as they can be: a file that is not there says nothing."""

from __future__ import annotations

import os
from typing import Any

_LARGEST = 1 << 20


def read_text(path: str) -> str:
    """A regular file of a reasonable size, as text; "" of anything else."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST:
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def as_object(text: str) -> dict[str, Any]:
    """A JSON object; comments that fill a line, and a comma before a closing bracket, are passed over."""
    import re

    import msgspec

    plain = re.sub(r"(?m)^\s*//.*$", "", text)
    for each in (text, re.sub(r",(\s*[}\]])", r"\1", plain)):
        try:
            found = msgspec.json.decode(each)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def as_table(text: str) -> dict[str, Any]:
    """A TOML document; nothing where it is none."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def looked_up(table: object, *keys: str) -> str:
    """The text that is there under these keys, or ""."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, str) else ""


def folders_up(folder: str) -> list[str]:
    """A folder and those above it, up to the root of its repository; only itself where there is none."""
    found = [folder] if folder else []
    at = folder
    while at and not os.path.exists(os.path.join(at, ".git")):
        above = os.path.dirname(at)
        if above == at:
            return found[:1]
        found.append(above)
        at = above
    return found
