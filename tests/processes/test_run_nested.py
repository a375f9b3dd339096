"""A run inside a run: never a silent deadlock, and never two agents more than a cap allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import join

import pytest

from tests.processes.fleet import FLEETGATE, Fleet

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(f'[agents]\nhost = 1\n"{OPUS}" = 1\n"{SONNET}" = 1\n') as fleet:
        yield fleet


def inner(*arguments: str) -> tuple[str, str, str]:
    return "sh", "-c", join([*FLEETGATE, "run", *arguments])


def test_an_inner_run_that_could_never_enter_is_refused_at_once_with_what_works(fleet: Fleet) -> None:
    run = fleet.done("--", *inner("--", "true"))
    assert run.code == 75
    assert "the enclosing run" in run.err
    assert "start the outer run with --supervisor, or use --share-slot here" in run.err
    told = json.loads(fleet.done("--", *inner("--no-wait", "--json", "--", "true")).out)
    assert told["reason"]["code"] == "nested"
    three_deep = join([*FLEETGATE, "run", "--supervisor", "--", "sh", "-c", join([*FLEETGATE, "run", "--", "true"])])
    assert fleet.done("--", "sh", "-c", three_deep).code == 75, "the outermost one has the slot"
    fleet.check_log()


def test_an_inner_run_enters_beside_one_that_only_delegates(fleet: Fleet) -> None:
    assert fleet.done("--supervisor", "--", *inner("--", "true")).code == 0
    refused = fleet.done("--supervisor", "-m", OPUS, "--", *inner("-m", OPUS, "--", "true"))
    assert refused.code == 75
    assert f"raise the cap of {OPUS}" in refused.err
    assert (
        fleet.done("--supervisor", "-m", OPUS, "--", *inner("-m", f"{OPUS},{SONNET}", "--any", "--", "true")).code == 0
    )


def test_an_inner_run_that_shares_the_slot_of_the_outer_one_runs_in_it(fleet: Fleet) -> None:
    run = fleet.done("-m", OPUS, "--", *inner("--share-slot", "-m", OPUS, "--", "printenv", "FLEETGATE_MODEL"))
    assert (run.code, run.out) == (0, f"{OPUS}\n")
    assert fleet.done("--", *inner("--share-slot", "--", "sh", "-c", "exit 7")).code == 7


def test_two_inner_runs_share_a_slot_one_after_the_other(fleet: Fleet) -> None:
    one = join([*FLEETGATE, "run", "--share-slot", "--", *fleet.sleeper("one", 1.0)])
    two = join([*FLEETGATE, "run", "--share-slot", "--", *fleet.sleeper("two", 0.1)])
    assert fleet.done("--", "sh", "-c", f"{one} & {two} & wait").code == 0
    assert len(fleet.lives()) == 2
    assert fleet.most_at_once() == 1


def test_a_slot_that_is_not_the_same_is_not_shared(fleet: Fleet) -> None:
    other = fleet.done("-m", SONNET, "--", *inner("--share-slot", "-m", OPUS, "--", "true"))
    assert other.code == 64
    assert f"{OPUS} needs a slot of {OPUS}" in other.err
    alone = fleet.done("--share-slot", "--", "true")
    assert alone.code == 64
    assert "there is no enclosing" in alone.err
