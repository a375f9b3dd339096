"""`fleetgate hook`: a limit that an agent's own hook saw, for the plugins in `plugins/`.

The rule: a hook never disturbs its agent. Whatever happens, the command prints nothing on stdout and exits with 0. An
agent under `fleetgate run` needs no hook, because Fleetgate reads the same from its output.
"""

from __future__ import annotations

import os
import sys
from time import time_ns

import click
import msgspec
from msgspec import Struct

from fleetgate.cli import exit_codes
from fleetgate.cli.read_only_gate import note, opened
from fleetgate.config.paths import expand_home
from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import read_model
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.rate_limit_report import of_target
from fleetgate.signals.agents import agent_for, use_of
from fleetgate.signals.agents.agent import Context
from fleetgate.signals.classify_http import classify_response
from fleetgate.signals.classify_session_files import judge_file, models_in_file
from fleetgate.signals.outcome import OVERLOADED, QUOTA, RATE_LIMITED, USAGE_WINDOW, Outcome

_MOST_BYTES = 1 << 20
_REPORTED = (RATE_LIMITED, OVERLOADED, USAGE_WINDOW, QUOTA)  # a refused key may be another account's
_FRESH_MS = 60_000  # records of a transcript that are this young are about this failure


class ClaudeFailure(Struct, frozen=True):
    """What Claude Code gives its hook `StopFailure`."""

    hook_event_name: str = ""
    error: str = ""
    last_assistant_message: str = ""
    transcript_path: str = ""
    cwd: str = ""


class OpencodeFailure(Struct, frozen=True):
    """What the plugin for opencode sends: a refused call."""

    model: str = ""
    status: int = 0
    headers: dict[str, str] = {}
    body: str = ""


class SeenLimit(Struct, frozen=True):
    """A limit, and the model that it was seen with; "" where that is not known."""

    outcome: Outcome
    model: str
    provider: str


@click.command(short_help="Report a limit that an agent's plugin saw.")
@click.argument("agent", type=click.Choice(["claude", "opencode"]))
def command(agent: str) -> int:
    """Report a limit that a hook of an agent saw, so that all agents slow down. The plugins of Fleetgate call this.

    It reads the hook's JSON on stdin, and exits with 0 whatever happens. Under `fleetgate run` it does nothing:
    Fleetgate sees the limit itself there.

    \b
    in the hooks of Claude Code:
    {"StopFailure": [{"hooks": [{"type": "command", "command": "fleetgate hook claude"}]}]}
    """
    if os.environ.get("FLEETGATE_LEASE"):
        return exit_codes.OK
    try:
        said = sys.stdin.buffer.read(_MOST_BYTES)
        seen = _of_claude(said) if agent == "claude" else _of_opencode(said)
        if seen is not None and seen.outcome.kind in _REPORTED:
            with opened() as gate:
                note(_report(gate, seen))
    except (FleetgateError, OSError, msgspec.MsgspecError) as error:
        note(f"the limit was not reported: {error}")
    return exit_codes.OK


def _of_claude(said: bytes) -> SeenLimit | None:
    failure = msgspec.json.decode(said, type=ClaudeFailure)
    if failure.hook_event_name != "StopFailure":
        return None
    agent, now = agent_for((), "claude"), time_ns() // 1_000_000
    names = models_in_file(failure.transcript_path)
    model = f"anthropic/{names[-1]}" if names else _model_of_process(failure.cwd)
    found = judge_file(agent, failure.transcript_path, now - _FRESH_MS, now, model)
    if found is None:  # the transcript is not written yet
        parts = [{"text": failure.last_assistant_message}]
        record = {"type": "assistant", "isApiErrorMessage": True, "error": failure.error, "message": {"content": parts}}
        report = agent.kept(msgspec.json.encode(record), Context(model, lambda: now))
        found = report.outcome if report is not None else None
    return None if found is None else SeenLimit(found, model, "anthropic")


def _model_of_process(folder: str) -> str:
    """The model that the running Claude Code was started with, or has in its settings; "" where that is not known."""
    pid = os.environ.get("CLAUDE_PID", "")
    argv = process_identity.command_line(int(pid)) if pid.isdecimal() else []
    use = use_of(argv or ["claude"], os.environ, folder)
    return use.model if use is not None else ""


def _of_opencode(said: bytes) -> SeenLimit | None:
    failure = msgspec.json.decode(said, type=OpencodeFailure)
    if failure.status < 400:
        return None
    model = read_model(failure.model)
    now = time_ns() // 1_000_000
    found = classify_response(model.provider, failure.status, failure.headers, failure.body, now, model.name)
    return SeenLimit(found, str(model), model.provider)


def _report(gate: DirectGate, seen: SeenLimit) -> str:
    """Record it; what was done, as a sentence."""
    said = seen.outcome
    account = _account(gate.settings, seen.provider)
    model = f"{account}/{seen.model.partition('/')[2]}" if seen.model else ""
    state = gate.read()
    if said.kind == RATE_LIMITED and model:
        report = of_target(state, model, None, gate.host)
        report.retry_after_ms = said.wait_ms
        gate.one(report)
        return f"reported a rate limit of {model}"
    key = account
    if said.kind in (RATE_LIMITED, OVERLOADED) and model:
        key = model
    elif said.kind == USAGE_WINDOW and said.family:
        key = f"{account}/{said.family}"
    known = state.backoffs.get(key)
    if known is not None and known.until >= gate.now() + (said.wait_ms or 0):
        return f"{key} is held back already"
    gate.one(cmd.BackOff(key, said.kind, said.wait_ms), durable=True)
    return f"{key} is held back: {said.kind}"


def _account(settings: Settings, provider: str) -> str:
    """The account of the config whose login is in the folder that Claude Code uses; else the provider's default one."""
    folder = os.environ.get("CLAUDE_CONFIG_DIR", "")
    if folder and provider == "anthropic":
        for name, given in settings.providers.items():
            path = expand_home(given.credential_file) if given.credential_file else ""
            if path and os.path.dirname(os.path.abspath(path)) == os.path.abspath(folder):
                return name.replace("@default", "")
    return provider
