"""On which line a key is, in all the ways that TOML can say it."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.key_lines import line_of, locate

TEXT = '''\
# a comment with [agents] and key = 1
top = 1
"quoted \\"key\\"" = 2
'literal key' = 3
dotted . "in parts" = 4
text = """
fake = 1
[fake]
ends in quotes"""""
other = \'\'\'
[fake2]
\'\'\'
array = [
  { a = 1 }, # ] comment
  "]",
  [2],
]
after = 5

  [ table . 'sub' ]  # comment
key = { inner = 1, "b" = [1,
 2] }

[[list]]
a = 1
[[list]]
a = 2
[list.deep]
b = 3
[[list.more]]
c = 4
[[list.more]]
c = 5
'''


def test_c6_every_key_has_its_line() -> None:
    lines = locate(TEXT)
    tomllib.loads(TEXT)
    assert lines == {
        ("top",): 2,
        ('quoted "key"',): 3,
        ("literal key",): 4,
        ("dotted",): 5,
        ("dotted", "in parts"): 5,
        ("text",): 6,
        ("other",): 10,
        ("array",): 13,
        ("after",): 18,
        ("table",): 20,
        ("table", "sub"): 20,
        ("table", "sub", "key"): 21,
        ("list",): 24,
        ("list", 0): 24,
        ("list", 0, "a"): 25,
        ("list", 1): 26,
        ("list", 1, "a"): 27,
        ("list", 1, "deep"): 28,
        ("list", 1, "deep", "b"): 29,
        ("list", 1, "more"): 30,
        ("list", 1, "more", 0): 30,
        ("list", 1, "more", 0, "c"): 31,
        ("list", 1, "more", 1): 32,
        ("list", 1, "more", 1, "c"): 33,
    }


def test_c6_windows_line_ends_count_once() -> None:
    assert locate(TEXT.replace("\n", "\r\n")) == locate(TEXT)


def test_c6_what_has_no_line_of_its_own_has_that_of_what_is_around_it() -> None:
    lines = locate(TEXT)
    assert line_of(("table", "sub", "key", "inner", "deeper"), lines) == 21
    assert line_of(("array", 0, "a"), lines) == 13
    assert line_of(("missing",), lines) == 0
    assert line_of((), lines) == 0


@given(st.text(alphabet="ab=.[]{}\"'#\n\\ ,1", max_size=60))
def test_q1_whatever_is_valid_toml_can_be_located(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = locate(text)
    for key in document:
        assert 1 <= lines[(key,)] <= text.count("\n") + 1
