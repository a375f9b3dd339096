"""Widths of texts in terminal columns, against rich's own count."""

from __future__ import annotations

import unicodedata

import pytest
from rich.cells import cell_len

from fleetgate.cli.output.cells import cell_width, cut_to_width, styled


def test_no_character_takes_more_columns_than_are_counted():
    chars = map(chr, [*range(0x20, 0x7F), *range(0xA0, 0xD800), *range(0xE000, 0x20000)])
    drawn = [char for char in chars if unicodedata.category(char) not in ("Cc", "Cn", "Co", "Cs")]
    assert len(drawn) > 60_000
    assert [hex(ord(char)) for char in drawn if cell_width(char) < cell_len(char)] == []


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("plain", 5),
        ("naïve", 5),
        ("日本語", 6),
        ("e\u0301", 1),
        ("a\u200bb", 2),
        ("❤\ufe0f", 2),
        ("…█", 2),
        ("한글", 4),
    ],
)
def test_the_width_of_a_text(text: str, width: int):
    assert cell_width(text) == cell_len(text) == width


def test_a_text_is_cut_before_the_character_that_does_not_fit():
    assert cut_to_width("日本語", 5) == "日本"
    assert cut_to_width("日本語", 6) == "日本語"
    assert cut_to_width("abc", 0) == ""


def test_without_colours_the_weight_of_a_style_stays():
    assert styled("x", "bold red", colour=True) == "\x1b[1;31mx\x1b[0m"
    assert styled("x", "bold red", colour=False) == "\x1b[1mx\x1b[0m"
    assert styled("x", "red", colour=False) == styled("x", "", colour=True) == "x"
    assert styled("", "red", colour=True) == ""
