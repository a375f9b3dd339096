"""Links between pages lead to a page, a picture or a heading that exists, and no page installs from a registry."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])


@cache
def _anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def _broken(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def test_every_link_leads_somewhere():
    assert not [link for page in PAGES for link in _broken(page)]


def test_every_page_is_reached_from_the_readme():
    seen, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            target = (page.parent / link).resolve()
            left += sorted(target.glob("*.md")) if target.is_dir() else [target] if target.suffix == ".md" else []
    assert not sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - seen)


def test_no_page_installs_fleetgate_from_a_registry():
    """It is not published: a clone is what works."""
    wrong = [
        f"{page.relative_to(ROOT)}: {found}"
        for page in PAGES
        for found in re.findall(r"(?:pipx?|uv tool|uv pip) install [^\n`]*\bfleetgate\b[^\n`]*", page.read_text())
    ]
    assert not wrong
