"""The units for systemd and launchd: what they run exists, where pipx, uv and pip put it, and systemd takes them."""

from __future__ import annotations

import configparser
import plistlib
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from fleetgate.cli.click_group import group

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
# `pipx install`, `uv tool install` and `pip install --user`; and with `pipx --global`, or a link to an environment.
FOR_ONE_USER = "%h/.local/bin/fleetgate"
FOR_ALL = "/usr/local/bin/fleetgate"


def check_command(argv: list[str]) -> None:
    """That the command line knows this command and its options."""
    command = group.get_command(click.Context(group), argv[0])
    assert command is not None, argv
    command.make_context(argv[0], argv[1:], resilient_parsing=False)


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


def test_there_is_a_unit_for_the_service_a_whole_machine_and_a_worker():
    assert [path.stem for path in UNITS] == ["fleetgate-machine", "fleetgate-worker", "fleetgate"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_valid_command_where_it_is_installed(path: Path):
    program, *argv = unit(path)["Service"]["ExecStart"].split()
    assert program == (FOR_ALL if path.stem == "fleetgate-machine" else FOR_ONE_USER)
    check_command(argv)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(path: Path, tmp_path: Path):
    copy = tmp_path / path.name
    copy.write_text(re.sub("^ExecStart=[^ ]+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    about_it = [line for line in done.stderr.splitlines() if path.name in line]
    assert (about_it, done.returncode) == ([], 0), done.stderr


def test_the_agent_of_launchd_runs_a_valid_command():
    with (DEPLOY / "dev.fleetgate.serve.plist").open("rb") as opened:
        agent = plistlib.load(opened)
    assert agent["Label"] == "dev.fleetgate.serve"
    shell, option, script = agent["ProgramArguments"]
    assert (shell, option) == ("/bin/sh", "-c")
    found = re.fullmatch(r'exec "\$HOME/\.local/bin/fleetgate" (.*)', script)
    assert found is not None
    check_command(found[1].split())
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_the_formula_runs_valid_commands():
    text = (DEPLOY / "homebrew" / "fleetgate.rb").read_text()
    (service,) = re.findall(r'run \[opt_bin/"fleetgate", (.*)\]', text)
    check_command([word.strip('"') for word in service.split(", ")])
    begun = len(re.findall(r"^ *(?:class|def) .*$|^ *\w+ do$", text, re.MULTILINE))
    assert begun == len(re.findall(r"^ *end$", text, re.MULTILINE))
