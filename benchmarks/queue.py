"""The cost of a decision that does not concern the waiting tickets, compared with the same at an empty queue."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Callable
from time import process_time

from benchmarks.http import service
from benchmarks.report import Row
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log

WAITING = (0, 1_000, 20_000, 100_000)
PROJECTS = 50
TIMES = 200
OTHER = Spec(("umans/coder",), kind="requests")


def fill(gate: DirectGate, number: int) -> None:
    """So many jobs wait for a model whose only slot is taken."""
    gate.one(cmd.SetRule(Rule("agents", "busy", cap=1)))
    gate.decide([cmd.Acquire(new_id(), Spec(("busy/m",), host="h"), gate.me)])
    for first in range(0, number, 1_000):
        specs = [Spec(("busy/m",), project=f"p{n % PROJECTS}") for n in range(first, min(first + 1_000, number))]
        gate.decide([cmd.Acquire(new_id(), spec, "", job=True, any_host=True) for spec in specs])
    gate.replica.maintain()


def timed(work: Callable[[], None], clock: Callable[[], float] = process_time) -> float:
    """Processor time in ms, by a clock in seconds: other programs do not change it."""
    work()
    began = clock()
    for _ in range(TIMES):
        work()
    return 1000 * (clock() - began) / TIMES


def clock_of(pid: int) -> Callable[[], float]:
    """The processor time of a process's first thread, which serves what is asked."""

    def read() -> float:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9

    return read


def in_process(gate: DirectGate) -> dict[str, float]:
    def lease() -> None:
        ident = new_id()
        gate.decide([cmd.Acquire(ident, OTHER, gate.me)])
        gate.decide([cmd.Release(ident)])

    def back_off() -> None:
        gate.decide([cmd.BackOff("third/m", "rate_limited", 60_000)])
        gate.decide([cmd.EndBackoff("third/m")])

    caps = iter(range(1, 10 * TIMES))

    def set_cap() -> None:
        gate.decide([cmd.SetRule(Rule("agents", "third", cap=next(caps)))])

    return {"lease and release": timed(lease), "backoff and its end": timed(back_off), "cap set": timed(set_cap)}


def over_http(port: int, token: str, pid: int) -> dict[str, float]:
    client = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(method: str, path: str, body: object = None) -> dict[str, object]:
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        data = answer.read()
        assert answer.status < 300, data
        found: dict[str, object] = json.loads(data)
        return found

    def lease() -> None:
        got = ask("POST", "/v1/leases", {"models": ["umans/coder"]})
        ask("POST", f"/v1/leases/{got['lease']}/release", {})

    def back_off() -> None:
        ask("PUT", "/v1/backoffs", {"key": "third/m", "reason": "rate_limited", "for_s": 60})
        ask("DELETE", "/v1/backoffs?key=third/m")

    def first_page() -> None:
        ask("GET", "/v1/tickets?limit=20")

    work = {"lease and release": lease, "backoff and its end": back_off, "first page of the queue": first_page}
    return {what: timed(each, clock_of(pid)) for what, each in work.items()}


def measure() -> list[Row]:
    figures: dict[str, list[float]] = {}
    for number in WAITING:
        with tempfile.TemporaryDirectory(prefix="hg-bench-") as home:
            gate = DirectGate(open_log(f"sqlite://{home}"), folder=home)
            fill(gate, number)
            for what, took in in_process(gate).items():
                figures.setdefault(f"{what}, in a process, on SQLite", []).append(took)
            gate.close()
            with service(store=f"sqlite://{home}") as (port, token, pid, _):
                for what, took in over_http(port, token, pid).items():
                    figures.setdefault(f"{what}, over HTTP", []).append(took)
    return [_row(what, times) for what, times in figures.items()]


def _row(what: str, times: list[float]) -> Row:
    empty, *rest = times
    told = ", ".join(f"{took:.2f} ({took / empty:.2f})" for took in rest)
    return Row(
        f"{what}; {', '.join(f'{number:,}' for number in WAITING[1:])} jobs wait for something else",
        f"{told} ms",
        "1 time",
        f"{empty:.2f} ms with an empty queue",
    )
