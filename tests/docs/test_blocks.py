"""Every console block, every setting and every program in the documentation is run, or is marked as illustrative."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fleetgate.config.file import check
from tests.cli.test_help import all_commands
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of
from tests.docs.terminal import Terminal, differences

RUN = [page for page in PAGES if any(block.language == "console" and not block.why_not for block in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=[page.stem for page in RUN])
def test_the_commands_of_a_page_print_what_the_page_shows(page: Path):
    terminal = Terminal()
    problems = []
    try:
        for block in blocks_of(page):
            if block.language != "console" or block.why_not:
                continue
            if block.setup:
                terminal.run(block.setup)
            for step in block.steps():
                printed = terminal.run(step.command, step.output)
                problems += [f"{block.name}: $ {step.command}\n  {each}" for each in differences(step.output, printed)]
    finally:
        terminal.close()
    assert not problems, "\n".join(problems)


def test_every_block_with_commands_or_a_program_is_run_or_says_why_not():
    code = [block for block in all_blocks() if block.language in ("sh", "bash", "py", "python")]
    assert not [block.name for block in code if not block.why_not and not block.run_by]
    assert not [
        block.name for block in code if block.run_by and block.page.name not in (ROOT / block.run_by).read_text()
    ]


def test_commands_that_are_only_shown_exist_with_their_options():
    assert not [f"{block.name}: {each}" for block in all_blocks() for each in _unknown_words(block)]


def _unknown_words(block: Block) -> list[str]:
    """The commands and options in a block that Fleetgate does not have."""
    commands = dict(all_commands())
    shown = block.text if block.language in ("sh", "bash") else "\n".join(step.command for step in block.steps())
    unknown = []
    for words in re.findall(r"(?:^|[;(&|] ?|&& )fleetgate (?:-v )?([a-z][^;)#\n]*)", shown, re.MULTILINE):
        typed = words.partition(" -- ")[0].split()
        path = " ".join(typed[:2]) if " ".join(typed[:2]) in commands else typed[0]
        if path not in commands:
            unknown.append(path)
            continue
        options = {name for each in commands[path].params for name in (*each.opts, *each.secondary_opts)}
        unknown += [word for word in typed if re.fullmatch(r"--[a-z-]+", word) and word not in options]
    return unknown


def _settings() -> list[Block]:
    return [block for block in all_blocks() if block.language == "toml" and not block.why_not]


@pytest.mark.parametrize("block", _settings(), ids=lambda block: block.name)
def test_settings_on_a_page_are_valid(block: Block):
    check(block.text, block.name)


@pytest.mark.parametrize(
    "block", [each for each in all_blocks() if each.language == "json" and not each.why_not], ids=lambda each: each.name
)
def test_json_on_a_page_is_json(block: Block):
    json.loads(block.text)


def test_a_line_matches_but_for_what_changes_from_run_to_run():
    line = "1 of 3  anth…e-opus-*  vrkurhh7ty  full 2/2  4s ago  in 1s–2s  claude -p"
    assert not differences([line], ["2 of 4 anthropic/claude-opus-* k3v7q2mx9a full 1/2  300ms ago in 2m–8m claude -p"])
    assert differences([line], ["2 of 4 anthropic/claude-opus-* k3v7q2mx9a full 1/2  3s ago in 2m–8m codex"])
    assert differences(["a", "b"], ["a"]) == ["missing: b"]
    assert differences(["a"], ["a", "b"]) == ["not on the page: b"]
    assert not differences(["a", "…"], ["a", "b"])
