"""Each command that has to do with jobs and notifications has a page, with every option and nothing else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

PAGES = Path(__file__).parents[2] / "docs" / "commands"
NAMES = ("submit", "jobs", "show", "logs", "wait", "retry", "approve", "clean", "worker", "dispatch")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_on_the_page_of_its_command(name: str):
    command = importlib.import_module(f"fleetgate.cli.commands.{name}").command
    options = {
        text for each in command.params if isinstance(each, click.Option) and not each.hidden for text in each.opts
    }
    rows = re.findall(r"^\| (`-.*?) \| ", (PAGES / f"{name}.md").read_text(), re.MULTILINE)
    told = {word for row in rows for word in re.findall(r"`(-[\w-]*)", row)}
    assert told == options


def test_every_part_of_notify_is_on_its_page():
    command = importlib.import_module("fleetgate.cli.commands.notify").command
    page = (PAGES / "notify.md").read_text()
    assert all(f"fleetgate notify {name}" in page for name in command.commands)
