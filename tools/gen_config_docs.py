"""Writes docs/config.md from the schema."""

from pathlib import Path

from fleetgate.config.schema.docs_page import render

if __name__ == "__main__":
    page = Path(__file__).parent.parent / "docs" / "config.md"
    page.write_text(render(), encoding="utf-8")
