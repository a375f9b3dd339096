"""`python -m benchmarks [NAME…]`: run all measurements, or those named, and print a table."""

from __future__ import annotations

import sys

from benchmarks import (
    adapt,
    classifying,
    contention,
    engine,
    gate,
    http,
    jobs,
    loading,
    passing,
    postgres,
    proxy,
    queue,
    start,
    waiting,
    wakeup,
)
from benchmarks.report import Row, environment, table

ALL = {
    "engine": engine.measure,
    "gate": gate.measure,
    "contention": contention.measure,
    "wake": wakeup.measure,
    "start": start.measure,
    "waiting": waiting.measure,
    "loading": loading.measure,
    "passing": passing.measure,
    "classifying": classifying.measure,
    "http": http.measure,
    "jobs": jobs.measure,
    "queue": queue.measure,
    "proxy": proxy.measure,
    "adapt": adapt.measure,
    "postgres": postgres.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 64
    print(environment())
    rows: list[Row] = []
    for name in names or ALL:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows.extend(ALL[name]())
    print(table(rows))
    return 0


sys.exit(main(sys.argv[1:]))
