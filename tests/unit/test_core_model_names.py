"""N1-N3: names of models, selectors and pools."""

from __future__ import annotations

import pytest

from fleetgate.core.errors import BadName
from fleetgate.core.model_names import Model, glob, parse_model, parse_selector, pool_id, shown


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("anthropic/claude-opus-4-6", Model("anthropic", "default", "claude-opus-4-6")),
        ("anthropic@work/claude-opus-4-6", Model("anthropic", "work", "claude-opus-4-6")),
        ("openrouter/meta/llama-4:free", Model("openrouter", "default", "meta/llama-4:free")),
        ("umans@default/coder", Model("umans", "default", "coder")),
    ],
)
def test_n1_a_model_is_provider_account_and_name(text, model):
    assert parse_model(text) == model


def test_n1_the_default_account_is_not_written():
    assert str(parse_model("umans@default/coder")) == "umans/coder"
    assert str(parse_model("umans@work/coder")) == "umans@work/coder"


@pytest.mark.parametrize(
    "text",
    ["", "umans", "umans/", "/coder", "@work/coder", "umans@/coder", "a b/c", "a/*", "*/c", "a/b\n", "a" * 999 + "/b"],
)
def test_n1_anything_else_is_refused_and_says_what_a_model_looks_like(text):
    with pytest.raises(BadName, match="provider/model"):
        parse_model(text)


@pytest.mark.parametrize("text", ["", "/", "a/", "@x", "a@", "a@/b", "a b", "host/", "a\tb"])
def test_n2_what_is_no_selector_is_refused_and_says_what_one_looks_like(text):
    with pytest.raises(BadName, match="selector is host, project"):
        parse_selector(text)


@pytest.mark.parametrize(
    ("selector", "model", "matches"),
    [
        ("umans", "umans/coder", True),
        ("umans", "umans@work/coder", True),
        ("umans", "umans2/coder", False),
        ("umans@work", "umans@work/coder", True),
        ("umans@work", "umans/coder", False),
        ("umans@default", "umans/coder", True),
        ("umans@default", "umans@work/coder", False),
        ("umans@w*", "umans@work/coder", True),
        ("umans@*", "umans/coder", True),
        ("umans/coder", "umans/coder", True),
        ("umans/coder", "umans/coder-2", False),
        ("anthropic/claude-opus-*", "anthropic/claude-opus-4-6", True),
        ("anthropic/claude-opus-*", "anthropic@work/claude-opus-4-6", True),
        ("anthropic/claude-opus-*", "anthropic/claude-sonnet-4-6", False),
        ("*/claude-opus-*", "bedrock/claude-opus-4-6", True),
        ("*/claude-opus-*", "openrouter/anthropic/claude-opus-4-6", False),
        ("*/*claude-opus-*", "openrouter/anthropic/claude-opus-4-6", True),
        ("*", "anything/at-all", True),
        ("*@work", "anything@work/at-all", True),
        ("*@work", "anything/at-all", False),
        ("host", "host/x", False),
        ("project", "project/x", False),
    ],
)
def test_n2_a_selector_matches_by_provider_account_and_name_with_globs(selector, model, matches):
    assert parse_selector(selector).matches(parse_model(model)) is matches


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*b*", "abc", True),
        ("*b*", "ac", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*b*b", "a-b", False),
        ("a**c", "abc", True),
        ("abc", "abcd", False),
    ],
)
def test_n2_a_star_stands_for_any_characters(pattern, text, matches):
    assert glob(pattern, text) is matches


@pytest.mark.parametrize(
    ("selector", "model", "pool"),
    [
        ("host", "umans/coder", "host:h1"),
        ("project", "umans/coder", "project:p1"),
        ("umans", "umans/coder", "umans"),
        ("umans", "umans@work/coder", "umans@work"),
        ("umans@work", "umans@work/coder", "umans@work"),
        ("umans@default", "umans/coder", "umans"),
        ("umans@*", "umans@work/coder", "umans@*"),
        ("anthropic/claude-opus-*", "anthropic/claude-opus-4-6", "anthropic/claude-opus-*"),
        ("anthropic/claude-opus-*", "anthropic@work/claude-opus-4-6", "anthropic@work/claude-opus-*"),
        ("*/claude-opus-*", "anthropic@work/claude-opus-4-6", "*/claude-opus-*:anthropic@work"),
        ("*/claude-opus-*", "bedrock/claude-opus-4-6", "*/claude-opus-*:bedrock"),
        ("*@work", "bedrock@work/claude-opus-4-6", "*@work"),
        ("*@default/m:x", "a/m:x", "*@default/m:x"),
    ],
)
def test_n3_a_selector_makes_one_pool_for_each_account_host_and_project(selector, model, pool):
    assert pool_id(parse_selector(selector), parse_model(model), "h1", "p1") == pool


def test_n3_no_two_selectors_make_pools_of_the_same_name_for_different_requests():
    one = pool_id(parse_selector("*/m"), parse_model("x/m"), "", "")
    other = pool_id(parse_selector("*@default/m:x"), parse_model("a/m:x"), "", "")
    assert one != other


def test_a6_selectors_of_claude_families_know_their_family():
    assert parse_selector("anthropic/claude-opus-*").family == "opus"
    assert parse_selector("*/claude-sonnet-4-6").family == "sonnet"
    assert parse_selector("anthropic/claude-*").family == ""
    assert parse_selector("umans/magnum-opus").family == ""


def test_a6_the_narrowest_selector_comes_first():
    texts = ["host", "project", "*", "umans", "umans@work", "*/claude-*", "*/claude-opus-*", "umans/coder"]
    ranked = sorted(map(parse_selector, texts), key=lambda selector: selector.narrowness)
    assert [selector.text for selector in ranked] == [
        "umans/coder",
        "*/claude-opus-*",
        "*/claude-*",
        "umans@work",
        "umans",
        "*",
        "project",
        "host",
    ]


def test_q1_what_is_shown_in_a_message_is_printable_and_short():
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("x" * 10_000)) < 100


def test_a_cap_on_a_model_holds_the_same_model_with_its_date():
    cap = parse_selector("anthropic/claude-opus-4-5")
    assert cap.matches(parse_model("anthropic/claude-opus-4-5-20251101"))
    assert not cap.matches(parse_model("anthropic/claude-opus-4-5-mini-251"))
    assert not cap.matches(parse_model("anthropic/claude-opus-4-50"))
    assert not cap.matches(parse_model("anthropic/claude-opus-4-20251101"))
    assert not cap.matches(parse_model("umans/claude-opus-4-5-20251101"))
    dated = parse_selector("anthropic/claude-opus-4-5-20251101")
    assert not dated.matches(parse_model("anthropic/claude-opus-4-5"))
