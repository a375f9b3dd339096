"""Y1 and Z3: requests of the library that belong to a conversation keep to one account of a set."""

from __future__ import annotations

from typing import Any

import pytest

import fleetgate
import fleetgate.sync
from fleetgate.core.errors import BadRequest

CONFIG = {
    "accounts": {"anthropic": {"use": ["work", "spare"]}},
    "requests": {
        "anthropic@work": {"cap": 4, "on_429": "step"},
        "anthropic@spare": {"cap": 4, "on_429": "step"},
    },
}
MODEL = "anthropic/claude-opus-4-6"


def account(lease: Any) -> str:
    return str(lease.model).partition("/")[0].removeprefix("anthropic@")


async def test_Z3_requests_of_one_conversation_use_one_account(store: str) -> None:
    async with fleetgate.open_gate(store, config=CONFIG) as gate:
        homes: dict[str, list[str]] = {"a": [], "b": []}
        for talk in ("a", "b", "b", "b", "a", "a"):
            async with gate.lease(MODEL, conversation=talk) as lease:
                homes[talk].append(account(lease))
        assert {talk: set(accounts) for talk, accounts in homes.items()} == {"a": {"work"}, "b": {"spare"}}
        tried = await gate.try_lease(MODEL, conversation="b")
        assert not isinstance(tried, fleetgate.Deferred)
        async with tried:
            assert account(tried) == "spare"


async def test_Z2_requests_without_a_conversation_use_the_account_with_the_most_left(store: str) -> None:
    async with fleetgate.open_gate(store, config=CONFIG) as gate, gate.lease(MODEL) as one, gate.lease(MODEL) as other:
        assert {account(one), account(other)} == {"work", "spare"}


def test_Y2_Z3_the_same_holds_for_synchronous_code(store: str) -> None:
    with fleetgate.sync.open_gate(store, config=CONFIG) as gate:
        found = []
        for talk in ("a", "b", "a", "b"):
            with gate.lease(MODEL, conversation=talk) as lease:
                found.append(account(lease))
        tried = gate.try_lease(MODEL, conversation="b")
        assert not isinstance(tried, fleetgate.Deferred)
        with tried:
            found.append(account(tried))
        assert found == ["work", "spare", "work", "spare", "spare"]


async def test_Q1_a_conversation_that_cannot_be_one_is_refused(store: str) -> None:
    async with fleetgate.open_gate(store, config=CONFIG) as gate:
        with pytest.raises(BadRequest):
            await gate.try_lease(MODEL, conversation="x" * 201)
        with pytest.raises(BadRequest):
            await gate.try_lease(MODEL, conversation=7)  # type: ignore[arg-type]
