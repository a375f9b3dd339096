"""Other names of a provider mean the same provider, wherever they are said; old logs are read as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fleetgate
from fleetgate.config.environment import Environment
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import load
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.model_names import ALIASES, canonical, names_of, parse_model, parse_selector, read_model
from fleetgate.core.state.state import State


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("gemini", "google"),
        ("gemini/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("gemini@work/gemini-*", "google@work/gemini-*"),
        ("gemini@work", "google@work"),
        ("amazon-bedrock/anthropic.claude", "bedrock/anthropic.claude"),
        ("azure-openai", "azure"),
        ("openrouter/google/gemini", "openrouter/google/gemini"),
        ("umans/gemini", "umans/gemini"),
        ("*/gemini-*", "*/gemini-*"),
        ("host", "host"),
        ("", ""),
    ],
)
def test_a_name_that_begins_with_an_alias_begins_with_the_providers_own_name(text: str, known: str) -> None:
    assert canonical(text) == known
    assert canonical(known) == known


def test_the_table_leads_to_names_that_are_no_aliases() -> None:
    assert not set(ALIASES.values()) & set(ALIASES)
    assert names_of("google")[0] == "google"
    assert "gemini" in names_of("google")
    assert str(read_model("gemini@work/x")) == "google@work/x"


def test_the_config_knows_one_provider(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        """
        models = ["gemini/gemini-2.5-pro"]
        [requests]
        gemini = 1
        "gemini/gemini-2.5-*" = 2
        [providers.gemini]
        key_env = "MY_KEY"
        [providers."gemini@work"]
        key_env = "WORK_KEY"
        [fallback]
        "gemini/a" = ["google/b"]
        """
    )
    loaded = load(str(path))
    assert loaded is not None
    settings = loaded.settings
    assert settings.models == ("google/gemini-2.5-pro",)
    assert [rule.selector for rule in settings.rules] == ["google", "google/gemini-2.5-*"]
    apis = {name: given.api for name, given in settings.providers.items()}
    assert apis == {"google": "gemini", "google@work": "gemini"}
    assert settings.fallback == {"google/a": ("google/b",)}


@pytest.mark.parametrize("text", ["[requests]\ngoogle = 1\ngemini = 2", "[providers.gemini]\n[providers.google]"])
def test_both_names_at_once_are_a_mistake_that_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="another name of google"):
        load(str(path))


def test_the_environment_knows_one_provider() -> None:
    environ = {"FLEETGATE_MODELS": "gemini/a,google/b", "FLEETGATE_REQUESTS": "gemini=3"}
    found = Environment.read(environ)
    assert found.models == ("google/a", "google/b")


def test_library_caps_and_leases_are_of_one_provider() -> None:
    async def scene() -> None:
        async with fleetgate.open_gate("memory://") as gate:
            await gate.set_cap("gemini", 1)
            async with gate.lease("google/gemini-2.5-pro") as lease:
                assert lease.model == "google/gemini-2.5-pro"
                assert not await gate.try_lease("gemini/gemini-2.5-flash")
            assert [pool.pool for pool in await gate.status() if pool.kind == "requests"] == ["google"]

    asyncio.run(scene())


def test_a_cap_of_an_old_log_holds_for_both_names() -> None:
    for selector in ("gemini", "google", "gemini/*", "gemini@*"):
        for model in ("gemini/old", "google/new"):
            assert parse_selector(selector).matches(parse_model(model))


def test_a_log_with_the_old_name_is_replayed() -> None:
    engine, twin = Engine(me="me"), State()
    for command in (
        cmd.SetRule(Rule("requests", "gemini", cap=2, on_429="fixed", cooldown_ms=0)),
        cmd.Acquire("1", Spec(models=("gemini/old",), kind="requests"), "me", True, 1),
        cmd.BackOff("gemini/other", "overloaded", 60_000),
    ):
        for event in engine.handle(command, 10):
            twin.apply(event, 10)
    assert twin.leases["1"].model == "gemini/old"
    assert twin.export(10) == engine.state.export(10)
    assert [pool.id for pool in twin.pools.values() if pool.kind == "requests"] == ["google"]
    engine.handle(cmd.Acquire("2", Spec(models=("google/new",), kind="requests"), "me", True, 1), 11)
    engine.handle(cmd.Acquire("3", Spec(models=("gemini/old",), kind="requests"), "me", True, 1), 12)
    assert sorted(engine.state.leases) == ["1", "2"], "its cap holds for all of them together"


def test_a_backoff_of_an_old_log_can_be_cleared_by_its_name() -> None:
    engine = Engine(me="me")
    twin = engine.state
    twin.apply(ev.BackedOff("gemini", "account", "auth", 0, 3_600_000, ""), 0)
    engine.handle(cmd.EndBackoff("gemini"), 1)
    assert not twin.backoffs
