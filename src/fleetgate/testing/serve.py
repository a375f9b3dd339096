"""The fake provider as a process: options in, its URL on the first line of stdout, until a signal ends it.

The rule: it ends on SIGTERM or SIGINT, and with `--with-parent` as soon as its stdin is closed, so that a parent that
was killed leaves no provider behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Any

from fleetgate.core.usage import Usage
from fleetgate.simulate.provider_rates import ProviderRate
from fleetgate.testing.provider import FakeProvider, Span

EX_UNAVAILABLE = 69


def run(argv: list[str] | None = None) -> int:
    options = vars(_parser().parse_args(argv))
    with_parent = options.pop("with_parent")
    try:
        asyncio.run(_serve(options, with_parent))
    except OSError as error:
        where = f"{options['host']}:{options['port']}"
        print(f"cannot listen on {where}: {error.strerror or error}; --port 0 takes any free port", file=sys.stderr)
        return EX_UNAVAILABLE
    return 0


async def _serve(options: dict[str, Any], with_parent: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_parent:
        loop.add_reader(0, _read_until_closed, stop)
    async with FakeProvider(**options) as provider:
        print(provider.url, flush=True)
        await stop.wait()


def _read_until_closed(stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        asyncio.get_running_loop().remove_reader(0)
        stop.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fleetgate.testing.provider", description="A fake provider of models with a hidden limit."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=0, help="0 takes any free port (default)")
    add("--limit", type=_count, metavar="N", help="calls at once before it refuses with 429 (default: none)")
    add("--lag", dest="lag_s", type=_span, default=0.0, metavar="S[-S]", help="how long an ended call still counts")
    add("--retry-after", dest="retry_after_s", type=_seconds, metavar="S", help="told with each 429")
    add("--latency", dest="latency_s", type=_span, default=0.0, metavar="S[-S]", help="before an answer begins")
    add("--refuse-after", dest="refuse_after_s", type=_span, default=0.0, metavar="S[-S]", help="before a 429 is sent")
    add("--chunks", type=_count, default=4, metavar="N", help="pieces of a streamed answer")
    add("--chunk-delay", dest="chunk_delay_s", type=_span, default=0.0, metavar="S[-S]", help="before each piece")
    add("--key", dest="keys", action="append", default=[], metavar="KEY", help="accept only this key (repeatable)")
    add("--others", type=_count, default=0, metavar="N", help="calls of neighbours on the same account")
    add(
        "--rate",
        dest="rates",
        action="append",
        type=_rate,
        default=[],
        metavar="UNIT=AMOUNT[/S]",
        help="calls, input, output or tokens in S seconds (60), for each key and model (repeatable)",
    )
    add("--usage", type=_usage, metavar="IN,OUT", help="tokens of each call (default: 12 and one for each piece)")
    add(
        "--encoding",
        dest="encodings",
        action="append",
        default=[],
        choices=["gzip", "br", "zstd"],
        help="compress for clients that accept it (repeatable)",
    )
    add("--seed", type=int, default=0, help="of what is drawn from a range")
    add("--with-parent", action="store_true", help="end when stdin is closed")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"seconds are 0 to 3600, not {text}")
    return value


def _span(text: str) -> Span:
    low, dash, high = text.partition("-")
    if not dash:
        return _seconds(low)
    if _seconds(low) > _seconds(high):
        raise argparse.ArgumentTypeError(f"a range is LOW-HIGH, not {text}")
    return (_seconds(low), _seconds(high))


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"a whole number from 0 to 1000000, not {text}")
    return value


def _rate(text: str) -> ProviderRate:
    unit, equals, value = text.partition("=")
    amount, _, per = value.partition("/")
    if unit not in ("calls", "input", "output", "tokens") or not amount.isdecimal() or int(amount) == 0:
        raise argparse.ArgumentTypeError(
            f"a rate is UNIT=AMOUNT or UNIT=AMOUNT/SECONDS, as input=400000/60, not {text}"
        )
    return ProviderRate(unit, int(amount), max(_seconds(per), 0.001) if per else 60)


def _usage(text: str) -> Usage:
    given, comma, output = text.partition(",")
    if not given.isdecimal() or not output.isdecimal():
        raise argparse.ArgumentTypeError(f"tokens are IN,OUT, as 1200,300, not {text}")
    return Usage(input=int(given), output=int(output))


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"a port is 0 to 65535, not {text}")
    return value
