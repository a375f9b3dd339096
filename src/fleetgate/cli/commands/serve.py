"""`fleetgate serve`: the HTTP API, the event stream, the proxy and the dashboard, in one process."""

from __future__ import annotations

import gc
from functools import partial

import click

from fleetgate.cli.log_output import log_format_option, log_to_stderr
from fleetgate.cli.open_gate import load_config, switch_store
from fleetgate.cli.serve_workers import Crew
from fleetgate.config.file import Loaded
from fleetgate.config.install_hint import NotInstalled
from fleetgate.config.paths import store_url
from fleetgate.config.settings import Serve
from fleetgate.core.errors import BadRequest
from fleetgate.gate.python_command import python_command
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs.blocking_api import JobService
from fleetgate.jobs.job_owner import uid_of
from fleetgate.log import open_log
from fleetgate.log.store_url import local_folder


@click.command(short_help="Serve the HTTP API, the proxy and the dashboard.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on (default: [serve] host, or 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on; 0: any free port (default: [serve] port, or 4180).")
@click.option("--workers", type=click.IntRange(0, 1000), default=0, metavar="N", help="Also run jobs, up to N at once.")
@click.option("--user", "users", metavar="NAME", multiple=True, help="With --workers: whose jobs (default: your own).")
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, metavar="N", help="Serve with N processes, to use N cores."
)
@click.option("--shared-folder", hidden=True, default="", help="For one of several processes: what they share.")
@click.option("--new-token", is_flag=True, help="Create a new token; the old one and all browser sessions end.")
@log_format_option
def command(
    host: str | None,
    port: int | None,
    workers: int,
    users: tuple[str, ...],
    processes: int,
    shared_folder: str,
    new_token: bool,
    log_format: str,
) -> int:
    """Serve the HTTP API, the event stream, the metrics, the proxy and the dashboard until you stop it.

    It runs alongside your agents, on the same store; stopping it never stops one. On loopback, its own user and root
    may read without a token; other users, and all changes, need the token in the state folder. On any other address
    every request needs it.

    \b
    fleetgate serve
    fleetgate serve --workers 4
    fleetgate serve --processes 2
    fleetgate serve --host 0.0.0.0 --new-token
    fleetgate open                # the dashboard, in a browser

    Exit codes: 0 when stopped (TERM, INT); 69 when the port is in use or the store unreachable; 64 usage; 78 config.
    """
    say = log_to_stderr(log_format)
    gc.disable()  # until it serves: what is loaded now is never garbage
    try:
        from fleetgate.api.processes import read_trouble, serve_with_processes
        from fleetgate.api.server import Options, serve
        from fleetgate.cli.serve_telemetry import Telemetry
        from fleetgate.proxy.app import Proxy
    except ModuleNotFoundError as error:
        raise NotInstalled("`fleetgate serve`", "serve", error) from error
    loaded = load_config()
    settings = loaded.settings.serve if loaded is not None else Serve()
    for user in users:
        uid_of(user)  # raises if there is no such user
    crew = (
        Crew(workers, (*(f"--user={user}" for user in users), f"--log-format={log_format}"), say) if workers else None
    )
    if processes > 1 and loaded is not None and loaded.settings.otel_endpoint:
        raise BadRequest("--processes: each process would send what happens to [otel] endpoint again; use one process")
    telemetry = Telemetry(loaded, say)
    options = Options(
        host=settings.host if host is None else host,
        port=settings.port if port is None else port,
        new_token=new_token,
        proxy=lambda gate, access, folder: Proxy(
            gate,
            loopback=access.loopback,
            is_token=access.tokens.is_token,
            find_key=lambda text: access.find_key(text),
            trusts=access.trusts,
            owns=access.owns,
            folder=folder,
            on_end=telemetry.on_end,
        ),
        jobs=JobService(_gate_of_jobs, loaded),
        on_ready=crew.start if crew is not None else None,
        workers_trouble=partial(read_trouble, shared_folder) if shared_folder else crew.trouble if crew else str,
        shared_folder=shared_folder,
        announce=say if log_format == "json" else None,
        switch_store=switch_store,
    )
    try:
        if processes > 1:
            own = (f"--host={options.host}", f"--log-format={log_format}")
            return serve_with_processes(processes, partial(_child, own), options, loaded)
        return serve(options, loaded)
    finally:
        if crew is not None:
            crew.stop()
        telemetry.close()


def _child(words: tuple[str, ...], port: int, shared: str) -> list[str]:
    """The command of one of several processes."""
    return python_command("fleetgate", "serve", *words, f"--port={port}", f"--shared-folder={shared}")


def _gate_of_jobs(loaded: Loaded | None) -> DirectGate:
    """A second gate next to the service's own, for threads: it handles no signals."""
    url = store_url()
    gate = DirectGate(open_log(url), loaded, local_folder(url))
    gate.replica.catch_up()
    gc.freeze()  # what is loaded now is never garbage: see api/server.py
    return gate
