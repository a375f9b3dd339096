"""`fleetgate serve`: the HTTP API, the event stream and the dashboard, beside any number of `fleetgate run` (SPEC
H6).
"""

from __future__ import annotations

import gc

import click

from fleetgate.cli.open_gate import go_after, load_config
from fleetgate.cli.run.wait_progress import say
from fleetgate.cli.serve_workers import Crew
from fleetgate.config.file import Loaded
from fleetgate.config.paths import store_url
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs.blocking_api import BlockingJobs
from fleetgate.jobs.job_owner import uid_of
from fleetgate.log import open_log
from fleetgate.log.store_url import local_folder


class NotInstalled(FleetgateError):
    """What the service needs is not there."""

    exit_code = 69


@click.command(short_help="The HTTP API and the dashboard.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=int, default=4180, show_default=True, help="The port; 0 takes any that is free.")
@click.option("--workers", type=click.IntRange(0, 1000), default=0, metavar="N", help="Also run jobs, up to N at once.")
@click.option("--user", "users", metavar="NAME", multiple=True, help="With --workers: whose jobs (default: your own).")
@click.option("--new-token", is_flag=True, help="Make a new token first; ends the old one and all browser sessions.")
def command(host: str, port: int, workers: int, users: tuple[str, ...], new_token: bool) -> int:
    """Serve the HTTP API, the stream of events, the metrics and the dashboard, until it is told to stop.

    Agents do not need it: it stands beside any number of `fleetgate run` on the same store. On loopback its own user
    and root may read; other users need the token in the state folder, and so does every change. On another address
    everything does.

    \b
    fleetgate serve
    fleetgate serve --workers 4
    fleetgate serve --host 0.0.0.0 --new-token
    fleetgate open                # the dashboard, in a browser

    Exit: 0 when it was told to stop (TERM, INT); 69 when the port is taken or the store cannot be used, 64 usage, 78
    config.
    """
    gc.disable()  # until it serves: what is loaded now stays
    try:
        from fleetgate.api.server import Options, serve
        from fleetgate.proxy.app import Proxy
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"the service needs more than is installed ({error.name} is missing): pip install 'fleetgate[serve]'"
        ) from error
    loaded = load_config()
    for user in users:
        uid_of(user)  # says so where there is none
    crew = Crew(workers, users, say) if workers else None
    try:
        return serve(
            Options(host, port, new_token),
            loaded,
            lambda gate, access, folder: Proxy(
                gate,
                loopback=access.loopback,
                is_token=access.tokens.is_token,
                trusts=access.trusts,
                folder=folder,
            ),
            BlockingJobs(_gate_of_jobs, loaded),
            crew.start if crew is not None else None,
            go_after,
            crew.trouble if crew is not None else str,
        )
    finally:
        if crew is not None:
            crew.stop()


def _gate_of_jobs(loaded: Loaded | None) -> DirectGate:
    """A gate beside the service's own, for threads: nothing here is about signals."""
    url = store_url()
    gate = DirectGate(open_log(url), loaded, local_folder(url))
    gate.replica.catch_up()
    gc.freeze()  # what is known by now stays: see api/server.py
    return gate
