"""The class of a request (rule W4): what `run`, `acquire`, `submit` and `[classes]` make it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import CLASSES, Spec
from tests.cli.command_line import Cli, opened


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def class_of_job(cli: Cli, *argv: str) -> str:
    ident = cli.ok("submit", *argv, "--", "true").strip()
    found = {job["id"]: job["class"] for job in cli.json("jobs")["jobs"]}
    assert cli.json("show", ident)["class"] == found[ident]
    return str(found[ident])


def class_of_slot(cli: Cli, *argv: str) -> str:
    ident = cli.json("acquire", "--pid", "1", *argv)["lease"]
    found = {lease["id"]: lease["class"] for lease in cli.json("ps")["leases"]}
    return str(found[ident])


def test_w4_a_job_is_batch_unless_it_says_otherwise(cli: Cli):
    assert class_of_job(cli) == "batch"
    assert class_of_job(cli, "--class", "interactive") == "interactive"


def test_w4_a_slot_of_a_script_is_normal_unless_it_says_otherwise(cli: Cli):
    cli.configure("[agents]\nhost = 9\n")
    assert class_of_slot(cli) == "normal"
    assert class_of_slot(cli, "--batch") == "batch"
    assert class_of_slot(cli, "--class", "interactive") == "interactive"


def test_w4_the_config_names_the_class_of_a_project_and_a_request_may_name_another(cli: Cli):
    cli.configure('[agents]\nhost = 9\n[classes]\nweb = "interactive"\nnightly = "batch"\n')
    assert class_of_slot(cli, "--project", "nightly") == "batch"
    assert class_of_slot(cli, "--project", "nightly", "--class", "normal") == "normal"
    assert class_of_job(cli, "--project", "web") == "interactive"
    assert class_of_job(cli, "--project", "web", "--class", "batch") == "batch"


@pytest.mark.parametrize("argv", [("acquire",), ("capacity",), ("submit", "--", "true")])
def test_w4_an_unknown_class_is_refused_with_the_valid_ones(cli: Cli, argv: tuple[str, ...]):
    text = cli.refused(argv[0], "--class", "urgent", *argv[1:])
    assert "urgent" in text
    assert all(name in text for name in CLASSES)


def test_w4_two_classes_at_once_are_refused(cli: Cli):
    assert "one of the two" in cli.refused("acquire", "--batch", "--class", "normal")
    assert class_of_slot(cli, "--batch", "--class", "batch") == "batch"


def test_w4_listings_show_an_unusual_class(cli: Cli):
    cli.configure("[agents]\nhost = 1\n")
    cli.gate.one(cmd.Acquire("first00001", Spec(host=cli.gate.host, work_class="batch"), cli.gate.me))
    cli.gate.one(cmd.Acquire("second0001", Spec(host=cli.gate.host, work_class="interactive"), cli.gate.me))
    assert "batch" in cli.ok("ps")
    assert "interactive" in cli.ok("queue")
    assert [ticket["class"] for ticket in cli.json("queue")["tickets"]] == ["interactive"]


def test_w4_a_bad_class_in_the_config_names_the_valid_ones(cli: Cli):
    cli.config.write_text('[classes]\nweb = "fast"\n')
    said = cli("config", "check")
    assert said.code == 78
    assert all(name in said.err for name in CLASSES)
