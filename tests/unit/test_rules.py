"""Every rule id that a test or a comment names is in docs/rules.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = re.findall(r"^- \*\*([A-Z][0-9]+)\*\* ", (ROOT / "docs/rules.md").read_text(), re.MULTILINE)


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_no_rule_id_is_given_twice():
    assert len(RULES) == len(set(RULES)) > 90


def test_every_rule_that_a_test_is_named_after_is_in_the_rules():
    named: dict[str, str] = {}
    for path in _sources("tests"):
        for found in re.findall(r"def test_([a-z][0-9]+)_", path.read_text()):
            named.setdefault(found.upper(), path.name)
    missing = {rule: name for rule, name in named.items() if rule not in RULES}
    assert not missing, f"docs/rules.md lacks {missing}"


def test_every_rule_that_the_sources_cite_is_in_the_rules():
    for path in (*_sources("src"), *_sources("tests")):
        for cited in re.findall(r"\b(?:SPEC|[Rr]ules?) ([A-Z][0-9]+(?:, [A-Z][0-9]+)*)\b", path.read_text()):
            missing = [rule for rule in cited.split(", ") if rule not in RULES]
            assert not missing, f"{path} cites {missing}, which docs/rules.md lacks"
