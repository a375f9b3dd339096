"""The line of a key, in the usual ways to write a config file."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.errors import Path
from fleetgate.config.key_lines import line_of

TEXT = """\
# a comment with [agents] and models = 1
models = ["a/b", "c/d"]
  "quoted key" = 2
dotted . "in parts" = 4

[agents]  # umans = 3
host = 3
"anthropic/claude-opus-*" = { cap = 2, cooldown = "1s" }
'umans' = 4

[ requests . umans ]
cap = 5
on_429 = "adapt"
[requests.groq]
cap = 6

[[notify]]
url = "https://a.test"
[[notify]]
name = "ops"
url = "https://b.test"
[[notify]]
url = "https://c.test"
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("models",), 2),
        (("models", 1), 2),
        (("quoted key",), 3),
        (("dotted",), 4),
        (("dotted", "in parts"), 4),
        (("agents",), 6),
        (("agents", "host"), 7),
        (("agents", "anthropic/claude-opus-*"), 8),
        (("agents", "anthropic/claude-opus-*", "cap"), 8),
        (("agents", "anthropic/claude-opus-*", "cooldown"), 8),
        (("agents", "umans"), 9),
        (("requests",), 11),
        (("requests", "umans"), 11),
        (("requests", "umans", "cap"), 12),
        (("requests", "umans", "on_429"), 13),
        (("requests", "groq"), 14),
        (("requests", "groq", "cap"), 15),
        (("notify", 0), 17),
        (("notify", 0, "url"), 18),
        (("notify", 1), 19),
        (("notify", 1, "name"), 20),
        (("notify", 1, "url"), 21),
        (("notify", 2, "url"), 23),
        (("agents", "host", "missing"), 7),
        (("missing",), 0),
        ((), 0),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_c6_a_key_has_its_line(path: Path, line: int, end: str) -> None:
    tomllib.loads(TEXT)
    assert line_of(path, TEXT.replace("\n", end)) == line


@given(st.text(alphabet="ab=.[]{}\"'#\n\\ ,1", max_size=60))
def test_q1_any_valid_toml_gives_a_line_of_the_text(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    for key in document:
        assert 0 <= line_of((key, 0, key), text) <= text.count("\n") + 1
