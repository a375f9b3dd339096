"""What is meant by a selector, a pool's name, or the beginning of an id (rules N2-N4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.state.state import State
from fleetgate.present.name_lookup import find_id, kind_for, pool_target
from tests.cli.command_line import Cli, opened

FILE = """
[agents]
host = 3
"anthropic/claude-opus-*" = 4
both = 2
[requests]
umans = 4
both = 2
"*/gpt-*" = 2
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.configure(FILE)
        yield cli


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("host", "agents"),
        ("host:box", "agents"),
        ("project", "agents"),
        ("project:site", "agents"),
        ("anthropic/claude-opus-*", "agents"),  # the kind that has such a cap
        ("anthropic@work/claude-opus-*", "agents"),  # a pool that such a cap makes
        ("*/claude-opus-*", "agents"),  # built in
        ("umans", "requests"),
        ("umans@work", "requests"),
        ("*/gpt-*:openai", "requests"),
        ("anthropic/claude-opus-4-6", "requests"),  # no such cap
        ("nobody", "requests"),
    ],
)
def test_n4_the_kind_is_agents_for_host_and_project_else_that_of_the_cap_else_requests(
    cli: Cli, target: str, kind: str
):
    assert kind_for(cli.state, target) == kind
    assert kind_for(cli.state, target, "agents") == "agents"
    assert kind_for(cli.state, target, "requests") == "requests"


def test_n4_a_bad_kind_names_the_valid_ones(cli: Cli):
    with pytest.raises(BadRequest, match="'tokens': valid are agents and requests"):
        kind_for(cli.state, "umans", "tokens")


def test_n4_a_selector_that_is_capped_for_both_kinds_asks_for_the_kind(cli: Cli):
    with pytest.raises(BadRequest, match="say --kind agents or --kind requests"):
        kind_for(cli.state, "both")


def test_n4_a_cap_that_was_removed_is_still_of_its_kind(cli: Cli):
    cli.ok("cap", "rm", "anthropic/claude-opus-*")
    assert kind_for(cli.state, "anthropic/claude-opus-*") == "agents"


def test_n4_a_cooldown_without_a_cap_says_the_kind_too(cli: Cli):
    cli.ok("cooldown", "openrouter", "1s", "--kind", "agents")
    assert kind_for(cli.state, "openrouter") == "agents"


def test_n2_host_means_the_pool_of_this_machine(cli: Cli):
    assert pool_target(cli.state, "agents", "host", "box") == "host:box"
    assert pool_target(cli.state, "agents", "host:other", "box") == "host:other"


def test_n3_a_pool_is_named_as_status_lists_it_and_the_default_account_may_be_written(cli: Cli):
    for name in ("umans", "umans@work", "*/gpt-*:openai"):
        assert pool_target(cli.state, "requests", name, "box") == name
    assert pool_target(cli.state, "requests", "umans@default", "box") == "umans"


def test_n3_a_selector_means_all_its_pools_once_there_are_any(cli: Cli):
    with pytest.raises(NotFound, match=r"no pool yet: .* name it as '\*/gpt-\*:anthropic'"):
        pool_target(cli.state, "requests", "*/gpt-*", "box")
    cli.occupy("openai/gpt-5", kind="requests")
    assert pool_target(cli.state, "requests", "*/gpt-*", "box") == "*/gpt-*"


def test_q1_a_pool_that_no_cap_makes_is_answered_with_those_that_are_there(cli: Cli):
    with pytest.raises(NotFound, match=r"'nope'; pools: .*umans \(requests\)"):
        pool_target(cli.state, "requests", "nope", "box")
    with pytest.raises(NotFound, match="there is one with --kind requests"):
        pool_target(cli.state, "agents", "umans", "box")
    with pytest.raises(NotFound, match=r"is a model, not a pool; it takes .* anthropic/claude-opus-\* \(agents\)"):
        pool_target(cli.state, "requests", "anthropic/claude-opus-4-6", "box")


def a_state(*idents: str) -> State:
    state = State()
    for ident in idents:
        state.tickets[ident] = Ticket(ident, Spec(), "", 0, 0, 0, 0, 0)
    return state


def test_l3_the_beginning_of_an_id_is_enough_where_it_is_the_only_one():
    state = a_state("abc2345678", "abd2345678", "xyz2345678")
    assert find_id(state, "xyz2") == "xyz2345678"
    assert find_id(state, "abd23") == "abd2345678"
    assert find_id(state, "abc2345678") == "abc2345678"


def test_q1_an_ambiguous_id_names_those_that_it_may_be():
    state = a_state("abcd345678", "abcd999999")
    with pytest.raises(BadRequest, match="abcd345678, abcd999999; type more of it"):
        find_id(state, "abcd")


def test_l6_a_short_word_is_no_beginning_of_an_id_so_that_the_name_of_what_has_ended_means_nothing_else():
    for short in ("a", "ab", "abc"):
        with pytest.raises(NotFound, match=f"no ticket or lease '{short}'"):
            find_id(a_state("abcd345678"), short)


def test_q1_an_unknown_id_says_where_ids_are_listed():
    for nothing in ("q", "", "abc23456789"):
        with pytest.raises(NotFound, match="`fleetgate queue` lists the tickets, `fleetgate ps` the leases"):
            find_id(a_state("abc2345678"), nothing)
