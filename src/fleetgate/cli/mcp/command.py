"""`fleetgate mcp`: capacity, queue, jobs and usage as tools for an agent that delegates."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.config.install_hint import NotInstalled


@click.command(short_help="Serve capacity, queue, jobs and usage as tools for agents (MCP).")
@click.option(
    "--submit",
    "submits",
    type=click.Choice(["approve", "run", "off"]),
    default="approve",
    show_default=True,
    help="Jobs that the agent submits: start after `fleetgate approve`, start at once, or are refused.",
)
def command(submits: str) -> int:
    """Serve the Model Context Protocol on stdin and stdout, for an agent that starts other agents.

    The tools are capacity, queue, submit, job_status and usage. An agent adds the server to its own settings.
    A submitted job runs a command as your user. By default it waits for your approval; `--submit run` starts it at
    once, and `--submit off` leaves the tool out.

    \b
    fleetgate mcp
    claude mcp add fleetgate -- fleetgate mcp
    codex mcp add fleetgate -- fleetgate mcp --submit off

    Exit codes: 0 when stdin ends; 69 when the `mcp` extra is not installed.
    """
    try:
        from fleetgate.cli.mcp.server import serve
    except ModuleNotFoundError as error:
        raise NotInstalled("`fleetgate mcp`", "mcp", error) from error
    serve(submits)
    return exit_codes.OK
