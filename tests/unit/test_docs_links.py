"""Pages and the README: links lead somewhere, commands and settings exist, and nothing is installed from a registry."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fleetgate.config.file import check

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


def test_every_page_that_the_sources_name_exists():
    missing = []
    for folder in ("src", "tests", "benchmarks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            pages = re.findall(r"\bdocs/[\w/-]+\.md\b", text) if path != Path(__file__) else []
            decisions = re.findall(r"\bdocs/decisions/(\d{4})\b", text)
            missing += [f"{path.relative_to(ROOT)}: {page}" for page in pages if not (ROOT / page).exists()]
            found = {number for number in decisions if not list((ROOT / "docs" / "decisions").glob(f"{number}-*.md"))}
            missing += [f"{path.relative_to(ROOT)}: decision {number}" for number in found]
    assert not missing


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


def test_the_settings_in_the_readme_are_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert check(example, "README.md").models


def test_the_commands_in_the_readme_have_a_page():
    code = "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    named = set(re.findall(r"\bfleetgate ([a-z]+)\b", code))
    assert "run" in named
    assert not {name for name in named if not (ROOT / "docs" / "commands" / f"{name}.md").exists()}


def test_the_pictures_load_nothing_from_another_machine():
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        addresses = set(re.findall(r"https?://[^\"') ]+", picture.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, picture.name
