"""`fleetgate env`: the environment variables that send an agent through the proxy."""

from __future__ import annotations

import shlex
from urllib.parse import quote

import click

from fleetgate.cli.click_helpers import json_option
from fleetgate.cli.completion_values import complete_project
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import say_json
from fleetgate.cli.run.proxy_environment import check_agent, known_agents, proxy_settings, proxy_url
from fleetgate.config.settings import Settings


@click.command(short_help="Print variables that send an agent through the proxy.")
@click.argument("agent", required=False, default="", metavar="[AGENT]")
@click.option("--project", metavar="NAME", shell_complete=complete_project, help="Fairness group of its requests.")
@json_option
def command(agent: str, project: str | None, as_json: bool) -> None:
    """Print the environment variables that send an agent's requests through the proxy.

    AGENT is claude, opencode, codex, gemini or aider; without one, the variables of the SDKs are printed. For Codex,
    its arguments are printed, too. `fleetgate run --proxied` does the same for one run, and counts its requests with
    its lease.

    \b
    eval "$(fleetgate env claude)" && claude
    fleetgate env opencode --project blue

    Exit codes: 0; 64 for an unknown agent; 69 when no service is running.
    """
    if agent and agent not in known_agents():
        raise click.UsageError(f"no such agent: {agent}; known are {', '.join(known_agents())}")
    import os

    loaded = load_config()
    base = proxy_url() + (f"/p/{quote(project, safe='')}" if project else "")
    settings = loaded.settings if loaded is not None else Settings()
    if agent:
        check_agent([agent], (), settings, os.environ, os.getcwd())
    added = proxy_settings(agent, base, settings, os.environ)
    if as_json:
        say_json({"env": added.env, "args": added.args})
        return
    for name, value in added.env.items():
        print(f"export {name}={shlex.quote(value)}")
    if added.args:
        print(f"# start it with: {agent} {shlex.join(added.args)}")
