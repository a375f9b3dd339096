"""Foreign caps files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.errors import ConfigError
from fleetgate.config.import_caps import parse_caps
from fleetgate.core.model_names import parse_model, parse_selector


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_caps(text, "caps.conf")
    return str(caught.value)


def test_c5_lines_by_model_are_taken() -> None:
    assert parse_caps("# caps\n\nopus-4-6=4\n  sonnet-4-6 = 24  # many\r\nhaiku-4-5=50") == [
        ("*/claude-opus-4-6", 4),
        ("*/claude-sonnet-4-6", 24),
        ("*/claude-haiku-4-5", 50),
    ]


def test_c5_lines_by_family_are_taken() -> None:
    text = "OPUS_CONCURRENCY_CAP=4\nexport SONNET_CONCURRENCY_CAP='24'\nHAIKU_CONCURRENCY_CAP=\"50\"\n"
    assert parse_caps(text) == [("*/claude-opus-*", 4), ("*/claude-sonnet-*", 24), ("*/claude-haiku-*", 50)]


def test_c5_a_family_alone_and_a_models_whole_name_mean_the_obvious() -> None:
    assert parse_caps("opus=4\nclaude-sonnet-4-6=3\nclaude-haiku=2") == [
        ("*/claude-opus-*", 4),
        ("*/claude-sonnet-4-6", 3),
        ("*/claude-haiku-*", 2),
    ]


def test_c5_the_caps_are_on_the_models_that_they_name() -> None:
    (by_model, _), (by_family, _) = parse_caps("opus-4-6=4\nOPUS_CONCURRENCY_CAP=6")
    model = parse_model("anthropic/claude-opus-4-6")
    assert parse_selector(by_model).matches(model)
    assert parse_selector(by_family).matches(model)
    assert not parse_selector(by_model).matches(parse_model("anthropic/claude-opus-4-7"))
    assert parse_selector(by_model).family == parse_selector(by_family).family == "opus"


def test_c5_a_file_with_nothing_in_it_sets_nothing() -> None:
    assert parse_caps("") == parse_caps("\n# nothing\n") == []


@pytest.mark.parametrize(
    "line",
    [
        *(
            "opus-4-6",
            "opus-4-6=",
            "opus-4-6=0",
            "opus-4-6=-1",
            "opus-4-6=four",
            "opus-4-6=4.5",
            "=4",
            "gpt-5=4",
            "opus-=4 5",
        ),
        *(
            "OPUS_CAP=4",
            "opus_CONCURRENCY_CAP=4",
            "GPT_CONCURRENCY_CAP=4",
            "opus-4 6=4",
            "OPUS_CONCURRENCY_CAP=$(date)",
        ),
        *("opus-4-6=1000001", "source other.conf", "opus-4-6=''", "opus-4-6='4"),
    ],
)
def test_c5_a_bad_line_is_named_with_its_number_and_nothing_is_imported(line: str) -> None:
    told = refusal(f"sonnet-4-6=24\n# comment\n{line}\n")
    assert told.startswith("caps.conf:3: ")
    assert "valid is " in told or "a selector is " in told


def test_c5_all_bad_lines_are_named() -> None:
    assert [line.split(":")[1] for line in refusal("x\nopus-4-6=4\ny").splitlines()] == ["1", "3"]


def test_c5_two_lines_that_disagree_are_an_error() -> None:
    assert refusal("opus=4\nOPUS_CONCURRENCY_CAP=5") == "caps.conf:2: line 1 says 4 for */claude-opus-*, this one 5"
    assert parse_caps("opus=4\nOPUS_CONCURRENCY_CAP=4") == [("*/claude-opus-*", 4)]


@given(st.text() | st.text(alphabet="opus-46=OPUS_CONCURRENCY_CAP\n# '\""))
def test_q1_any_text_is_caps_or_a_config_error(text: str) -> None:
    try:
        caps = parse_caps(text)
    except ConfigError as refused:
        lines = [problem.line for problem in refused.problems]
        assert lines
        assert all(lines)
        return
    for selector, cap in caps:
        assert parse_selector(selector).scope == "model"
        assert 1 <= cap <= 1_000_000
