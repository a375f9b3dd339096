"""`python -m benchmarks [NAME…]`: run all benchmarks, or the named ones, and print a table."""

from __future__ import annotations

import sys

from benchmarks import (
    accounts,
    adapt,
    budgets,
    contention,
    engine,
    gate,
    http,
    jobs,
    log_load,
    messages,
    output_copy,
    output_signals,
    postgres,
    processes,
    proxy,
    queue,
    run_start,
    waiting_memory,
    wakeup,
)
from benchmarks.report import Row, environment, table

ALL = {
    "engine": engine.measure,
    "budgets": budgets.measure,
    "accounts": accounts.measure,
    "gate": gate.measure,
    "contention": contention.measure,
    "wake": wakeup.measure,
    "run": run_start.measure,
    "memory": waiting_memory.measure,
    "load": log_load.measure,
    "copy": output_copy.measure,
    "signals": output_signals.measure,
    "http": http.measure,
    "jobs": jobs.measure,
    "queue": queue.measure,
    "processes": processes.measure,
    "proxy": proxy.measure,
    "messages": messages.measure,
    "adapt": adapt.measure,
    "postgres": postgres.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; benchmarks: {', '.join(ALL)}", file=sys.stderr)
        return 64
    print(environment())
    rows: list[Row] = []
    for name in names or ALL:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows.extend(ALL[name]())
    print(table(rows))
    return 0


sys.exit(main(sys.argv[1:]))
