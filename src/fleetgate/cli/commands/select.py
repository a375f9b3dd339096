"""`fleetgate select`: the model to use now, by backoffs and credentials (rule B4). It reserves nothing."""

from __future__ import annotations

import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import ENDLESS_MS, json_option, models_option, tell
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.config.environment import Environment
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest
from fleetgate.core.state.state import State
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.log_time import LogTimes
from fleetgate.present.model_choice import first_usable, longest_hold, unusable
from fleetgate.present.request_fields import candidates
from fleetgate.present.text import printable


@click.command(short_help="Print the model to use now.")
@models_option
@click.option(
    "--rotate",
    is_flag=False,
    flag_value="default",
    metavar="[=ROLE]",
    help="Choose the least recently used model of a role.",
)
@json_option
def command(model: str, rotate: str | None, as_json: bool) -> int:
    """Print the first model that is neither backed off nor paused; with --rotate, the least recently used one.

    Nothing is reserved. Providers without credentials are skipped. Without -m, the models are those of
    FLEETGATE_MODELS or of `models` in the config file.

    \b
    model=$(fleetgate select -m anthropic/claude-opus-4-6,openai/gpt-5) && agent --model "$model"
    fleetgate select --rotate=pulse

    Exit codes: 0; 75 when no model is usable, with the reasons and remaining times on stderr.
    """
    models = candidates(model, Environment.read(), load_config())
    if not models:
        raise BadRequest("no candidates: name them with -m, or set `models` in the config or FLEETGATE_MODELS")
    with opened(strict=True) as gate:
        state = current(gate)
        models = state.accounts.expand(models)
        missing = {each: lacks for each in models if (lacks := gate.credentials.missing(each))}
        there = tuple(each for each in models if each not in missing)
        chosen = _rotated(gate, there, rotate) if rotate is not None else first_usable(state, there, gate.now())
        if chosen is not None:
            say_json({"model": chosen}) if as_json else tell(chosen)
            return exit_codes.OK
        moments = LogTimes(gate)
        if as_json:
            say_json({"model": None, "unusable": [unusable(state, each, missing, moments) for each in models]})
        for each in models:
            why = f"no credentials: {missing[each]}" if each in missing else _held_text(state, each, moments)
            print(printable(f"fleetgate: {each}: {why}"), file=sys.stderr)
    return exit_codes.DEFERRED


def _rotated(gate: DirectGate, models: tuple[str, ...], role: str) -> str | None:
    events = gate.one(cmd.Select(models, role))
    return next((event.model for event in events if isinstance(event, ev.Chosen)), None)


def _held_text(state: State, model: str, moments: LogTimes) -> str:
    hold = longest_hold(state, model, moments.now)
    what = f"{hold.what} is paused ({hold.why})" if hold.code == "paused" else f"{hold.why} of {hold.what}"
    if hold.code == "paused" and hold.look_at - moments.now > ENDLESS_MS:
        return f"{what}, until it is resumed"
    return (
        f"{what}, {moments.left(hold.look_at)} left"
        if hold.look_at > moments.now
        else f"{what}, until a probe succeeds"
    )
