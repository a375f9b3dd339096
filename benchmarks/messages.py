"""Requests to Anthropic's `/v1/messages` through Fleetgate and through LiteLLM, with and without its Rust core.

LiteLLM's wheel contains a Rust core, but 1.106 serves only one of the routes of agents with it: messages to Anthropic,
and only if `LITELLM_RUST` is set. Chat completions, which benchmarks/proxy.py measures, stay in Python. The row says
whether the process has loaded the Rust library.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from benchmarks.gateways import NotHere, Target, litellm, ours, pin
from benchmarks.process_usage import cpu_s, has_loaded
from benchmarks.report import Row
from benchmarks.socket_load import SocketLoad, model_call

SMALL = bool(os.environ.get("FLEETGATE_BENCH_SMALL"))
CLIENTS = 4 if SMALL else 32
REQUESTS = 40 if SMALL else 320  # in a round, of LiteLLM; ours are so many times more:
FASTER = 1 if SMALL else 20
ROUNDS = 1 if SMALL else 3

BODY = b'{"model":"claude-m1","max_tokens":100,"messages":[{"role":"user","content":"%s"}]}' % (b"hello " * 50)
TEXT = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"claude-m1","content":[{"type":"text","text":"%s"}],'
    b'"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":60,"output_tokens":40}}' % (b"word " * 40)
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(TEXT), TEXT)


class Measured(NamedTuple):
    """What one program did."""

    per_s: float
    cpu_us: float
    rust: bool  # the process has loaded LiteLLM's Rust core


def litellm_rust(upstream: int) -> contextlib.AbstractContextManager[Target]:
    return litellm(upstream, rust=True)


def measure() -> list[Row]:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pin(0)
    load = SocketLoad(ANSWER)
    found: dict[str, Measured] = {}
    try:
        for each in (ours, litellm, litellm_rust):
            try:
                found[each.__name__] = _measured(load, each)
            except NotHere as error:
                print(f"not measured: {error}", file=sys.stderr)
    finally:
        load.close()
        if cores:
            os.sched_setaffinity(0, cores)
    return [
        Row(
            f"requests/s to /v1/messages, {CLIENTS} clients: {name.replace('_', ' with ')}",
            f"{each.per_s:,.0f}; {each.cpu_us:,.0f} µs of CPU each",
            "–",
            "Rust core loaded" if each.rust else "no Rust core loaded",
        )
        for name, each in found.items()
    ]


def _measured(load: SocketLoad, program: Callable[[int], contextlib.AbstractContextManager[Target]]) -> Measured:
    with contextlib.ExitStack() as stack:
        with load.answering():
            target = stack.enter_context(program(load.port))
        call = model_call(f"{target.base}/messages", BODY)
        number = REQUESTS * FASTER if program is ours else REQUESTS
        load.run(target.port, call, CLIENTS, number)
        rates, used_us = [], []
        for _ in range(ROUNDS):
            before = cpu_s(target.pid)
            result = load.run(target.port, call, CLIENTS, number)
            used_us.append((cpu_s(target.pid) - before) / result.exchanges * 1e6)
            rates.append(result.per_s)
        return Measured(max(rates), median(used_us), has_loaded(target.pid, "litellm/rust_bridge/"))
