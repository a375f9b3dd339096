"""The fenced blocks of the documentation, and what each page says about running them.

A comment right before a block says how it is tested:

- `<!-- illustrative: why -->`: the block is not run.
- `<!-- run: tests/… -->`: that test runs it.
- `<!-- setup: commands -->`: these shell commands run first, unseen by the reader. A variable that they set and that
  has the name of an id, such as `uwsjr55bkg`, replaces that id in the commands of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_COMMENT = re.compile(r"<!--\s*(illustrative|setup|run):\s*((?:(?!-->).)*?)\s*-->\s*$", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A command that a reader types, and the lines that it prints."""

    command: str
    output: list[str]


@dataclass(frozen=True)
class Block:
    """One fenced block. `why_not` is the reason why it is not run, `run_by` another test that runs it."""

    page: Path
    line: int
    language: str
    text: str
    why_not: str = ""
    setup: str = ""
    run_by: str = ""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def steps(self) -> list[Step]:
        """What a `console` block types: lines with `$ `, continued by lines with `> `."""
        steps: list[Step] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], []))
            elif line.startswith("> ") and steps and not steps[-1].output:
                steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", [])
            elif steps:
                steps[-1].output.append(line)
        return steps


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    blocks = []
    for match in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        comment = _COMMENT.search(text[: match.start()])
        marks = {comment[1]: comment[2]} if comment else {}
        said = (marks.get(each, "") for each in ("illustrative", "setup", "run"))
        blocks.append(Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2], *said))
    return blocks


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]
