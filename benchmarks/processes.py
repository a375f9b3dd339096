"""One process of the service compared with two (`serve --processes 2`), for calls through the proxy and for leases over
HTTP.

With two cores, a load that is strong enough for both services takes a part of these cores itself. So there are two
ratios. By the clock, two processes have only what the load leaves them. By CPU time, what an exchange takes of all
processes is compared: that is the ratio on two cores which the services have for themselves, as long as the processes
do equal shares. Rounds alternate between the services, and a ratio is the median of those within a round: neighbours
that slow the machine down disturb both sides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from benchmarks.gateways import Target, fleetgate
from benchmarks.process_usage import children, cpu_s
from benchmarks.report import Row, percentile
from benchmarks.socket_load import Exchange, Result, SocketLoad, lease_pair, model_call

SMALL = bool(os.environ.get("FLEETGATE_BENCH_SMALL"))
CLIENTS = 8 if SMALL else 32
EXCHANGES = 80 if SMALL else 5_000
ROUNDS = 2 if SMALL else 7
KINDS = {"requests/s through the proxy": "1.7 times", "acquire + release over HTTP, pairs/s": "–"}  # with their goals


class Round(NamedTuple):
    """One round with one service."""

    result: Result
    cpu_us: float  # of all its processes, for each exchange
    uneven: float  # the largest share of one process: 0.5 is even with two


def measure() -> list[Row]:
    load = SocketLoad()
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        stack.callback(load.close)
        with load.answering():
            one, two = (stack.enter_context(_service(load.port, number)) for number in (1, 2))
        direct = load.run(load.port, model_call("/v1/chat/completions"), CLIENTS, EXCHANGES)
        for name, goal in (
            ("requests/s through the proxy", "1.7 times"),
            ("acquire + release over HTTP, pairs/s", "–"),
        ):
            rounds = [[_one_round(load, target, name) for target in (one, two)] for _ in range(ROUNDS + 1)]
            rows += _rows(name, goal, [pair[0] for pair in rounds[1:]], [pair[1] for pair in rounds[1:]])
    rows.append(
        Row(
            "the load itself: requests/s to its own provider",
            f"{direct.per_s:,.0f}; {direct.own_s / direct.exchanges * 1e6:.0f} µs of CPU each",
        )
    )
    return rows


@contextlib.contextmanager
def _service(upstream: int, processes: int) -> Iterator[tuple[Target, list[int]]]:
    """On all cores: the place of the service, and the processes that serve."""
    options = ("--processes", str(processes)) if processes > 1 else ()
    with fleetgate(upstream, options=options, core=None) as target:
        yield target, children(target.pid) if processes > 1 else [target.pid]


def _one_round(load: SocketLoad, service: tuple[Target, list[int]], name: str) -> Round:
    target, pids = service
    before = [cpu_s(pid) for pid in pids]
    result = load.run(target.port, _exchange(target, name), CLIENTS, EXCHANGES)
    used = [cpu_s(pid) - then for pid, then in zip(pids, before, strict=True)]
    return Round(result, sum(used) / result.exchanges * 1e6, max(used) / max(sum(used), 1e-9))


def _exchange(target: Target, name: str) -> Exchange:
    if name.startswith("requests"):
        return model_call(f"{target.base}/chat/completions")
    return lease_pair(target.port, target.token)


def _rows(name: str, goal: str, one: list[Round], two: list[Round]) -> list[Row]:
    by_clock = median(b.result.per_s / a.result.per_s for a, b in zip(one, two, strict=True))
    by_cpu = median(2 * a.cpu_us / b.cpu_us for a, b in zip(one, two, strict=True))
    return [
        Row(
            f"{name}, {CLIENTS} clients: two processes, by CPU time",
            f"{by_cpu:.2f} times; {median(each.cpu_us for each in two):.0f} µs each, "
            f"{median(each.uneven for each in two):.0%} of it in one process",
            goal,
            f"one process: {median(each.cpu_us for each in one):.0f} µs",
        ),
        Row(
            "the same by the clock, beside the load",
            f"{by_clock:.2f} times; {_figures(two)}",
            "–",
            f"one process: {_figures(one)}",
        ),
    ]


def _figures(rounds: list[Round]) -> str:
    rate = median(each.result.per_s for each in rounds)
    share = median(each.result.own_share for each in rounds)
    p99 = median(percentile(each.result.took_s, 0.99) for each in rounds)
    return f"{rate:,.0f}, p99 {p99 * 1000:.1f} ms, and the load took {share:.0%} of a core"
