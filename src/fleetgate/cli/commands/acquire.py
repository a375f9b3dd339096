"""`fleetgate acquire`: a slot for a script. The lease ends with the process that it belongs to (rule L4)."""

from __future__ import annotations

import os
import sys

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import opened_gate, opened_slot_gate
from fleetgate.cli.commands.run_click import click_option
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.output.table import say
from fleetgate.cli.read_only_gate import json_text, note
from fleetgate.cli.run.acquire_slot import AcquireResult, Request, acquire_slot, bound_process, read_request
from fleetgate.cli.run.run_options import OPTIONS, RunOptions
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
    "model", "any", "no_wait", "wait", "expires", "priority", "since", "project", "work_class", "batch", "slots",
    "key", "name", "json", "quiet",
)  # fmt: skip


class CannotPrintLease(FleetgateError):
    """The lease was granted, but its id cannot be printed."""

    exit_code = 74  # EX_IOERR


def _call(pid: str | None, kind: str, **values: object) -> int:
    if sys.__stdout__ is None:  # `>&-`
        raise CannotPrintLease("standard output is closed, so the lease's ID cannot be printed")
    given = {name: value for name, value in values.items() if value not in (None, False)}
    options = RunOptions([], **given)  # type: ignore[arg-type]
    environment = Environment.read()
    loaded = load_config()
    request = read_request(options, environment, loaded, kind)
    request.bound = bound_process(pid) if pid is not None else _parent()
    request.command = process_identity.describe(process_identity.pid_of(request.bound) or 0)
    if environment.bypass:
        return _bypass(request, options)
    result = acquire_slot(opened_slot_gate(loaded, request.outage()), request)
    if result.refusal is not None:
        return _refused(result, result.refusal, options)
    if result.lease is None:
        return 128 + result.signal
    _print_lease(result.gate, result, result.lease, options)
    _start_beats(result.gate)
    result.gate.maintain()
    return exit_codes.OK


def _start_beats(gate: SlotGate) -> None:
    """Where hosts must send beats, a node sends them: the script that has the lease does not."""
    from fleetgate.gate.slots.direct_gate import DirectGate

    if isinstance(gate, DirectGate) and gate.folder and gate.beats.has_others(gate.state):
        from fleetgate.gate.node import discovery

        discovery.start(gate.folder)


def _parent() -> str:
    process = process_identity.identify(os.getppid())
    if process is None:  # in another pid namespace, or gone
        raise BadRequest("cannot see the process that called fleetgate: name the owner of the lease with --pid")
    return process


def _print_lease(gate: SlotGate, result: AcquireResult, lease: Lease, options: RunOptions) -> None:
    """Print the id. If that fails, the lease is released: its owner would not know that it holds a slot."""
    document: dict[str, object] = {"lease": lease.id, "model": lease.model or None, "waited_s": result.waited_s}
    try:
        read, why = say(_shown(document, options)), "the reader of the output has exited"
    except OSError as error:
        read, why = False, error.strerror or str(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard what is left in the buffer
    if not read:
        gate.leave(lease.id, "local_error")
        raise CannotPrintLease(f"released the lease, because its ID could not be printed: {why}")


def _shown(document: dict[str, object], options: RunOptions) -> str:
    return f"{json_text(document) if options.json else document['lease']}\n"


def _refused(result: AcquireResult, reason: Reason, options: RunOptions) -> int:
    if options.json:
        say(f"{result.refusal_json(reason)}\n")
    else:
        note(result.refusal_text(reason))
    return exit_codes.DEFERRED


def _bypass(request: Request, options: RunOptions) -> int:
    """FLEETGATE_BYPASS=1: an id without a lease, which `release` accepts as already released."""
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
            help="Release the lease when this process exits (default: the calling shell).",
        ),
        click.Option(["--kind"], type=click.Choice(KINDS), default="agents", help="What is counted (default: agents)."),
        *(click_option(option) for option in OPTIONS if option.field in _SHARED and option.field != "json"),
        click.Option(["--json", "json"], is_flag=True, help="Print the lease, or a refusal, as JSON."),
    ],
    short_help="Wait for a slot and print the lease's ID, for scripts.",
    help="""Wait for a slot and print the lease's ID, for scripts.

    The lease ends with `fleetgate release ID`, or when its process exits: the one named with --pid, by default the
    parent of fleetgate, which is the calling shell. If another program is between the two (a pipe inside $(…),
    timeout, uv run), use --pid $$.

    \b
    id=$(fleetgate acquire -m anthropic/claude-opus-4-6 --pid $$) || exit
    my-agent; fleetgate release "$id"

    Exit codes: 0 with a lease; 75 not admitted; 128+n after a signal while waiting; 69 store unreachable; 64 usage;
    78 config.""",
)
