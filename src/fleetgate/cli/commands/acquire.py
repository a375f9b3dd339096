"""`fleetgate acquire`: a slot for a script. The lease lives as long as the process it is tied to (SPEC L4, O5)."""

from __future__ import annotations

import os
import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.acquire_slot import AcquireResult, Request, ask, bound_process, read_request
from fleetgate.cli.click_helpers import opened_gate, opened_slot_gate
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.output.table import say
from fleetgate.cli.read_only_gate import json_text, note
from fleetgate.cli.run_options import OPTIONS, RunOptions
from fleetgate.config.environment import Environment
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import KINDS
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.log.protocol import StoreError

_SHARED = (
    "model", "any", "no_wait", "wait", "expires", "priority", "since", "project", "slots", "key", "json", "quiet"
)  # fmt: skip


class CannotTell(FleetgateError):
    """The lease was granted, but nobody could be told its id."""

    exit_code = 74  # EX_IOERR


def _call(pid: str | None, kind: str, **values: object) -> int:
    if sys.__stdout__ is None:  # `>&-`
        raise CannotTell("standard output is closed, and the lease's id is printed there")
    given = {name: value for name, value in values.items() if value not in (None, False)}
    options = RunOptions([], **given)  # type: ignore[arg-type]
    environment = Environment.read()
    loaded = load_config()
    request = read_request(options, environment, loaded, kind)
    request.bound = bound_process(pid) if pid is not None else _parent()
    request.command = process_identity.describe(process_identity.pid_of(request.bound) or 0)
    if environment.bypass:
        return _bypass(request, options)
    asked = ask(opened_slot_gate(loaded, request.outage()), request)
    if isinstance(asked.lease, int):
        return 128 + asked.lease
    if isinstance(asked.lease, Reason):
        return _refused(asked, asked.lease, options)
    _hand_over(asked.gate, asked, asked.lease, options)
    _keep_heard(asked.gate)
    asked.gate.maintain()
    return exit_codes.OK


def _keep_heard(gate: SlotGate) -> None:
    """Where hosts are judged by their beats, somebody must beat for a script that has a lease and nothing of ours."""
    from fleetgate.gate.slots.direct_gate import DirectGate

    if isinstance(gate, DirectGate) and gate.folder and gate.beats.has_others(gate.state):
        from fleetgate.gate.node import discovery

        discovery.start(gate.folder)


def _parent() -> str:
    process = process_identity.identify(os.getppid())
    if process is None:  # in another pid namespace, or gone
        raise BadRequest("the process that called fleetgate cannot be seen from here: say whose lease it is with --pid")
    return process


def _hand_over(gate: SlotGate, asked: AcquireResult, lease: Lease, options: RunOptions) -> None:
    """Print the id. What nobody could read is given back: its owner would hold a slot and not know it."""
    document: dict[str, object] = {"lease": lease.id, "model": lease.model or None, "waited_s": asked.waited_s}
    try:
        read, why = say(_shown(document, options)), "nobody reads it"
    except OSError as error:
        read, why = False, error.strerror or str(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
    if not read:
        gate.leave(lease.id, "local_error")
        raise CannotTell(f"the lease was given back, since its id could not be printed: {why}")


def _shown(document: dict[str, object], options: RunOptions) -> str:
    return f"{json_text(document) if options.json else document['lease']}\n"


def _refused(asked: AcquireResult, reason: Reason, options: RunOptions) -> int:
    if options.json:
        say(f"{asked.refusal_json(reason)}\n")
    else:
        note(f"not admitted: {reason.text} ({reason.code})")
    return exit_codes.DEFERRED


def _bypass(request: Request, options: RunOptions) -> int:
    """FLEETGATE_BYPASS=1: an id without a lease, which `release` takes for one already released."""
    model = request.models[0] if request.models else None
    try:
        gate = opened_gate(configured=False)
        gate.decide([cmd.Bypass(request.bound, request.models, request.command)])
    except StoreError as error:
        note(f"bypass not recorded: {error}")
    say(_shown({"lease": new_id(), "model": model, "waited_s": 0.0, "bypassed": True}, options))
    return exit_codes.OK


command = click.Command(
    "acquire",
    callback=_call,
    params=[
        click.Option(
            ["--pid"],
            metavar="PID",
            help="The process whose life the lease has. Default: the parent of fleetgate, which is the calling shell.",
        ),
        click.Option(["--kind"], type=click.Choice(KINDS), default="agents", help="What is counted (default: agents)."),
        *(
            click.Option([*option.names, option.field], help=option.help, metavar=option.metavar)
            if option.metavar
            else click.Option([*option.names, option.field], help=option.help, is_flag=True)
            for option in OPTIONS
            if option.field in _SHARED and option.field != "json"
        ),
        click.Option(["--json", "json"], is_flag=True, help="Print the lease, or a refusal, as JSON."),
    ],
    short_help="Wait in the queue and print a lease's id, for scripts.",
    help="""Wait in the queue for a slot and print the lease's id, for scripts.

    The lease ends with `fleetgate release ID`, or when the process that it is tied to is gone: --pid, by default the
    parent of fleetgate, which is the calling shell. Where something stands between the two (a pipe inside $(…),
    timeout, uv run), say --pid $$.

    \b
    id=$(fleetgate acquire -m anthropic/claude-opus-4-6 --pid $$) || exit
    my-agent; fleetgate release "$id"

    Exit: 0 with a lease; 75 not admitted, 128+n for a signal while waiting, 69 store, 64 usage, 78 config.""",
)
