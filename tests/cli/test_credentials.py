"""What a changed or missing credential does to backoffs and candidates (rules B3, B4), by the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.providers.credentials import WELL_KNOWN
from tests.cli.command_line import Cli, opened

OPUS, SONNET, GPT = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "openai/gpt-5"
SECRET = "sk-ant-oat01-verysecretindeed"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    for name in {"MY_KEY", *(name for names in WELL_KNOWN.values() for name in names)}:
        monkeypatch.delenv(name, raising=False)
    with opened(monkeypatch, capsys) as cli:
        openai = '[providers.openai]\nkey_env = "MY_KEY"\n'
        cli.configure(f'[providers.anthropic]\ncredential_file = "{cli.folder}/auth.json"\n{openai}')
        yield cli


def login(cli: Cli, token: str, account: str = "acc-1") -> None:
    document = {"tokens": {"account_id": account, "access_token": token}}
    (cli.folder / "auth.json").write_text(json.dumps(document))


def fails(cli: Cli, model: str, outcome: str) -> None:
    ident = cli.ok("acquire", "-m", model, "--pid", str(os.getpid())).strip()
    cli.ok("release", ident, "--outcome", outcome)


def keys(cli: Cli) -> list[str]:
    return [backoff["key"] for backoff in cli.json("backoff", "ls")["backoffs"]]


@pytest.mark.parametrize("look", [("backoff", "ls"), ("select", "-m", OPUS), ("status",), ("queue",)])
def test_b3_a_touched_file_ends_nothing_and_a_new_login_ends_the_auth_backoff(cli: Cli, look: tuple[str, ...]) -> None:
    login(cli, SECRET)
    fails(cli, OPUS, "auth")
    assert keys(cli) == ["anthropic"]
    os.utime(cli.folder / "auth.json")
    cli(*look)
    assert list(cli.state.backoffs) == ["anthropic"], "a mere mtime"
    login(cli, "another")
    cli.ok(*look)
    assert not cli.state.backoffs
    assert cli.events()[-1] == ev.BackoffEnded("anthropic", "credential")
    assert "anthropic may be used again (the credential has changed)" in cli.ok("history")


def test_b3_who_asks_for_a_slot_is_not_refused_for_a_login_that_is_over(cli: Cli) -> None:
    login(cli, SECRET)
    fails(cli, OPUS, "auth")
    refused = cli("acquire", "-m", SONNET, "--pid", str(os.getpid()))
    assert refused.code == 75
    assert "log in again" in refused.err
    assert "fleetgate backoff clear anthropic" in refused.err
    login(cli, "another")
    cli.ok("acquire", "-m", SONNET, "--pid", str(os.getpid()))


def test_b3_another_key_in_the_environment_ends_the_auth_backoff(cli: Cli) -> None:
    cli.env("MY_KEY", SECRET)
    fails(cli, GPT, "auth")
    assert keys(cli) == ["openai"]
    cli.unset("MY_KEY")
    assert keys(cli) == ["openai"], "none at all is not another one"
    cli.env("MY_KEY", SECRET + "2")
    assert keys(cli) == []


def test_b3_a_refreshed_token_ends_no_rate_limit_and_another_account_ends_them_all(cli: Cli) -> None:
    login(cli, SECRET)
    leases = [cli.ok("acquire", "-m", model, "--pid", str(os.getpid())).strip() for model in (OPUS, SONNET)]
    cli.ok("release", leases[0], "--outcome", "rate_limited")
    cli.ok("release", leases[1], "--outcome", "usage_window")
    cli.ok("backoff", "set", "anthropic/claude-haiku-4-5", "overloaded")
    login(cli, "refreshed")
    assert keys(cli) == ["anthropic", "anthropic/claude-haiku-4-5", OPUS]
    login(cli, "other", "acc-2")
    assert keys(cli) == ["anthropic/claude-haiku-4-5"], "a person's wish stays"
    assert f"{OPUS} may be used again (the credential names another account)" in cli.ok("history")


def test_b3_what_a_person_sets_for_auth_ends_with_the_credential_that_was_there_then(cli: Cli) -> None:
    login(cli, SECRET)
    assert "or until its credential changes" in cli.ok("backoff", "set", OPUS, "auth_error")
    (listed,) = cli.json("backoff", "ls")["backoffs"]
    assert listed["ends_with_credential"] is True
    assert "or new login" in cli.ok("backoff", "ls")
    login(cli, "another")
    assert keys(cli) == []
    cli.ok("backoff", "set", "nobody@work/x", "auth")
    assert cli.json("backoff", "ls")["backoffs"][0]["ends_with_credential"] is False


def test_b3_no_secret_is_in_any_file_of_the_store_nor_in_any_output(cli: Cli) -> None:
    login(cli, SECRET, "account-of-mine")
    cli.env("MY_KEY", SECRET + "2")
    fails(cli, OPUS, "auth")
    fails(cli, GPT, "auth")
    outputs = [("history", "--json"), ("status", "--json"), ("backoff", "ls", "--json"), ("doctor", "--json")]
    shown = "".join(cli.ok(*each) for each in outputs)
    login(cli, SECRET + "3", "account-of-mine")
    shown += cli.ok("select", "-m", OPUS)
    cli.close()
    files = [path for path in (cli.folder / "s").rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files)
    assert b"backed_off" in stored, "this is where it would be"
    for secret in (SECRET, "account-of-mine"):
        assert secret.encode() not in stored
        assert secret not in shown


def test_b3_releasing_works_with_a_config_that_cannot_be_read(cli: Cli) -> None:
    ident = cli.ok("acquire", "-m", OPUS, "--pid", str(os.getpid())).strip()
    cli.config.write_text("= nonsense")
    cli.ok("release", ident, "--outcome", "auth")


# B4: known to have no credentials.


def test_b4_a_provider_known_to_have_no_credentials_is_passed_over_and_nothing_is_recorded(cli: Cli) -> None:
    login(cli, SECRET)
    before = cli.length()
    assert cli.ok("select", "-m", f"{GPT},{OPUS}") == f"{OPUS}\n"
    assert cli.length() == before
    assert cli.ok("select", "-m", f"{GPT},{OPUS}", "--rotate") == f"{OPUS}\n"
    assert cli.ok("select", "-m", f"{GPT},groq/fast,{OPUS}") == "groq/fast\n", "unknown is not none"
    cli.env("MY_KEY", SECRET)
    assert cli.ok("select", "-m", f"{GPT},{OPUS}") == f"{GPT}\n"
    assert not cli.state.backoffs


def test_b4_none_left_exits_75_with_each_models_reason(cli: Cli) -> None:
    cli.ok("backoff", "set", "groq/fast", "overloaded")
    said = cli("select", "-m", f"{GPT},{OPUS},groq/fast")
    assert (said.code, said.out) == (75, "")
    gpt, opus, groq = said.err.splitlines()
    assert gpt.startswith(f"fleetgate: {GPT}: no credentials: the variable MY_KEY is not set: export it, or")
    assert opus.startswith(f"fleetgate: {OPUS}: no credentials: there is no file {cli.folder}/auth.json: log in, or")
    assert groq.startswith("fleetgate: groq/fast: overloaded of groq/fast, ")
    told = cli("select", "-m", f"{GPT},groq/fast", "--json").json
    assert [each["reason"]["code"] for each in told["unusable"]] == ["no_credentials", "backoff"]
    assert cli("select", "-m", f"{GPT},{OPUS}", "--rotate").code == 75


def test_b4_acquire_takes_the_first_candidate_that_has_credentials(cli: Cli) -> None:
    login(cli, SECRET)
    assert cli.json("acquire", "-m", f"{GPT},{OPUS}", "--pid", str(os.getpid()))["model"] == OPUS


def test_b4_several_candidates_without_any_credentials_are_refused_at_once(cli: Cli) -> None:
    before = cli.length()
    said = cli("acquire", "-m", f"{GPT},openai/gpt-4,{OPUS}", "--pid", str(os.getpid()), "--json")
    assert said.code == 75
    reason = said.json["reason"]
    assert reason["code"] == "no_credentials"
    assert f"{GPT}, openai/gpt-4: the variable MY_KEY is not set" in reason["text"]
    assert "auth.json: log in" in reason["text"]
    assert cli.length() == before


def test_b4_a_single_candidate_is_not_held_up_for_a_credential_that_its_agent_may_find_elsewhere(cli: Cli) -> None:
    assert cli.json("acquire", "-m", GPT, "--pid", str(os.getpid()))["model"] == GPT


# What is shown.


def checks(cli: Cli, name: str) -> list[tuple[str, str, str | None]]:
    found = cli.json("doctor")["checks"]
    return [(each["level"], each["text"], each["do"]) for each in found if each["check"] == name]


def test_doctor_says_of_each_provider_whether_a_credential_is_found(cli: Cli) -> None:
    cli.configure(cli.config.read_text() + '[providers.umans]\nbase_url = "https://u.example"\n')
    (anthropic, openai, umans) = checks(cli, "providers")
    assert anthropic[0] == openai[0] == "warn"
    assert "anthropic has no credential: there is no file" in anthropic[1]
    assert "openai has no credential: the variable MY_KEY is not set" in openai[1]
    assert umans[0] == "ok"
    assert "umans: the location of its credential is not configured" in umans[1]
    login(cli, SECRET)
    cli.env("MY_KEY", SECRET)
    assert [level for level, _, _ in checks(cli, "providers")] == ["ok", "ok", "ok"]
    (cli.folder / "auth.json").unlink()
    (cli.folder / "auth.json").mkdir()
    assert "is not a file, so Fleetgate cannot notice a new credential" in checks(cli, "providers")[0][1]
    cli.configure("")
    assert checks(cli, "providers")[0][0] == "ok"


def test_doctor_says_who_is_backed_off_why_until_when_and_how_to_clear_it(cli: Cli) -> None:
    assert checks(cli, "backoffs") == [("ok", "nothing is backed off", None)]
    login(cli, SECRET)
    fails(cli, OPUS, "auth")
    cli.ok("backoff", "set", "groq/fast-*", "overloaded", "10m")
    cli.ok("backoff", "set", "groq", "quota", "1h")
    told = checks(cli, "backoffs")
    assert [do for _, _, do in told] == [
        "fleetgate backoff clear anthropic",
        "fleetgate backoff clear groq",
        "fleetgate backoff clear 'groq/fast-*'",
    ]
    assert "anthropic is not used: auth; ends in 59m, or new login. Log in again, which ends it, or:" in told[0][1]
    assert "Pay the bill or raise the quota, then:" in told[1][1]
    assert "groq/fast-* is not used: overloaded (set by hand); ends in 9m. To use it sooner:" in told[2][1]


def test_status_and_queue_show_evidence_and_how_to_clear(cli: Cli) -> None:
    cli.ok("backoff", "set", OPUS, "overloaded", "10m")
    cli.ok("backoff", "set", "groq/fast", "overloaded", "10m")
    cli.stand(OPUS)
    line = cli.ok("queue")
    assert "backed off 9m: overloaded" in line
    assert "set by hand" in line
    assert f"(to use it sooner: fleetgate backoff clear {OPUS})" in line
    assert "groq/fast" not in line, "no waiting request needs that"
    assert [each["key"] for each in cli.json("queue")["backoffs"]] == [OPUS, "groq/fast"]
    assert "(to use it sooner: fleetgate backoff clear KEY)" in cli.ok("status")


def test_o7_a_stalled_ticket_has_its_time_in_utc(cli: Cli) -> None:
    cli.ok("backoff", "set", OPUS, "overloaded", "10m")
    cli.stand(OPUS)
    events = [json.loads(line) for line in cli.ok("history", "--json").splitlines()]
    (queued,) = [event for event in events if event["type"] == "queued"]
    assert queued["ticket"]["stalled_at"].endswith("Z")
