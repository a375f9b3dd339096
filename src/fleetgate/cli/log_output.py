"""The lines of the logger `fleetgate` on stderr, as text or as JSON (`--log-format`, `-v`)."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from time import gmtime, strftime

import click

from fleetgate.gate.outage_log import logger
from fleetgate.present.text import printable_lines

log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write messages on stderr: as text, or as one JSON object per line.",
)


def log_to_stderr(log_format: str = "text", *, with_time: bool = False) -> Callable[[str], None]:
    """Show warnings and messages on stderr; returns a function that writes a message there.

    `with_time`: text lines begin with the time and the process, for a file that many processes write to.
    """
    handler = _Stderr()
    handler.setFormatter(_Json() if log_format == "json" else _Text(with_time))
    log = logger()
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
    return log.info


class _Stderr(logging.Handler):
    """Writes without a buffer. A reader that has left does not stop the program."""

    def emit(self, record: logging.LogRecord) -> None:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        try:
            os.write(2, f"{self.format(record)}\n".encode(encoding, "backslashreplace"))
        except OSError:
            pass


class _Text(logging.Formatter):
    def __init__(self, with_time: bool) -> None:
        super().__init__()
        self._with_time = with_time

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_utc(record)} fleetgate {record.process}: " if self._with_time else "fleetgate: "
        return head + printable_lines(record.getMessage())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        return json.dumps(fields)


def _utc(record: logging.LogRecord) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(record.created))
