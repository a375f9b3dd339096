"""Credentials as the gate sees them (rules B3, B4): salted hashes, never a secret, and nothing that blocks."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetgate.config.settings import Provider, Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.core.pools.backoff import NO_CREDENTIAL
from fleetgate.gate.providers import credentials as subject
from fleetgate.gate.providers.credential_owner import read_credential
from fleetgate.gate.providers.credentials import SALT, WELL_KNOWN, Credentials, HeldCredential
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import Log, StoreError
from fleetgate.log.sqlite.log import SqliteLog

SECRET = "sk-umans-0123456789"
OLD = 1_600_000_000  # long ago: what a file says of itself then can be trusted


NONE = HeldCredential(NO_CREDENTIAL)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in {name for names in WELL_KNOWN.values() for name in names}:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    log: Log = MemoryLog() if request.param == "memory" else SqliteLog(str(tmp_path / "s"))
    yield log
    log.close()


def looking(log: Log, **providers: Provider) -> Credentials:
    return Credentials(Settings(providers=providers), Replica(log, "me"))


def by_variable(log: Log) -> Credentials:
    return looking(log, umans=Provider(key_env="UMANS_KEY"))


def by_file(log: Log, path: Path) -> Credentials:
    return looking(log, umans=Provider(credential_file=str(path)))


def written(path: Path, content: str | bytes, at: int = OLD) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (at, at))
    return path


def token(**claims: str) -> str:
    return f"e30.{urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


# The salt.


def test_b3_the_hash_is_salted_with_the_stores_own_salt_and_the_same_in_every_process(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMANS_KEY", SECRET)
    one, two = by_variable(log).used_for("umans/x"), by_variable(log).used_for("umans/y")
    assert one == two
    assert len(one.digest) == 32
    assert SECRET not in str(one)
    elsewhere = by_variable(MemoryLog()).used_for("umans/x")
    assert elsewhere.digest != one.digest, "each store has a salt of its own"


def test_b3_the_salt_is_random_and_outlives_snapshots_and_pruning(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMANS_KEY", SECRET)
    before = by_variable(log).used_for("umans/x")
    salt = log.side_value(*SALT)
    assert salt is not None
    assert len(salt) == 32
    replica = Replica(log, "me")
    for number in range(4):
        replica.decide([cmd.Bypass("me", (), str(number))])
        log.save_snapshot(b"{}", replica.position)
        log.maintain(-1_000_000)
    assert log.side_value(*SALT) == salt
    assert by_variable(log).used_for("umans/x") == before


def test_b3_two_that_need_a_salt_at_once_agree_on_one(log: Log) -> None:
    one, two = Replica(log, "me"), Replica(log, "me")
    first = one.set_side_value_once(*SALT, b"1" * 32)
    assert two.set_side_value_once(*SALT, b"2" * 32) == first == b"1" * 32


def test_b3_a_store_that_fails_makes_a_credential_unknown_and_nothing_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryLog):
        def side_value(self, table: str, key: str) -> bytes | None:
            raise StoreError("the disk is full")

    monkeypatch.setenv("UMANS_KEY", SECRET)
    assert by_variable(Broken()).used_for("umans/x") == HeldCredential()


# Keys in variables.


def test_b3_another_key_is_another_hash_and_has_no_known_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    look = by_variable(MemoryLog())
    monkeypatch.setenv("UMANS_KEY", SECRET)
    first = look.used_for("umans/x")
    monkeypatch.setenv("UMANS_KEY", SECRET + "1")
    second = look.used_for("umans/x")
    assert first.digest != second.digest
    assert first.identity == second.identity == ""


def test_b3_a_known_place_that_is_empty_holds_no_credential_and_an_unknown_place_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog()
    look = by_variable(log)
    assert look.used_for("umans@work/x") == look.used_for("") == HeldCredential()
    assert log.side_value(*SALT) is None, "where there is nothing to know, nothing is written"
    monkeypatch.delenv("UMANS_KEY", raising=False)
    assert look.used_for("umans/x") == NONE
    monkeypatch.setenv("UMANS_KEY", "")
    assert look.used_for("umans/x") == NONE
    monkeypatch.setenv("UMANS_KEY", SECRET)
    assert look.used_for("umans@work/x") == HeldCredential(), "the config names the default account's key"
    assert look.used_for("another/x") == NONE, "opencode keeps logins of any provider"
    assert look.used_for("") == HeldCredential()


@pytest.mark.parametrize("provider", WELL_KNOWN)
def test_b3_well_known_providers_are_found_by_their_usual_variables(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = looking(MemoryLog())
    seen = {look.used_for(f"{provider}/x")}
    assert look.place(provider).state == "unknown", "not set there is not known to be none"
    for name in WELL_KNOWN[provider]:
        monkeypatch.setenv(name, f"key of {name}")
        seen.add(look.used_for(f"{provider}/x"))
    assert len(seen) == 1 + len(WELL_KNOWN[provider]), "a change of any of them is a change"
    assert look.place(provider).state == "found"


def test_b3_what_the_config_names_counts_and_not_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    look = looking(MemoryLog(), openai=Provider(key_env="MY_KEY"))
    monkeypatch.setenv("OPENAI_API_KEY", "something else")
    monkeypatch.delenv("MY_KEY", raising=False)
    assert look.used_for("openai/x") == NONE
    assert "MY_KEY is not set" in look.missing("openai/x")


# Files.


def test_b3_a_file_counts_by_its_content_and_never_by_its_times(tmp_path: Path) -> None:
    path = written(tmp_path / "key", SECRET)
    look = by_file(MemoryLog(), path)
    first = look.used_for("umans/x")
    assert first.digest
    os.utime(path)
    assert look.used_for("umans/x") == first, "touched"
    written(path, SECRET + "\n")
    assert look.used_for("umans/x") == first, "the end of the queue is not part of a key"
    written(path, SECRET[::-1])
    assert look.used_for("umans/x") != first
    written(path, SECRET)
    assert look.used_for("umans/x") == first


def test_b3_a_file_is_read_only_when_its_stat_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "key", SECRET)
    look = by_file(MemoryLog(), path)
    reads: list[str] = []
    real = subject._content

    def reading(path: str) -> bytes:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(subject, "_content", reading)
    first = look.used_for("umans/x")
    assert [look.used_for("umans/x") for _ in range(5)] == [first] * 5
    assert len(reads) == 1
    os.utime(path, (OLD + 1, OLD + 1))
    assert look.used_for("umans/x") == first
    assert len(reads) == 2


def test_b3_a_file_that_was_written_just_now_is_read_again_though_its_stat_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text("one")
    look = by_file(MemoryLog(), path)
    seen = path.stat()
    monkeypatch.setattr(os, "stat", lambda *_: seen)  # as it is within one tick of the file system's clock
    first = look.used_for("umans/x")
    path.write_text("two")
    assert look.used_for("umans/x") != first


@pytest.mark.parametrize(
    "content",
    [b"", b" \n", b'{"tokens": {"acc', b"{" * 100_000, b'{"a": \xff}', b"x" * (subject.LARGEST_FILE + 1)],
    ids=["empty", "blank", "half written", "deep", "not text", "huge"],
)
def test_b3_what_cannot_be_a_whole_credential_is_an_unknown_one(tmp_path: Path, content: bytes) -> None:
    assert by_file(MemoryLog(), written(tmp_path / "key", content)).used_for("umans/x") == HeldCredential()


def test_b3_a_largest_file_is_still_read(tmp_path: Path) -> None:
    assert by_file(MemoryLog(), written(tmp_path / "key", b"x" * subject.LARGEST_FILE)).used_for("umans/x").digest


@pytest.mark.timeout(20)
def test_b3_hostile_places_neither_block_nor_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    file = written(tmp_path / "file", "x")
    places = ["fifo", "folder", "dangling", "loop", "nothing", "file/below", "x" * 300]
    for path in [*(str(tmp_path / place) for place in places), "/dev/zero", "/dev/tty"]:
        used = looking(MemoryLog(), umans=Provider(credential_file=path)).used_for("umans/x")
        assert used == (HeldCredential() if os.path.lexists(path) else NONE), path
    states = [by_file(MemoryLog(), tmp_path / place).place("umans").state for place in places]
    assert states == ["unreadable", "unreadable", "missing", "unreadable", "missing", "missing", "unreadable"]
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert by_file(MemoryLog(), file).used_for("umans/x") == HeldCredential()


def test_b3_a_place_that_became_a_fifo_after_the_look_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert subject._content(str(tmp_path / "fifo")) == b""


def test_b3_a_home_that_is_not_known_makes_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    look = looking(MemoryLog(), umans=Provider(credential_file="~/key"))
    assert look.used_for("umans/x") == HeldCredential()
    assert look.place("umans").state == "unreadable"
    assert look.missing("umans/x") == ""


# Login files of agents, which nobody configured.

CLAUDE_FILE, CODEX_FILE = ".claude/.credentials.json", ".codex/auth.json"
GEMINI_FILE, OPENCODE_FILE = ".gemini/oauth_creds.json", ".local/share/opencode/auth.json"


def logged_in(path: Path, login: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written(path, json.dumps(login))


@pytest.mark.parametrize(
    ("provider", "file", "part"),
    [
        ("anthropic", CLAUDE_FILE, "claudeAiOauth"),
        ("openai", CODEX_FILE, "tokens"),
        ("google", GEMINI_FILE, "x"),
        ("gemini", GEMINI_FILE, "x"),
        ("gemini", OPENCODE_FILE, "google"),
        *((provider, OPENCODE_FILE, provider) for provider in ("anthropic", "openai", "google", "some-other")),
    ],
)
def test_a_new_login_in_an_agents_own_file_ends_the_backoff_of_a_refused_login(
    provider: str, file: str, part: str, tmp_path: Path
) -> None:
    path = tmp_path / "home" / file
    replica = Replica(MemoryLog(), "me")
    look = Credentials(Settings(), replica)
    for before in ({}, {part: {"access": "t1"}}):
        if before:
            logged_in(path, before)
        failing(replica, f"{provider}/x", "auth", look.used_for(f"{provider}/x"))
        assert look.news(replica.state) == [], "the same login, or none"
        logged_in(path, {part: {"access": f"t2 after {before}"}})
        replica.decide(look.news(replica.state))
        assert not replica.state.backoffs
    assert look.place(provider) == (f"{path} is there", "found")
    assert look.used_for(f"{provider}@work/x") == HeldCredential(), "they are of the default account"


@pytest.mark.parametrize(
    ("variable", "file", "provider"),
    [
        ("CLAUDE_CONFIG_DIR", ".credentials.json", "anthropic"),
        ("CODEX_HOME", "auth.json", "openai"),
        ("GEMINI_CLI_HOME", ".gemini/oauth_creds.json", "google"),
        ("XDG_DATA_HOME", "opencode/auth.json", "xai"),
    ],
)
def test_a_login_file_is_looked_for_where_the_agents_variable_says(
    variable: str, file: str, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    logged_in(tmp_path / "elsewhere" / file, {"claudeAiOauth": {"a": 1}, "xai": {"type": "api", "key": "k"}})
    assert looking(MemoryLog()).used_for(f"{provider}/x") != NONE
    monkeypatch.delenv(variable)
    assert looking(MemoryLog()).used_for(f"{provider}/x") == NONE


def test_of_several_logins_a_new_one_counts_and_one_that_went_away_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude, opencode = (tmp_path / "home" / file for file in (CLAUDE_FILE, OPENCODE_FILE))
    logged_in(claude, {"claudeAiOauth": {"accessToken": "t1"}, "organizationUuid": "o1"})
    replica = Replica(MemoryLog(), "me")
    look = Credentials(Settings(), replica)
    alone = look.used_for("anthropic/x")
    assert alone.identity.startswith("organizationUuid:")
    logged_in(opencode, {"anthropic": {"type": "oauth", "access": "t2"}, "openai": {"access": "t3"}})
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    used = look.used_for("anthropic/x")
    assert used.identity == "", "which of them an agent uses is not known"
    failing(replica, "anthropic/x", "auth", used)
    logged_in(opencode, {"anthropic": {"type": "oauth", "access": "t2"}, "openai": {"access": "t4"}})
    logged_in(claude, {"claudeAiOauth": {"accessToken": "t1"}, "mcpOAuth": {"other": "login"}})
    assert look.news(replica.state) == [], "others' logins"
    claude.unlink()
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert look.news(replica.state) == [], "logged out is not logged in"
    logged_in(opencode, {"openai": {"access": "t4"}})
    assert look.news(replica.state) == []
    logged_in(opencode, {"anthropic": {"type": "api", "key": "t5"}})
    replica.decide(look.news(replica.state))
    assert not replica.state.backoffs


def test_a_login_file_that_is_half_written_or_hostile_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "home" / OPENCODE_FILE
    path.parent.mkdir(parents=True)
    for content in (b"", b"[1]", b'{"anthropic": {"acc', b'{"anthropic": "text"}', b"{" * 100_000):
        assert looking(MemoryLog()).used_for("anthropic/x").digest in ("", NO_CREDENTIAL)
        written(path, content)
    path.unlink()
    os.mkfifo(path)
    assert looking(MemoryLog()).used_for("anthropic/x") == HeldCredential()


# Whose account it is.

CODEX = {"tokens": {"account_id": "acc-1", "access_token": "t1", "id_token": token(sub="u1")}}
CLAUDE = {"oauthAccount": {"accountUuid": "u1", "emailAddress": "me@x.org"}}
ORGANIZED = {"oauthAccount": {"organizationUuid": "o1", "accountUuid": "u1", "emailAddress": "me@x.org"}}


@pytest.mark.parametrize(
    ("document", "kind", "name"),
    [
        (CODEX, "tokens.account_id", "acc-1"),
        (CLAUDE, "oauthAccount.accountUuid", "u1"),
        (ORGANIZED, "oauthAccount.organizationUuid", "o1"),
        ({"email": "me@x.org"}, "email", "me@x.org"),
        ({"client_email": "robot@x.org", "private_key": "k"}, "client_email", "robot@x.org"),
        ({"access_token": "t", "id_token": token(sub="u1", email="me@x.org")}, "id_token.sub", "u1"),
        ({"tokens": {"id_token": token(email="me@x.org")}}, "tokens.id_token.email", "me@x.org"),
        ({"umans": {"type": "oauth", "accountId": "a1"}, "email": "else@x.org"}, "accountId", "a1"),
        ({"claudeAiOauth": {"accessToken": "t"}}, "", ""),
        ({"email": 7, "tokens": [1], "oauthAccount": None, "id_token": "no.token"}, "", ""),
        ({"id_token": "a.!!!!.c"}, "", ""),
        ({"id_token": "a.é.c"}, "", ""),
        ({"id_token": f"a.{urlsafe_b64encode(b'[1]').decode()}.c"}, "", ""),
        ({"id_token": f"a.{urlsafe_b64encode(b'[' * 9000).decode()}.c"}, "", ""),
    ],
)
def test_b3_the_account_that_a_credential_names_is_found(document: dict[str, Any], kind: str, name: str) -> None:
    read = read_credential(json.dumps(document).encode(), "umans")
    assert (read.kind, read.name) == (kind, name)


def test_b3_a_refreshed_token_is_another_credential_of_the_same_account(tmp_path: Path) -> None:
    path = written(tmp_path / "auth.json", json.dumps(CODEX))
    look = by_file(MemoryLog(), path)
    before = look.used_for("umans/x")
    written(path, json.dumps({"tokens": {"account_id": "acc-1", "access_token": "t2"}}))
    refreshed = look.used_for("umans/x")
    written(path, json.dumps({"tokens": {"account_id": "acc-2", "access_token": "t3"}}))
    other = look.used_for("umans/x")
    assert len({before.digest, refreshed.digest, other.digest}) == 3
    assert before.identity == refreshed.identity != other.identity
    assert before.identity.startswith("tokens.account_id:")
    assert "acc-1" not in before.identity


def test_b3_in_a_file_for_several_providers_only_its_own_part_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "auth.json", json.dumps({"umans": {"key": "k1"}, "other": {"key": "k2"}}))
    look = by_file(MemoryLog(), path)
    before = look.used_for("umans/x")
    written(path, json.dumps({"other": {"key": "k3"}, "umans": {"key": "k1"}}, indent=2))
    assert look.used_for("umans/x") == before
    written(path, json.dumps({"other": {"key": "k3"}, "umans": {"key": "k4"}}))
    assert look.used_for("umans/x") != before


# What the engine is told.


def failing(replica: Replica, model: str, outcome: str, held: HeldCredential) -> None:
    ident = f"r{replica.state.seq}"
    replica.decide([cmd.Acquire(ident, Spec((model,), "requests"), "me")])
    replica.decide([cmd.Release(ident, outcome, credential=held.digest, identity=held.identity)])


def test_b3_only_what_ends_a_backoff_is_told_and_without_backoffs_no_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "auth.json", json.dumps(CODEX))
    replica = Replica(MemoryLog(), "me")
    look = Credentials(Settings(providers={"umans": Provider(credential_file=str(path))}), replica)
    used = look.used_for("umans/x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_: pytest.fail("nobody asked"))
        assert look.news(replica.state) == []
        failing(replica, "other/x", "auth", HeldCredential())
        assert look.news(replica.state) == []
    failing(replica, "umans/x", "auth", used)
    assert look.news(replica.state) == [], "it is still the same"
    path.unlink()
    assert look.news(replica.state) == [], "logged out is not logged in"
    written(path, json.dumps({"tokens": {"account_id": "acc-1", "access_token": "t2"}}))
    (told,) = look.news(replica.state)
    assert (told.account, told.identity) == ("umans", used.identity)
    replica.decide([told])
    assert list(replica.state.backoffs) == ["other"]
    assert look.news(replica.state) == []


def test_b3_another_account_is_told_also_for_backoffs_of_models(tmp_path: Path) -> None:
    path = written(tmp_path / "auth.json", json.dumps(CODEX))
    replica = Replica(MemoryLog(), "me")
    look = Credentials(Settings(providers={"umans": Provider(credential_file=str(path))}), replica)
    failing(replica, "umans/x", "overloaded", look.used_for("umans/x"))
    written(path, json.dumps({"tokens": {"account_id": "acc-1", "access_token": "t2"}}))
    assert look.news(replica.state) == [], "a rate limit does not end because a token was refreshed"
    written(path, json.dumps({"tokens": {"account_id": "acc-2", "access_token": "t3"}}))
    replica.decide(look.news(replica.state))
    assert not replica.state.backoffs


def test_b3_each_account_has_the_credential_that_the_config_names_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = {"umans": Provider(key_env="UMANS_KEY"), "umans@work": Provider(key_env="WORK_KEY")}
    look = Credentials(Settings(providers=providers), Replica(MemoryLog(), "me"))
    monkeypatch.setenv("UMANS_KEY", SECRET)
    monkeypatch.delenv("WORK_KEY", raising=False)
    assert look.used_for("umans/x").digest
    assert look.used_for("umans@work/x") == NONE
    assert look.missing("umans/x") == ""
    assert 'correct key_env of [providers."umans@work"]' in look.missing("umans@work/x")
    monkeypatch.setenv("WORK_KEY", SECRET)
    assert look.used_for("umans@work/x") == look.used_for("umans/x"), "the same key is the same credential"


# What is known to be missing.


def test_b4_only_what_the_config_names_can_be_known_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UMANS_KEY", raising=False)
    look = by_variable(MemoryLog())
    told = "the variable UMANS_KEY is not set: export it, or correct key_env of [providers.umans] in the config"
    assert look.missing("umans/x") == told
    assert look.missing("umans@work/x") == "", "nobody said where that account's is"
    assert look.missing("openai/x") == "", "an unknown location is not no credentials"
    monkeypatch.setenv("UMANS_KEY", "")
    assert look.missing("umans/x") == told
    monkeypatch.setenv("UMANS_KEY", SECRET)
    assert look.missing("umans/x") == ""
    path = tmp_path / "auth.json"
    look = by_file(MemoryLog(), path)
    assert look.missing("umans/x").startswith(f"there is no file {path}: log in, or correct credential_file")
    written(path, "")
    assert look.missing("umans/x") == "", "it is there, whatever is in it"
