"""`acquire`, `release`, `cancel` and `bump`, one process at a time (rules L1, L3, L4, A9, A10, O5).

What they do between processes is in tests/processes/test_acquire.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fleetgate.cli.commands.release import OUTCOMES
from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import ALPHABET, LENGTH
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
ME = str(os.getpid())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def full(cli: Cli) -> Cli:
    """One slot, which is taken."""
    cli.ok("cap", "set", "host", "1")
    cli.occupy()
    return cli


# acquire


def test_l4_acquire_prints_nothing_but_the_id_of_a_lease_tied_to_the_process(cli: Cli):
    ident = cli.ok("acquire", "-m", OPUS, "--pid", ME).removesuffix("\n")
    assert len(ident) == LENGTH
    assert set(ident) <= set(ALPHABET)
    lease = cli.lease(ident)
    assert lease.lives_with == process_identity.identify(os.getpid())
    assert (lease.model, lease.ticket.spec.kind) == (OPUS, "agents")
    assert lease.ticket.command == process_identity.describe(os.getpid())


def test_l4_without_a_pid_the_lease_is_tied_to_the_parent_of_fleetgate(cli: Cli):
    ident = cli.ok("acquire").strip()
    assert process_identity.pid_of(cli.lease(ident).lives_with) == os.getppid()


def test_o5_acquire_in_json_has_lease_model_and_waited(cli: Cli):
    told = cli.json("acquire", "-m", OPUS, "--pid", ME)
    assert told.keys() == {"lease", "model", "waited_s"}
    assert (told["model"], told["waited_s"] >= 0) == (OPUS, True)
    assert told["lease"] in cli.state.leases
    assert cli.json("acquire", "--pid", ME)["model"] is None


def test_o5_a_refusal_exits_75_with_its_reason_and_prints_no_id(full: Cli):
    said = full("acquire", "--no-wait", "--pid", ME)
    assert (said.code, said.out) == (75, "")
    assert "not admitted: 1 of 1 slots of host:" in said.err
    said = full("acquire", "--no-wait", "--json", "--pid", ME)
    assert (said.code, said.err) == (75, "")
    assert said.json.keys() == {"deferred", "reason", "position", "estimate_s", "of", "pool"}
    assert said.json["deferred"] is True
    assert said.json["reason"]["code"] == "concurrency_cap"
    assert said.json["reason"]["pools"] == [f"host:{full.gate.host}"]


def test_o5_one_that_waited_in_vain_is_told_its_position_and_leaves_the_queue(full: Cli):
    full.stand()
    said = full("acquire", "--wait", "50ms", "--json", "--quiet", "--pid", ME)
    assert (said.code, said.json["position"]) == (75, 2)
    assert "no slot within 50ms: " in said.json["reason"]["text"]
    assert len(full.state.tickets) == 1


def test_n4_acquire_counts_agents_unless_told_otherwise(cli: Cli):
    cli.ok("cap", "set", "umans", "1", "--kind", "requests")
    first, second = (cli.ok("acquire", "-m", "umans/coder").strip() for _ in range(2))
    assert cli.lease(first).ticket.spec.kind == cli.lease(second).ticket.spec.kind == "agents"
    cli.ok("acquire", "-m", "umans/coder", "--kind", "requests", "--pid", ME)
    assert cli("acquire", "-m", "umans/coder", "--kind", "requests", "--no-wait").code == 75


def test_a10_a_key_that_is_running_is_refused_with_its_owner(cli: Cli):
    owner = cli.ok("acquire", "--key", "nightly", "--pid", ME).strip()
    said = cli("acquire", "--key", "nightly", "--json", "--pid", ME)
    assert said.code == 75
    assert said.json["reason"]["code"] == "key_taken"
    assert owner in said.json["reason"]["text"]
    assert f"process {ME} on" in said.json["reason"]["text"]


def test_b5_with_any_the_next_candidate_is_taken_when_the_first_is_full(cli: Cli):
    cli.ok("cap", "set", "a/*", "1", "--kind", "agents")
    cli.occupy("a/one")
    assert cli("acquire", "-m", "a/one,b/two", "--no-wait").code == 75
    assert cli.json("acquire", "-m", "a/one,b/two", "--no-wait", "--any")["model"] == "b/two"


def test_c1_without_a_model_the_candidates_of_the_file_are_asked_for(cli: Cli):
    cli.configure('models = ["umans/coder"]\n')
    assert cli.json("acquire", "--pid", ME)["model"] == "umans/coder"
    cli.env("FLEETGATE_MODELS", "openai/gpt-5")
    assert cli.json("acquire", "--pid", ME)["model"] == "openai/gpt-5"


def test_a4_priority_since_slots_and_project_go_with_the_request(cli: Cli):
    options = ["--priority", "-5", "--since", "10m", "--slots", "2", "--project", "site", "--expires", "1h"]
    ticket = cli.lease(cli.ok("acquire", *options, "--pid", ME).strip()).ticket
    assert (ticket.priority, ticket.spec.slots, ticket.spec.project) == (-5, 2, "site")
    assert 599_000 < ticket.queued_at - ticket.since < 660_000
    assert ticket.expires_at - ticket.queued_at == 3_600_000


def test_c3_under_bypass_an_id_is_printed_without_asking_and_its_release_is_harmless(full: Cli):
    full.env("FLEETGATE_BYPASS", "1")
    told = full.json("acquire", "-m", OPUS, "--pid", ME)
    assert (told["model"], told["bypassed"]) == (OPUS, True)
    assert isinstance(full.events()[-1], ev.Bypassed)
    assert full.ok("release", told["lease"]) == f"{told['lease']} was already released\n"


# release


def test_l4_release_gives_the_slot_to_the_next_in_the_queue_and_says_so(full: Cli):
    (holder,) = full.state.leases
    waits = full.stand()
    out = full.ok("release", holder)
    assert out.startswith(f"released {holder} after ")
    assert out.endswith("; 1 waiting started\n")
    assert list(full.state.leases) == [waits]


def test_l1_releasing_twice_is_harmless_and_says_so(cli: Cli):
    ident = cli.occupy()
    cli.ok("release", ident)
    before = cli.length()
    assert cli.ok("release", ident) == f"{ident} was already released\n"
    assert cli.ok("release", ident, "--force") == f"{ident} was already released\n"
    assert cli.json("release", ident)["released"] is False
    assert cli.length() == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_l4_each_of_the_eight_outcomes_is_kept(cli: Cli, outcome: str):
    ident = cli.occupy()
    told = cli.json("release", ident, "--outcome", outcome)
    assert (told["released"], told["outcome"]) == (True, outcome)
    ended = cli.events()[-1]
    assert isinstance(ended, ev.Released)
    assert ended.outcome == outcome


def test_q1_another_outcome_names_the_eight(cli: Cli):
    ident = cli.occupy()
    told = cli.refused("release", ident, "--outcome", "fine")
    assert f"'fine': valid are {', '.join(OUTCOMES)}" in told


def test_p1_a_rate_limited_release_pauses_the_pool_and_lowers_its_limit(cli: Cli):
    cli.ok("cap", "set", "umans", "4", "--kind", "requests", "--on-429", "step")
    ident = cli.occupy("umans/coder", kind="requests")
    out = cli.ok("release", ident, "--outcome", "rate_limited", "--retry-after", "90")
    assert "; umans is paused until " in out
    assert "(in 1m 30s), its limit is now 3 of 4\n" in out


def test_l3_force_takes_back_somebodys_lease_and_the_history_says_who(full: Cli):
    (holder,) = full.state.leases
    waits = full.stand()
    said = full("release", holder[:6], "--force")
    assert said.code == 0
    assert said.out.startswith(f"freed the slot of {holder}, the test (process {ME} on {full.gate.host}), after ")
    assert said.out.endswith("; 1 waiting started\n")
    assert f"process {ME} is still running and no longer counts" in said.err
    taken = next(event for event in full.events() if isinstance(event, ev.Reclaimed))
    assert (taken.id, taken.cause) == (holder, "forced")
    user, _, place = taken.by.partition("@")
    assert user
    assert place == f"{full.gate.host} pid {os.getppid()}"
    assert waits in full.state.leases


def test_l3_a_forced_release_in_json_says_that_it_was(cli: Cli):
    told = cli.json("release", cli.occupy(), "--force")
    assert (told["released"], told["forced"], told["outcome"]) == (True, True, None)


def test_q1_a_ticket_in_the_queue_cannot_be_released(full: Cli):
    waits = full.stand()
    assert f"`fleetgate cancel {waits}`" in full.refused("release", waits)


def test_c6_a_broken_config_file_does_not_keep_a_script_from_releasing(cli: Cli):
    ident = cli.occupy()
    cli.config.write_text("[agents\n")
    assert cli.refused("acquire", code=78)
    assert cli.ok("release", ident).startswith("released")


# cancel and bump


def test_a9_cancel_takes_tickets_out_of_the_queue(full: Cli):
    one, two, three = (full.stand() for _ in range(3))
    out = full.ok("cancel", one, two, one)
    assert out == "".join(
        f"cancelled {ident}: the test (process {ME} on {full.gate.host}) left the queue\n" for ident in (one, two)
    )
    assert list(full.state.tickets) == [three]
    left = [event for event in full.events() if isinstance(event, ev.Cancelled)]
    assert [event.id for event in left] == [one, two]
    assert all("@" in event.by for event in left)
    assert full.json("cancel", three) == {"cancelled": [three]}


def test_q1_if_one_of_several_is_not_in_the_queue_none_is_cancelled(full: Cli):
    waits = full.stand()
    (holder,) = full.state.leases
    assert "no ticket or lease 'nothere'" in full.refused("cancel", waits, "nothere")
    assert f"`fleetgate release {holder} --force`" in full.refused("cancel", waits, holder)
    assert waits in full.state.tickets


def test_a9_bump_moves_a_ticket_to_the_front_and_says_where_it_is(full: Cli):
    first, second = full.stand(), full.stand()
    host = full.gate.host
    told = f"{second} is now at position 1 of 2 for host:{host}: the test (process {ME} on {host})\n"
    assert full.ok("bump", second) == told
    place = {"position": 1, "of": 2, "pool": f"host:{host}"}
    assert full.json("bump", first) == {"id": first, "priority": 0, "entered": False, **place}
    (holder,) = full.state.leases
    full.ok("release", holder)
    assert first in full.state.leases


def test_a9_bump_with_a_priority_orders_by_it(full: Cli):
    first, second = full.stand(), full.stand()
    assert full.json("bump", second, "--priority", "+10") == {
        "id": second,
        "position": 1,
        "of": 2,
        "pool": f"host:{full.gate.host}",
        "priority": 10,
        "entered": False,
    }
    assert full.json("bump", second, "--priority", "-10")["position"] == 2
    assert first in full.state.tickets


def test_q1_what_has_a_slot_cannot_be_bumped(full: Cli):
    (holder,) = full.state.leases
    assert "is not waiting: it already has a slot" in full.refused("bump", holder)
