"""Jobs for the dashboard: a worker that runs real ones, and an afternoon's worth of them that only look so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns

from fleetgate.core import commands as cmd
from fleetgate.jobs import job_record, job_store, state_machine
from fleetgate.jobs import submit as jobs_submit
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.jobs.output_files import OutputWriter
from tests.dashboard.fleet import OPUS, SONNET, holder
from tests.dashboard.service import FLEETGATE, Server


def submit(server: Server, *argv: str, **said: object) -> str:
    spec = JobSpec(argv, "/", server.gate.host, **said)  # type: ignore[arg-type]
    (one,) = jobs_submit.submit(server.gate, [spec], by="ada@atlas")
    return one.id


@contextmanager
def worker(server: Server, processes: int = 1) -> Iterator[None]:
    with subprocess.Popen(
        [FLEETGATE, "worker", "--now", "-n", str(processes)], env=server.env, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def forget(server: Server) -> None:
    """All jobs, as if there had been none."""
    keys = [key for key, _ in server.gate.log.side_items(job_record.JOBS)]
    server.gate.decide([], side=[job_record.forget(key) for key in keys])


PRINTED = [
    (1, b"Reading src/checkout/tax.py\n"),
    (1, b"The rounding happens twice: once per line, once for the sum.\n"),
    (2, b"warning: 2 deprecated calls in tests/test_tax.py\n"),
    (1, b"\x1b[32mPASS\x1b[0m tests/test_tax.py (41 tests)\n"),
    (1, "Änderung: round() → quantize(), 3 files changed\n".encode()),
]


def afternoon(server: Server) -> None:
    """Jobs in every state. Nothing runs: what seems to is held by processes of other machines."""
    gate = server.gate
    now = time_ns() // 1_000_000

    def left(name: str, **said: object) -> str:
        argv = ("claude", "-p", f"{name}: see the board for details")
        return submit(server, *argv, any_host=True, name=name, **said)

    running = [
        left(name, models=(SONNET,), project="webshop") for name in ("Exact rounding in checkout", "Nightly import")
    ]
    for number, ident in enumerate(running, 60):
        process = holder("atlas", number)
        server.tell(cmd.Offer(ident, process, "atlas", "", ()))
        job = job_store.find(gate.log, ident)
        assert job is not None
        job.state, job.submitted_at = state_machine.RUNNING, now - 400_000
        job.attempt, job.started_at, job.model = number - 59, now - 312_000, SONNET
        gate.decide([cmd.Claim(ident, process, process)], side=[job_record.write(ident, job)])
        output = OutputWriter(str(server.home), ident, 1 << 20)
        output.note(f"attempt {job.attempt} began on {SONNET}")
        for stream, data in PRINTED:
            output.write(stream, data)
        output.close()
    for name, project in (
        ("Audit the balance table", "ledger"),
        ("Partial refunds", "webshop"),
        ("Vault for staging", "infra"),
    ):
        left(name, project=project, models=(OPUS,), priority=5 if project == "ledger" else 0)
    left("Publish the release notes", confirm=True, project="docs")
    ended = [
        ("Coupon rules", "succeeded", "", 0),
        ("Upgrade base images", "failed", "exit 1, after 4 attempts", 1),
        ("Retrieval suite", "expired", "expired after 24h", None),
        ("Rename accounts", "cancelled", "cancelled by ada@atlas", None),
    ]
    for number, (name, state, why, code) in enumerate(ended, 1):
        spec = JobSpec(("opencode", "run", name), "/srv/shop", "atlas", name=name, models=(SONNET,))
        job = Job(spec, state, 0, now - number * 3_000_000, attempt=1, why=why, exit_code=code)
        job.started_at, job.finished_at = now - number * 2_000_000, now - number * 1_900_000
        gate.decide([], side=[job_record.write(f"ended{number:05}", job)])
