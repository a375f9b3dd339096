"""`fleetgate run`: wait in the queue, run an agent under a lease, return as it returns (SPEC R1-R8).

On this path nothing slow is imported: no click, no asyncio, no rich.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from fleetgate.cli import exit_codes
from fleetgate.cli.acquire_slot import AcquireResult, Request, ask, read_request
from fleetgate.cli.open_gate import follow, load_config, open_gate, open_patiently, open_slot_gate
from fleetgate.cli.run_options import RunOptions
from fleetgate.cli.status_file import Status
from fleetgate.cli.wait_progress import say
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.config.settings import Settings
from fleetgate.config.units import format_duration, parse_duration_ms
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.log.host_beats import BEAT_S
from fleetgate.log.protocol import StoreError
from fleetgate.present.request_fields import current_folder
from fleetgate.runner.child import CannotRun, Child, tappable
from fleetgate.runner.launch import environment_for, in_sandbox
from fleetgate.runner.placeholders import filled_in
from fleetgate.runner.supervisor import End, supervise
from fleetgate.runner.terminal_foreground import has_terminal
from fleetgate.signals.agents import with_model
from fleetgate.signals.redaction import shown_command

if TYPE_CHECKING:
    from fleetgate.cli.proxy_environment import ProxyEnvironment
    from fleetgate.cli.store_outage import Outage
    from fleetgate.runner.agent_run import AgentRun

_LOOK_S = 1.5  # whether the lease is still in the books; see gate/replica/lost_log_recovery.py
_MORE_CANDIDATES = 2  # a refused agent is tried on the next candidate at most so often
_SILENT = {
    "no_record": "no record within 3 minutes of its start",
    "silent": "it printed no record for too long",
    "cut_off": 'this host cannot reach the store, and its slot would be lent to another (run.on_cutoff = "end")',
}


def run(options: RunOptions) -> int:
    """The whole of it; the exit code. Whatever happens is also written to the status file."""
    status = Status(options.status_file)
    try:
        code = _run(options, status)
    except FleetgateError as error:
        status.write(exit_code=exit_codes.exit_code(error), reason={"code": "error", "text": str(error)})
        raise
    return code


def _run(options: RunOptions, status: Status) -> int:
    if not options.command:
        raise BadRequest("nothing to run: fleetgate run [options] -- COMMAND…")
    environment = Environment.read()
    loaded = load_config()
    request = read_request(options, environment, loaded)
    if request.note and not options.quiet:
        say(request.note)
    if environment.bypass:
        return _bypass(options, request.models, status)
    _check_watching(options)
    proxying = _proxying(loaded, options.command, request.models) if options.proxied else None
    if options.share_slot:
        return _in_shared_slot(options, request, loaded, environment, status)
    asked = _asked(options, request, loaded)
    tries, fresh = 0, False
    while isinstance(asked.lease, Lease):
        gate, lease = asked.gate, asked.lease
        status.note(admitted=True, model=lease.model or None, lease=lease.id, waited_s=asked.waited_s)
        ended = _under_lease(gate, options, environment, lease, fresh, proxying, request.outage())
        if ended is not None:
            end, watch = ended
            asked.gate = gate = watch.gate
            if watch.stale_session and not fresh:
                fresh = True
            elif not (watch.worth_another and tries < _MORE_CANDIDATES and _other_candidate(gate, lease)):
                return _finished(gate, lease, end, watch, status)
            else:
                tries += 1
            watch.tell()
        # Once more: on the next candidate, without a session that is gone, or because the grant was taken back before
        # the agent was started.
        asked = asked.again()
    return _refused(options, asked, status)


def _asked(options: RunOptions, request: Request, loaded: Loaded | None) -> AcquireResult:
    """What came of asking the gate; without a store, that of --fail-open."""
    request.patient = not options.fail_open
    try:
        return ask(open_patiently(loaded, request.outage()), request)
    except StoreError as error:
        if not options.fail_open:
            raise
        say(f"{error}; going ahead without a slot (--fail-open)")
    from fleetgate.gate.slots.fail_open_gate import FailOpenGate

    late = FailOpenGate(loaded, lambda: open_slot_gate(loaded), say)
    return ask(late, msgspec.structs.replace(request, wait_s=0.0))


def _in_shared_slot(
    options: RunOptions, request: Request, loaded: Loaded | None, environment: Environment, status: Status
) -> int:
    """--share-slot: run in the slot of the run that we are inside of, one at a time."""
    from fleetgate.cli.nested_run import NestedShare, shared_lease

    began = monotonic()
    gate = open_gate(loaded)
    lease = shared_lease(gate, request)
    share = NestedShare(gate.folder, lease.id)
    if not share.take(request.wait_s):
        reason = Reason("nested", f"another run has the slot that it shares with {lease.id}", model=lease.model)
        return _refused(options, AcquireResult(gate, request, began).settle(reason), status)
    try:
        status.note(admitted=True, model=lease.model or None, lease=lease.id, waited_s=round(monotonic() - began, 3))
        command = in_sandbox(filled_in(options.command, lease.model), lease, gate.settings, environment)
        child = Child.prepare(command, environment_for(lease), own_group=not has_terminal())
        child.start()
        end = supervise(child)
    finally:
        share.give_back()
    status.write(exit_code=end.code, signal=end.signal)
    return end.code


def _finished(gate: SlotGate, lease: Lease, end: End, watch: AgentRun, status: Status) -> int:
    code = end.code
    watch.tell()
    if end.overstayed:
        limit = format_duration(lease.ends_at - lease.granted_at)
        say(f"ended after {limit}, the longest hold of its pool")
    elif end.ended_because in _SILENT:
        say(f"ended: {_SILENT[end.ended_because]}")
    if end.ended_because or (watch.limited and not end.interrupted):
        code = exit_codes.DEFERRED
    elif end.interrupted and not code and (watch.interrupted or watch.limited):
        code = 128 + end.interrupted
    status.write(exit_code=code, signal=end.signal, outcome=watch.facts)
    gate.maintain()
    return code


def _other_candidate(gate: SlotGate, lease: Lease) -> bool:
    """Whether another model than the one that was refused may be used now."""
    return gate.has_other_candidate(lease)


def _check_watching(options: RunOptions) -> None:
    """What is wrong with these options is said before anybody waits for a slot."""
    if options.classify:
        from fleetgate.signals.agents import agent_for

        agent_for(options.command, options.classify)
    if options.silence:
        _silence_s(options)
    _patience_s(options, 0)


def _silence_s(options: RunOptions) -> float | None:
    if not options.silence:
        return None
    try:
        ms = parse_duration_ms(options.silence)
    except ValueError as error:
        raise BadRequest(f"--silence: {error}") from error
    if not ms:
        raise BadRequest("--silence 0: valid is a duration longer than zero, for example 20m")
    return ms / 1000


def _patience_s(options: RunOptions, configured_ms: int) -> float:
    if not options.patience:
        return configured_ms / 1000
    try:
        return parse_duration_ms(options.patience) / 1000
    except ValueError as error:
        raise BadRequest(f"--patience: {error}") from error


def _under_lease(
    gate: SlotGate,
    options: RunOptions,
    environment: Environment,
    lease: Lease,
    fresh: bool,
    proxying: ProxyEnvironment | None,
    outage: Outage,
) -> tuple[End, AgentRun] | None:
    """Start the agent and stay with it. None when the lease was gone before it could start.

    The child waits until its pid is committed with the lease: killing this process at any instant neither frees the
    slot of a child that runs nor leaks the slot of a dead one.
    """
    child = session = None
    try:
        command = filled_in(options.command, lease.model)
        if lease.model:
            spec = lease.ticket.spec
            add = len(spec.models) > 1 or not options.model  # else its user says what it will use
            command, changed = with_model(command, lease.model, os.environ, current_folder(), add=add)
            if changed:
                say(changed)
        if lease.ticket.session:
            from fleetgate.runner.session_resume import Session
            from fleetgate.signals.agents import agent_for

            session = Session(gate, lease, agent_for(command, options.classify), fresh=fresh)
            command = session.resuming(command)
        env = environment_for(lease)
        if proxying is not None:
            command = proxying.put(command, env, lease.id)
        argv = in_sandbox(command, lease, gate.settings, environment)
        taps = () if options.classify == "none" else tappable()
        child = Child.prepare(argv, env, own_group=not has_terminal(), taps=taps)
        identity = process_identity.identify(child.pid) or ""  # killed already: `supervise` tells
        held = _claimed(gate, lease, identity, outage)
        if held is None:
            child.abandon()
            return None
        credential = gate.credentials.used_for(lease.model)
        child.start()
    except BaseException as error:
        if child is not None and not isinstance(error, CannotRun):
            child.abandon()
        gate.leave(lease.id, "local_error")
        raise
    lease = held
    from fleetgate.runner.agent_run import SILENCE_S, AgentRun  # the agent runs: now there is time

    silence_s = _silence_s(options) or SILENCE_S
    watch = AgentRun(
        gate,
        lease,
        command,
        classify=options.classify,
        silence_s=silence_s,
        patience_s=_patience_s(options, gate.settings.patience_ms),
        read=bool(taps),
        credential=credential,
        say=say,
        session=session,
        follow=lambda moved: follow(moved, gate.loaded),
        proxied=proxying is not None,
    )
    end = supervise(
        child,
        ends_in_s=(lease.ends_at - gate.now()) / 1000 if lease.ends_at else None,
        every_s=min(_LOOK_S, BEAT_S, silence_s / 4),
        on_tick=watch.tick,
        on_bytes=watch.feed if watch.reader is not None else None,
        ends=watch.ending,
        on_lingering=watch.lingers,
        on_end=watch.ended,
    )
    watch.ended(end)
    return end, watch


def _claimed(gate: SlotGate, lease: Lease, child: str, outage: Outage) -> Lease | None:
    """The lease with its child, which waits meanwhile, if need be for the server's restart. None when it is gone."""
    while True:
        try:
            claimed = gate.decide([cmd.Claim(lease.id, child)])[0]
            return gate.lease(lease.id) if claimed.error is None else None
        except StoreError as error:
            if not outage.bears(error, known=True):
                raise


