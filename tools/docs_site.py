"""A hook of MkDocs: an entry of `nav` in mkdocs.yml that ends in "/" stands for every page of that folder.

A new command or decision then appears on the site without another edit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Called by MkDocs before it builds the site."""
    config["nav"] = _expand(config["nav"], Path(config["docs_dir"]))
    return config


def _expand(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_expand(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {title: _expand(value, docs) for title, value in entry.items()}
    if entry.endswith("/"):
        return [page.relative_to(docs).as_posix() for page in sorted((docs / entry).glob("*.md"))]
    return entry
