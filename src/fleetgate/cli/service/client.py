"""Requests of commands to a service elsewhere, and what they show of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from fleetgate.cli.access.remote_service import NoSuchThing as NoSuchThing
from fleetgate.cli.access.remote_service import call
from fleetgate.cli.click_helpers import read_duration_ms, show_result
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import say_json


class ServiceClient:
    """A service, with the key of this process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: object) -> Any:
        """What a route answers. Values that are empty are left out of the query."""
        given = {name: str(value).lower() if value is True else str(value) for name, value in query.items() if value}
        return call(self._url, "GET", f"{path}?{urlencode(given)}" if given else path)

    def send(self, method: str, path: str, body: object = None) -> Any:
        """What a change answers. Members of the body that are None are left out."""
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if value is not None}
        return call(self._url, method, path, {} if body is None and method == "POST" else body)


def part(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def seconds(option: str, text: str | None) -> float | None:
    """The duration of an option in seconds; None where it was not given."""
    ms = read_duration_ms(option, text)
    return None if ms is None else ms / 1000


def show_answer(as_json: bool, answer: Any, *lines: str) -> None:
    """Print what a change answered, as JSON or in these words."""
    show_result(as_json, answer, *lines)


def show_rows(
    as_json: bool, answer: Any, columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str = ""
) -> None:
    """Print a listing, as JSON or as a table."""
    if as_json:
        say_json(answer)
    else:
        show_table(columns, rows, empty)
