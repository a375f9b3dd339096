"""`fleetgate projects` (rule W6): what each project has at the gate, and its fair share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from tests.cli.command_line import Cli, opened

CONFIG = """
[requests]
umans = { cap = 4, on_429 = "step" }
[projects]
web = { weight = 3 }
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def test_w6_projects_are_listed_with_their_part_of_a_shared_pool_and_their_fair_share(cli: Cli):
    cli.configure(CONFIG)
    assert "no project has anything at the gate" in cli.ok("projects")
    me = process_identity.this_process()
    for number, project in enumerate(["docs"] * 4 + ["web"]):
        spec = Spec(("umans/coder",), "requests", project=project, access_key="ci" if project == "web" else "")
        cli.gate.decide([cmd.Acquire(f"request{number}", spec, me)])
    table = [line.split() for line in cli.ok("projects").splitlines()]
    assert table[1] == ["docs", "4", "4", "0", "-", "1", "100", "%,", "fair", "25", "%", "umans"]
    assert (table[2][:4], table[2][-6:]) == (["web", "0", "0", "1"], ["0", "%,", "fair", "75", "%", "umans"])
    _, web = cli.json("projects")["projects"]
    assert web["shares"] == [
        {"pool": "umans", "kind": "requests", "slots": 0, "of": 4, "percent": 0.0, "fair_percent": 75.0}
    ]


def test_w6_a_key_is_listed_with_its_part_and_the_fair_share_of_its_project(cli: Cli):
    cli.configure(CONFIG)
    cli.ok("key", "create", "ci", "--project", "web")
    me = process_identity.this_process()
    for number, (project, key) in enumerate([("web", "ci"), ("docs", "")]):
        spec = Spec(("umans/coder",), "requests", project=project, access_key=key)
        cli.gate.decide([cmd.Acquire(f"request{number}", spec, me)])
    assert "50 %, fair 75 %" in cli.ok("key", "ls")
    (key,) = cli.json("key", "ls")["keys"]
    assert [each["fair_percent"] for each in key["shares"]] == [75.0]