def _proxying(loaded: Loaded | None, command: list[str], models: tuple[str, ...]) -> ProxyEnvironment:
    """The proxy that the agent is to use; raises before anybody waits for a slot."""
    from fleetgate.cli.proxy_environment import ProxyEnvironment

    return ProxyEnvironment(loaded.settings if loaded is not None else Settings(), command, models)


def _refused(options: RunOptions, asked: AcquireResult, status: Status) -> int:
    """Not admitted: say why, in the way that was asked for."""
    status.note(admitted=False, model=None, lease=None, waited_s=asked.waited_s)
    reason = asked.lease
    if isinstance(reason, Reason):
        told = asked.reason_json(reason)
        if options.json:
            print(asked.refusal_json(reason), flush=True)
        else:
            say(f"not admitted: {reason.text} ({reason.code}){asked.resets(reason)}")
        status.write(exit_code=exit_codes.DEFERRED, reason=told)
        return exit_codes.DEFERRED
    assert isinstance(reason, int)
    code = 128 + reason
    status.write(exit_code=code, signal=reason)
    return code


def _bypass(options: RunOptions, models: tuple[str, ...], status: Status) -> int:
    """FLEETGATE_BYPASS=1: run without asking. It is recorded where that can be done, and never held up by it."""
    began = monotonic()
    model = models[0] if models else ""
    try:
        gate = open_gate(configured=False)
        if not gate.decide_soon([cmd.Bypass(gate.me, models, shown_command(options.command))]):
            raise StoreError(f"process {gate.lock_owner()} keeps the store's lock")
    except StoreError as error:
        say(f"bypass not recorded: {error}")
    status.note(admitted=True, model=model or None, waited_s=round(monotonic() - began, 3))
    env = {**os.environ, "FLEETGATE_MODEL": model}
    child = Child.prepare(filled_in(options.command, model), env, own_group=not has_terminal())
    child.start()
    end = supervise(child)
    status.write(exit_code=end.code, signal=end.signal)
    return end.code
