"""A part of a long listing: `--limit` and `--offset`, and the note about the rest."""

from __future__ import annotations

from typing import NamedTuple

import click

from fleetgate.cli.output.table import Screen
from fleetgate.cli.read_only_gate import whole_number

MOST_LISTED = 100

limit_option = click.option("--limit", metavar="N", help=f"Show at most N; 0: all. [default: {MOST_LISTED}]")
offset_option = click.option("--offset", metavar="N", help="Skip the first N.")


class Part(NamedTuple):
    """`limit` items from `offset` on; None: all that follow."""

    offset: int
    limit: int | None


def read_part(limit: str | None, offset: str | None, *, everything: bool = False) -> Part:
    """The part that the options ask for."""
    number = whole_number("--limit", limit)
    most = MOST_LISTED if number is None else number
    return Part(whole_number("--offset", offset) or 0, None if everything or not most else most)


def screen_rest(screen: Screen, part: Part, listed: int, total: int, command: str, all_option: str) -> None:
    """Print how many are not listed, and how to see them."""
    before, after = min(part.offset, total), max(total - part.offset - listed, 0)
    if before and listed:
        screen.line(f"({before:,} before these)")
    if after:
        onward = f"{command} --offset {part.offset + listed}"
        screen.line(f"… and {after:,} more: {onward}, or {command} {all_option}")
