"""`fleetgate worker`: runs queued jobs as slots become free."""

from __future__ import annotations

import os

import click

from fleetgate.cli.completion_values import complete_model, complete_project
from fleetgate.cli.log_output import log_format_option, log_to_stderr
from fleetgate.cli.open_gate import load_config, open_gate
from fleetgate.cli.read_only_gate import whole_number
from fleetgate.config.environment import Environment
from fleetgate.config.file import ConfigWatch
from fleetgate.config.paths import config_path
from fleetgate.core.errors import BadRequest
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs.job_owner import uid_of
from fleetgate.jobs.worker.worker import SideProcess, Worker
from fleetgate.jobs.worker.worker_process import Wants
from fleetgate.log.protocol import Position
from fleetgate.notify.config_watch import NotifyFile

_JOBS = 3
_MOST = 1000


@click.command(short_help="Run queued jobs as slots become free.")
@click.option("-n", "--jobs", "number", metavar="N", help=f"Maximum number of jobs at once (default {_JOBS}).")
@click.option(
    "--project",
    "projects",
    metavar="NAME",
    shell_complete=complete_project,
    multiple=True,
    help="Only jobs of these projects.",
)
@click.option(
    "--models", metavar="GLOB", shell_complete=complete_model, multiple=True, help="Only jobs that name such a model."
)
@click.option("--user", "users", metavar="NAME", multiple=True, help="Jobs of these users (default: your own).")
@click.option("--now", is_flag=True, help="When stopped, requeue running jobs instead of finishing them.")
@click.option("--with-stdin", is_flag=True, hidden=True, help="Stop when stdin ends, as its parent has.")
@log_format_option
def command(
    number: str | None,
    projects: tuple[str, ...],
    models: tuple[str, ...],
    users: tuple[str, ...],
    now: bool,
    with_stdin: bool,
    log_format: str,
) -> int:
    """Run the jobs of `fleetgate submit` as slots become free, each in its own process.

    A worker runs the jobs of its own user; with --user NAME those of the named users, with the rights of this user.
    Any number of workers share one queue. SIGTERM or Ctrl-C finishes running jobs; a second one requeues them. A job's
    environment is that of its worker, with what `submit` added. A config file that changes is followed.

    \b
    fleetgate worker
    fleetgate worker -n 8 --project blue --models 'anthropic/*'
    """
    say = log_to_stderr(log_format)
    most = whole_number("-n", number) if number is not None else _JOBS
    if not most or most > _MOST:
        raise BadRequest(f"-n {number}: valid is a whole number from 1 to {_MOST}")
    Environment.read()  # report an invalid environment now, and not in each job
    loaded = load_config()
    for user in users:
        uid_of(user)  # raises if there is no such user
    wants = Wants(projects=projects, models=models, users=users)
    say(f"running up to {most} {'job' if most == 1 else 'jobs'} at once; press Ctrl-C to stop")
    file = NotifyFile(config_path(), loaded, lambda _: None)  # `config` below says what is wrong with it
    ends_with = 0 if with_stdin else -1

    config = ConfigWatch(config_path(), loaded, say)

    def opened() -> DirectGate:
        """One gate for each worker process; through the node they share a few connections."""
        return open_gate(config.loaded, configured=False, starts=True)

    def tell(begins: Position | None) -> None:
        """Send notifications while the worker is running."""
        from fleetgate.notify.delivery import Notifier

        worker = os.getppid()
        Notifier(opened(), say, file.targets).run(until=lambda: os.getppid() != worker, begins=begins)

    beside = SideProcess(tell, lambda: bool(file.targets()))
    on_count = _report_count if with_stdin else None
    return Worker(
        opened, most, wants, say, now=now, beside=beside, ends_with=ends_with, on_count=on_count, config=config
    ).run()


def _report_count(number: int) -> None:
    """For the service that started us (cli/serve_workers.py)."""
    try:
        os.write(1, f"{number}\n".encode())
    except OSError:
        pass  # it is gone
