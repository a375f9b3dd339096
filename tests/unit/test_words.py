"""One word for one thing (docs/glossary.md): replaced words stay out of the sources, the documents and the help."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fleetgate"
TEXT = {".py", ".md", ".js", ".html", ".css", ".toml"}

# Each old word, and what to write instead. A word may be a part of a snake_case name.
START, END = r"(?<![A-Za-z])", r"(?![a-z])"
PROSE_ONLY = r"\bin line\b(?! with)"  # in code this is a test of membership
OLD_WORDS = {
    rf"{START}seats?{END}": "slot",
    PROSE_ONLY: "waiting, in the queue",
    rf"{START}(?:lend|lends|lent|lending|lender|borrow(?:s|ed|er|ers|ing)?){END}": "grant, hold",
    rf"{START}flows?{END}(?![ _-]?control)": "project",
    rf"{START}anew{END}": "again",
    rf"{START}whoever{END}": "the process that, any process",
    rf"{START}nobody(?:s|'s)?{END}": "no process, no one",
    rf"{START}somebody(?:s|'s)?{END}": "another process, a person",
    rf"{START}(?:bear|bears|bearing|borne) with\b": "wait for",
    r"\bSPEC [A-Z][0-9]": "rule A4, or nothing",
    r"\b(?:DESIGN|CONTROLLER)\.md": "a page of docs/",
    r"(?i)headgate": "fleetgate",
}
_ANY = re.compile("|".join(OLD_WORDS).replace("(?i)", ""), re.IGNORECASE)  # is there any in this line? Quick

# `fleetgate doctor` mentions a state folder or a variable of the name that the project had before.
# Snapshots keep the names of their fields.
EXEMPT = {
    ("docs/architecture.md", "headgate"),
    ("src/fleetgate/cli/doctor", "headgate"),
    ("src/fleetgate/core/state/snapshot_format.py", "lent"),
}


def _files() -> list[Path]:
    found = [path for folder in (PACKAGE, ROOT / "docs") for path in folder.rglob("*") if path.suffix in TEXT]
    return sorted([*found, ROOT / "README.md", ROOT / "CHANGELOG.md"])


def _prose(path: Path) -> set[int]:
    """The numbers of the lines on which a comment or a string says "in line"."""
    found: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                lines = enumerate(token.string.split("\n"), token.start[0])
                found.update(number for number, text in lines if re.search(PROSE_ONLY, text))
    return found


def _old_words(path: Path) -> list[str]:
    name, found = path.relative_to(ROOT).as_posix(), []
    whole = path.read_text()
    prose = _prose(path) if path.suffix == ".py" and "in line" in whole else None
    for number, text in enumerate(whole.splitlines(), 1):
        if not _ANY.search(text):
            continue
        for pattern, better in OLD_WORDS.items():
            if pattern == PROSE_ONLY and prose is not None and number not in prose:
                continue
            for match in re.finditer(pattern, text, re.IGNORECASE if pattern.startswith(START) else 0):
                if not any(name.startswith(folder) and match[0].lower() == word for folder, word in EXEMPT):
                    found.append(f"{name}:{number}: {match[0]!r}; better: {better}")
    return found


def test_old_words_are_gone():
    wrong = [found for path in _files() for found in _old_words(path)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It waits in line.", 1),
        ("in line with the rules", 0),
        ("seats_held = lent", 2),
        ("a silent, excellent flow_control", 0),
        ("Nobody's flow, anew", 3),
        ("see SPEC A4 and DESIGN.md", 2),
    ],
)
def test_the_search_knows_old_words_from_others(text: str, count: int):
    found = [
        match
        for pattern in OLD_WORDS
        for match in re.finditer(pattern, text, re.IGNORECASE if pattern.startswith(START) else 0)
    ]
    assert len(found) == count


def test_the_glossary_has_the_words_of_the_field():
    words = re.findall(r"^\| \*\*([^*]+)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) == len(set(words))
    missing = {
        *("slot", "queue", "grant", "waiting", "running", "project", "lease", "ticket", "pool", "cap", "limit"),
        *("backoff", "cooldown", "node", "shared log"),
    } - set(words)
    assert not missing, f"docs/glossary.md lacks {sorted(missing)}"
