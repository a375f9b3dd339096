"""`fleetgate env AGENT`: what an agent must be told to use the proxy, for use by hand."""

from __future__ import annotations

import shlex
from urllib.parse import quote

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option
from fleetgate.cli.completion_values import complete_project
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import say_json
from fleetgate.cli.run.proxy_environment import check_agent, known_agents, proxy_url, told
from fleetgate.config.settings import Settings


@click.command(short_help="What an agent must be told to use the proxy.")
@click.argument("agent", required=False, default="", metavar="[AGENT]")
@click.option("--project", metavar="NAME", shell_complete=complete_project, help="Fairness group of its requests.")
@json_option
def command(agent: str, project: str | None, as_json: bool) -> int:
    """Print the variables that send an agent's requests through the proxy, to be put into a shell.

    AGENT is claude, opencode, codex, gemini or aider; without one, what the SDKs understand. Of Codex also the
    arguments that it needs. `fleetgate run --proxied` does the same for one run, and ties its requests to its lease.

    \b
    eval "$(fleetgate env claude)" && claude
    fleetgate env opencode --project blue

    Exit: 0; 64 for an agent that is not known, 69 when no service runs.
    """
    if agent and agent not in known_agents():
        raise click.UsageError(f"no such agent: {agent}; known are {', '.join(known_agents())}")
    import os

    loaded = load_config()
    base = proxy_url() + (f"/p/{quote(project, safe='')}" if project else "")
    settings = loaded.settings if loaded is not None else Settings()
    if agent:
        check_agent([agent], (), settings, os.environ, os.getcwd())
    said = told(agent, base, settings, os.environ)
    if as_json:
        say_json({"env": said.env, "args": said.args})
        return exit_codes.OK
    for name, value in said.env.items():
        print(f"export {name}={shlex.quote(value)}")
    if said.args:
        print(f"# and call it so: {agent} {shlex.join(said.args)}")
    return exit_codes.OK
