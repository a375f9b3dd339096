"""Writes the list of modules in docs/architecture.md: every file, with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fleetgate"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: tools/gen_architecture_docs.py -->\n", "<!-- end of modules -->\n"


def first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    text = re.sub(r"\s*\((?:SPEC|[Rr]ules?) [^)]*\)", "", text)
    sentence = re.split(r"(?<=[.:;])\s+(?=[A-Z`])", text)[0]
    return sentence.rstrip(".:;").replace("|", "\\|")


def modules() -> str:
    """One table for each folder, in the order of the tree."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.name.startswith("__"):
            folders.setdefault(path.parent.relative_to(PACKAGE).as_posix(), []).append(path)
    tables = []
    for folder, paths in sorted(folders.items()):
        if folder == ".":
            continue
        rows = [f"| `{path.relative_to(PACKAGE).as_posix()}` | {first_sentence(path)} |" for path in paths]
        tables.append("\n".join((f"### {folder}/\n", "| file | what is in it |", "| --- | --- |", *rows)))
    return "\n\n".join(tables) + "\n"


def main() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{modules()}\n{END}{after}")


if __name__ == "__main__":
    main()
