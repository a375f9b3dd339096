"""Secrets in command lines are cut before they are stored or shown; ordinary arguments stay as they are."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.signals.redaction import MASK, readable, redact_text, redact_words, shown_command

SECRET = "S3cr3tV4lueXYZ"

HELD_BY_A_NAME = [
    ["x", "--api-key", SECRET],
    ["x", f"--api-key={SECRET}"],
    ["x", "-token", SECRET],
    ["x", "--token", f"-{SECRET}"],
    ["x", f"--db.password={SECRET}"],
    ["x", "--openai-key", SECRET],
    ["x", "--api-key", f"openai={SECRET}"],
    ["x", "--client-secret", SECRET],
    ["x", "--aws-secret-access-key", SECRET],
    ["curl", "-H", f"Authorization: Bearer {SECRET}"],
    ["curl", "-H", f"authorization:{SECRET}"],
    ["curl", "-H", f'Authorization: Digest a="b", r="{SECRET}"'],
    ["curl", "-H", f"X-Api-Key: {SECRET}"],
    ["curl", f"--header=X-Goog-Api-Key: {SECRET}"],
    ["curl", "-H", f"Cookie: a=b; c={SECRET}"],
    ["curl", "-u", f"bob:{SECRET}"],
    ["curl", f"--user=bob:{SECRET}"],
    ["curl", "-d", f'{{"api_key": "{SECRET}"}}'],
    ["curl", "-d", f'{{\\"apiKey\\":\\"{SECRET}\\"}}'],
    ["curl", f"https://user:{SECRET}@host/x"],
    ["curl", f"https://u:p@{SECRET}@host/"],
    ["curl", f"https://host/x?a=1&key={SECRET}"],
    ["curl", f"https://host/x?access_token={SECRET}&b=2"],
    ["env", f"OPENAI_API_KEY={SECRET}", "cmd"],
    ["env", f"ANTHROPIC_AUTH_TOKEN=a b {SECRET}", "cmd"],
    ["env", f"PGPASSWORD={SECRET}", f"MYSQL_PWD={SECRET}", f"SSHPASS={SECRET}"],
    ["env", f"API_KEY_2={SECRET}", f"SECRET_KEY_BASE={SECRET}", f"anthropicApiKey={SECRET}"],
    ["env", f"{'a' * 300}_API_KEY={SECRET}"],
    ["docker", "run", "-e", f"MY_TOKEN={SECRET}", f"-eMY_TOKEN={SECRET}", f"--env=MY_TOKEN={SECRET}"],
    ["sh", "-c", f"OPENAI_API_KEY={SECRET} cmd"],
    ["sh", "-c", f"PASSWORD='a {SECRET}' cmd; TOKEN=ab,{SECRET} cmd"],
    ["sh", "-c", f'PASSWORD=ab"c d"{SECRET} cmd'],
    ["sh", "-c", f"PASSWORD=ab\\ {SECRET} cmd"],
    ["sh", "-c", f"tool --token {SECRET} --x; tool --token 'a {SECRET}'"],
    ["x", f"api_key:\n  {SECRET}"],
    ["x", f"DATABASE_URL=postgres://u:{SECRET}@h/db"],
    ["x", "--config", f'{{"auth": {{"token": "{SECRET}"}}}}'],
    ["x", "--key", f"{SECRET}9", f"--key={SECRET}9", f"KEY={SECRET}9", f"session={SECRET}9"],
    ["sshpass", "-p", SECRET, "ssh", "h"],
    ["/usr/bin/mysql", "-u", "root", f"-p{SECRET}"],
    ["x", f"Authorization: Token {SECRET}", f"Token {SECRET}", f"SG.{SECRET}.{SECRET}"],
    ["git", "clone", f"https://{SECRET}@host/a"],
    ["python", "-c", f"os.environ['OPENAI_API_KEY'] = '{SECRET}'"],
]

HELD_BY_THEIR_SHAPE = [
    f"sk-{SECRET}",
    f"sk-ant-api03-{SECRET}",
    f"AIzaSyA{SECRET}",
    f"ghp_{SECRET}",
    f"gho_{SECRET}",
    f"github_pat_{SECRET}",
    f"xoxb-12-{SECRET}",
    "AKIAIOSFODNN7EXAMPLE",
    f"gsk_{SECRET}{SECRET}",
    f"hf_{SECRET}{SECRET}",
    f"glpat-{SECRET}",
    f"fgk_{SECRET}",
    f"eyJhbGciOiJIUzI1.{SECRET}.{SECRET}",
    f"Bearer {SECRET}",
    f"Basic {SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
]

ORDINARY = [
    ["x", "--max-tokens", "100"],
    ["x", "--max_token=3", "--token-limit", "5", "--tokenizer", "gpt2", "tokens=5"],
    ["git", "log", "--author", "me", "author=me"],
    ["claude", "--model", "claude-opus-4-6", "-p", "fix the tests"],
    ["pip", "install", "sk-learn"],
    ["git", "show", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"],
    ["ls", "/home/User/Projects/Foo1/barbaz", "./token", "~/.ssh/id_ed25519"],
    ["git", "clone", "ssh://git@h/x", "git@github.com:a/b.git", "https://h/p?a=1"],
    ["x", "--key", "nightly", "key=value", "--public-key", "foo", "--sort-key", "name"],
    ["x", "a basic understanding", "keyboard: qwerty", "monkey=1", "compass=1", "--first-pass", "x"],
    ["pytest", "-k", "not auth", "tests/test_auth.py"],
    ["x", "fix the authorization bug in auth.py"],
    ["opencode", "run", "-m", "xai/grok-4", "xai-grok-2-vision-1212", "fw-llama-v3p1-405b-instruct"],
    ["mysql", "-p", "db", "session=main", "--key", "nightly-2026-11-18", "the token handling of keys"],
    ["x", "--no-auth", "serve", "--password-file", "/a/b", "hf_hub_download"],
    ["docker", "run", "-u", "1000:1000", "2026-01-01T10:00:00Z"],
]


@pytest.mark.parametrize("argv", HELD_BY_A_NAME, ids=" ".join)
def test_a_secret_that_a_name_announces_is_cut(argv: list[str]):
    told = redact_words(argv)
    assert len(told) == len(argv)
    assert SECRET not in " ".join(told)
    assert MASK in " ".join(told)


@pytest.mark.parametrize("secret", HELD_BY_THEIR_SHAPE)
@pytest.mark.parametrize("around", ["{}", "fix it with {} please", '"{}"', "x={}", "--x={}", "({})"])
def test_a_secret_that_shows_what_it_is_is_cut_wherever_it_stands(secret: str, around: str):
    for told in (redact_text(around.format(secret)), shown_command(["x", around.format(secret)])):
        assert SECRET not in told
        assert "IOSFODNN" not in told


@pytest.mark.parametrize("argv", ORDINARY, ids=" ".join)
def test_ordinary_arguments_stay_as_they_are(argv: list[str]):
    assert redact_words(argv) == argv
    assert redact_text(" ".join(argv)) == " ".join(argv)


def test_the_rest_of_a_command_stays_beside_what_was_cut():
    script = "API_KEY=x claude -p 'fix it' --model opus"
    assert redact_words(["sh", "-c", script])[2] == f"API_KEY={MASK} claude -p 'fix it' --model opus"
    body = '{"api_key":"x","model":"y"}'
    assert redact_words(["curl", "-d", body])[2] == '{"api_key":***,"model":"y"}'
    assert redact_text("https://u:p@h/a?b=1&token=x&c=2") == "https://***@h/a?b=1&token=***&c=2"


VALUE = st.text(string.ascii_letters + string.digits + "+/_.~-", min_size=16, max_size=60).filter(
    lambda text: text[0].isalnum() and any(char.isdigit() for char in text)
)
NAME = st.tuples(
    st.sampled_from(["", "my-", "OPENAI_", "x-", "db.", "github", "X-"]),
    st.sampled_from(
        [
            "api-key",
            "api_key",
            "apikey",
            "API_KEY",
            "token",
            "TOKEN",
            "secret",
            "password",
            "passwd",
            "pwd",
            "auth",
            "credential",
            "access-key",
            "access_key",
            "private-key",
            "bearer",
            "auth-token",
            "client_secret",
            "Authorization",
            "passphrase",
        ]
    ),
    st.sampled_from(["", "_2", "-prod"]),
).map("".join)
WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(NAME, VALUE, st.integers(0, 7), st.lists(WORD, max_size=3), st.lists(WORD, max_size=3))
def test_an_inserted_secret_never_survives(name: str, value: str, form: int, before: list[str], after: list[str]):
    words = [
        [f"--{name}", value],
        [f"--{name}={value}"],
        [f"{name}={value}"],
        ["-H", f"{name}: {value}"],
        ["sh", "-c", f"export {name}={value}; run"],
        ["sh", "-c", f"run --{name} '{value}' x"],
        [f'{{"{name}": "{value}"}}'],
        [f"https://h/?{name}={value}"],
    ][form]
    before = [word for word in before if not word.startswith("-") and value not in word]
    after = [word for word in after if value not in word]
    told = redact_words([*before, *words, *after])
    assert value not in " ".join(told[len(before) : len(before) + len(words)])
    assert value not in shown_command([*before, *words, *after])


@given(st.text(max_size=300))
def test_any_text_is_redacted_without_an_error_and_once_is_enough(text: str):
    once = redact_text(text)
    assert redact_text(once).count(MASK) >= once.count(MASK) - text.count("*")


def test_hostile_text_takes_no_longer_than_ordinary_text_of_its_length():
    """Each would take minutes or hours if the time grew with the square of the length."""
    for part in (
        "api_key=", "--api-key ", "https://", "-----BEGIN X-----", "bearer ", "sk-", "eyJaaaaaa.", 'password="', "://a@",
        "?key=", "-u a", "aB", "Authorization: ", 'token=\\"', "\\", "key", " ", "=", "-", "key=a1B", "token:{",
        "SG.a.", "session='",
    ):  # fmt: skip
        redact_text(f"token{part * (60_000 // len(part))}")
        shown_command(["x", "--token", part * (60_000 // len(part))])


def test_only_the_start_of_a_long_prompt_is_shown_and_no_half_of_a_key():
    for padding in range(190, 205):
        assert "sk-ant" not in shown_command(["claude", "-p", f"{'a' * padding} sk-ant-{SECRET}"])
    prompt = ("word " * 815)[:4080] + f" sk-ant-{SECRET}"
    assert "sk-ant" not in shown_command(["claude", "-p", prompt], most=10_000)


def test_bytes_that_are_no_utf8_are_shown_and_stay_different():
    assert readable("caf\udcc3") == "caf\\xc3"
    assert readable("a\udcff") != readable("a\udcfe")
    assert readable("\ud800") == "\\ud800"
    assert readable("é☃") == "é☃"
    assert shown_command(["x", f"--token={SECRET}\udcff"]) == f"x --token={MASK}"
