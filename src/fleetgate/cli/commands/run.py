"""`fleetgate run`: wait for a slot, run an agent, exit with its code.

The rule: nothing slow is imported on this path: no click, no asyncio.
"""

from __future__ import annotations

import os
from time import monotonic, time_ns
from typing import TYPE_CHECKING

import msgspec

from fleetgate.cli import exit_codes
from fleetgate.cli.open_gate import follow, load_config, open_gate, open_patiently, open_slot_gate
from fleetgate.cli.run.acquire_slot import AcquireResult, Request, acquire_slot, read_request
from fleetgate.cli.run.run_options import RunOptions
from fleetgate.cli.run.status_file import Status
from fleetgate.cli.run.step_log import log_step
from fleetgate.cli.run.wait_progress import say
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
from fleetgate.present.json.usage import usage_json
from fleetgate.present.request_fields import current_folder
from fleetgate.present.text import author
from fleetgate.runner.child import CannotRun, Child, tappable
from fleetgate.runner.launch import environment_for, in_sandbox, limit_subagents, login_for
from fleetgate.runner.supervisor import STOPPED, ProcessEnd, supervise
from fleetgate.runner.terminal_foreground import has_terminal
from fleetgate.signals.agents import with_model
from fleetgate.signals.agents.placeholders import filled_in
from fleetgate.signals.redaction import shown_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetgate.cli.run.proxy_environment import ProxyEnvironment
    from fleetgate.cli.store_outage import Outage
    from fleetgate.jobs.run_outputs import RunOutput
    from fleetgate.runner.agent_run import AgentRun

_LOOK_S = 1.5  # how often to check that the lease still exists; see gate/replica/lost_log_recovery.py
_MORE_CANDIDATES = 2  # how often a refused agent is started again with the next candidate
_STOPPED_CODE = 143  # as after SIGTERM, whether the agent needed SIGKILL or left by itself
_STOPPED = {
    "no_record": "it printed nothing that Fleetgate recognizes within 3m of its start",
    "silent": "it printed nothing for too long",
    "cut_off": 'this host cannot reach the store, which will give its slot to another agent (run.on_cutoff = "end")',
}


def run(options: RunOptions) -> int:
    """Wait for a slot and run the command; the exit code. The result is also written to the status file."""
    if not options.shim:
        return _run_with_status(options)
    from fleetgate.cli.run.shim_run import run_shim

    return run_shim(options, _run_with_status)


def _run_with_status(options: RunOptions) -> int:
    status = Status(options.status_file)
    try:
        code = _run(options, status)
    except FleetgateError as error:
        status.write(exit_code=exit_codes.exit_code(error), reason={"code": "error", "text": str(error)})
        raise
    return code


def _run(options: RunOptions, status: Status) -> int:
    if not options.command:
        raise BadRequest("no command given: fleetgate run [options] -- COMMAND…")
    environment = Environment.read()
    loaded = load_config()
    request = read_request(options, environment, loaded)
    if request.note and not options.quiet:
        say(request.note)
    if environment.bypass:
        return _bypass(options, request.models, status, loaded.settings if loaded is not None else Settings())
    _check_agent_options(options)
    proxying = _proxying(loaded, options.command, request.models) if options.proxied else None
    if options.share_slot:
        return _in_shared_slot(options, request, loaded, environment, status)
    result = _acquire(options, request, loaded)
    tries, fresh = 0, False
    while result.lease is not None:
        gate, lease = result.gate, result.lease
        status.note(admitted=True, model=lease.model or None, lease=lease.id, waited_s=result.waited_s)
        ended = _under_lease(result, options, environment, fresh, proxying, request.outage())
        if ended is not None:
            end, watch = ended
            result.close()
            result.gate = gate = watch.gate
            if watch.stale_session and not fresh:
                fresh = True
            elif not (watch.worth_another and tries < _MORE_CANDIDATES and _other_candidate(gate, lease)):
                return _finished(options, gate, lease, end, watch, status)
            else:
                tries += 1
            watch.tell()
        # Request again: for the next candidate, without a session that no longer exists, or because the slot was
        # reclaimed before the agent started.
        result = result.again()
    return _refused(options, result, status)


def _acquire(options: RunOptions, request: Request, loaded: Loaded | None) -> AcquireResult:
    """Request a slot; with --fail-open, a run without a store goes ahead without one."""
    request.patient = not options.fail_open
    try:
        return acquire_slot(open_patiently(loaded, request.outage()), request)
    except StoreError as error:
        if not options.fail_open:
            raise
        say(f"{error}; running without a slot{'' if options.shim else ' (--fail-open)'}")
    from fleetgate.gate.slots.fail_open_gate import FailOpenGate

    late = FailOpenGate(loaded, lambda: open_slot_gate(loaded), say)
    return acquire_slot(late, msgspec.structs.replace(request, wait_s=0.0))


def _in_shared_slot(
    options: RunOptions, request: Request, loaded: Loaded | None, environment: Environment, status: Status
) -> int:
    """--share-slot: run in the slot of the enclosing run, one at a time."""
    from fleetgate.cli.run.nested_run import NestedShare, shared_lease

    began = monotonic()
    gate = open_gate(loaded)
    lease = shared_lease(gate, request)
    share = NestedShare(gate.folder, lease.id)
    if not share.take(request.wait_s):
        reason = Reason("nested", f"another run is using the shared slot of {lease.id}", model=lease.model)
        return _refused(options, AcquireResult(gate, request, began).finish(reason), status)
    try:
        status.note(admitted=True, model=lease.model or None, lease=lease.id, waited_s=round(monotonic() - began, 3))
        command = in_sandbox(filled_in(options.command, lease.model), lease, gate.settings, environment)
        child = Child.prepare(command, environment_for(lease, gate.settings), own_group=not has_terminal())
        child.start()
        end = supervise(child)
    finally:
        share.release()
    status.write(exit_code=end.code, signal=end.signal)
    return end.code


def _finished(
    options: RunOptions, gate: SlotGate, lease: Lease, end: ProcessEnd, watch: AgentRun, status: Status
) -> int:
    code = end.code
    told = watch.tell()
    if end.overstayed:
        limit = format_duration(lease.ends_at - lease.granted_at)
        say(f"stopped the agent after {limit}, the maximum hold time of its pool")
    elif watch.stop.budget and end.ended_because:
        say(f'stopped the agent: budget {watch.stop.budget} is used up (when_empty = "stop")')
    elif end.ended_because == STOPPED:
        say(f"stopped by {author(watch.stop.by)}")
    elif end.ended_because in _STOPPED:
        say(f"stopped the agent: {_STOPPED[end.ended_because]}")
    if watch.spent_text and not options.quiet and (told or end.ended_because or os.isatty(2)):
        say(watch.spent_text)
    if end.ended_because == STOPPED:
        code = code if watch.facts.get("kind") == "ok" else _STOPPED_CODE
    elif end.ended_because or (watch.limited and not end.interrupted and not options.shim):
        code = exit_codes.DEFERRED
    elif end.interrupted and not code and (watch.interrupted or watch.limited):
        code = 128 + end.interrupted
    status.write(exit_code=code, signal=end.signal, outcome=watch.facts, usage=usage_json(watch.used))
    gate.maintain()
    return code


def _other_candidate(gate: SlotGate, lease: Lease) -> bool:
    """Whether a model other than the refused one may be used now."""
    return gate.has_other_candidate(lease)


def _check_agent_options(options: RunOptions) -> None:
    """Report mistakes in these options before the wait for a slot."""
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
    result: AcquireResult,
    options: RunOptions,
    environment: Environment,
    fresh: bool,
    proxying: ProxyEnvironment | None,
    outage: Outage,
) -> tuple[ProcessEnd, AgentRun] | None:
    """Start the agent and supervise it. None when the lease ended before the agent could start.

    The child waits until its pid is committed with the lease: if this process is killed at any moment, a running child
    keeps its slot and a dead one gives it up.
    """
    gate, lease, mailbox = result.gate, result.lease, result.mailbox
    assert lease is not None
    child = session = None
    try:
        env = environment_for(lease, gate.settings)
        command = filled_in(options.command, lease.model)
        if lease.model and not options.shim:
            spec = lease.ticket.spec
            add = len(spec.models) > 1 or not options.model  # otherwise its user has chosen the model
            command, changed = with_model(command, lease.model, env, current_folder(), add=add)
            if changed:
                say(changed)
        if lease.ticket.session:
            from fleetgate.runner.session_resume import SessionResume
            from fleetgate.signals.agents import agent_for

            session = SessionResume(gate, lease, agent_for(command, options.classify), fresh=fresh)
            command = session.resuming(command)
        command = limit_subagents(command, env, gate.settings)
        if proxying is not None:
            command = proxying.put(command, env, lease)
        argv = in_sandbox(command, lease, gate.settings, environment)
        taps = tappable(terminals=options.log) if options.log or options.classify != "none" else []
        child = Child.prepare(argv, env, own_group=not has_terminal(), taps=taps)
        identity = process_identity.identify(child.pid) or ""  # "": killed already, which `supervise` reports
        held = _claimed(gate, lease, identity, outage)
        if held is None:
            child.abandon()
            return None
        credential = gate.credentials.used_for(lease.model)
        began_wall_ms = time_ns() // 1_000_000
        child.start()
        log_step(lease.id, f"started process {child.pid}: {lease.ticket.command}")
    except BaseException as error:
        if child is not None and not isinstance(error, CannotRun):
            child.abandon()
        gate.leave(lease.id, "local_error")
        raise
    lease = held
    from fleetgate.runner.agent_run import SILENCE_S, AgentRun  # imported here: the agent is already running

    silence_s = _silence_s(options) or SILENCE_S
    watch = AgentRun(
        gate,
        lease,
        command,
        classify=options.classify,
        silence_s=silence_s,
        patience_s=_patience_s(options, gate.settings.patience_ms),
        read=bool(taps) and options.classify != "none",
        credential=credential,
        began_wall_ms=began_wall_ms,
        pid=child.pid,
        environ=env,
        folder=current_folder(),
        say=say,
        session=session,
        follow=lambda moved: follow(moved, gate.loaded),
        proxied=proxying is not None,
        stops=not options.shim,
    )

    kept = _kept_output(options, gate, lease)

    def on_message() -> str:
        return watch.look_for_stop(told=True) if mailbox is not None and mailbox.drain() else ""

    end = supervise(
        child,
        fd=None if mailbox is None else mailbox.fileno(),
        on_readable=on_message,
        ends_in_s=(lease.ends_at - gate.now()) / 1000 if lease.ends_at else None,
        every_s=min(_LOOK_S, BEAT_S, silence_s / 4),
        on_tick=watch.tick,
        on_bytes=_on_bytes(watch, kept),
        ends=watch.ending,
        on_lingering=watch.lingers,
        on_end=watch.ended,
    )
    watch.ended(end)
    if kept is not None and (lost := kept.ended(_how(end))):
        say(f"{lost} bytes of the output could not be kept")
    log_step(lease.id, f"ended with {_how(end)}")
    return end, watch


def _how(end: ProcessEnd) -> str:
    return f"signal {end.signal}" if end.signal else f"exit code {end.code}"


def _kept_output(options: RunOptions, gate: SlotGate, lease: Lease) -> RunOutput | None:
    """--log: where the output is kept. What is too old of other runs is deleted."""
    if not options.log or not gate.folder:
        return None  # a store in memory keeps nothing
    from fleetgate.jobs.run_outputs import RunOutput, clean

    settings = gate.settings.jobs
    clean(gate.folder, time_ns() // 1_000_000 - settings.keep_ms, {lease.id})
    return RunOutput(gate.folder, lease, settings.output_bytes)


def _on_bytes(watch: AgentRun, kept: RunOutput | None) -> Callable[[int, bytes], None] | None:
    """What is shown each piece of output: the file that keeps it, the reader of the agent's records, or both."""
    if kept is None:
        return watch.feed if watch.reader is not None else None
    if watch.reader is None:
        return kept.write

    def both(stream: int, data: bytes) -> None:
        kept.write(stream, data)
        watch.feed(stream, data)

    return both


def _claimed(gate: SlotGate, lease: Lease, child: str, outage: Outage) -> Lease | None:
    """The lease with its child, which waits until then, even for a restart of the server. None: the lease ended."""
    while True:
        try:
            claimed = gate.decide([cmd.Claim(lease.id, child)])[0]
            return gate.lease(lease.id) if claimed.error is None else None
        except StoreError as error:
            if not outage.retries_after(error, known=True):
                raise


def _proxying(loaded: Loaded | None, command: list[str], models: tuple[str, ...]) -> ProxyEnvironment:
    """The proxy for the agent; raises before the wait for a slot if it cannot be used."""
    from fleetgate.cli.run.proxy_environment import ProxyEnvironment

    return ProxyEnvironment(loaded.settings if loaded is not None else Settings(), command, models)


def _refused(options: RunOptions, result: AcquireResult, status: Status) -> int:
    """Report why there is no slot, as text or JSON."""
    status.note(admitted=False, model=None, lease=None, waited_s=result.waited_s)
    reason = result.refusal
    if reason is None:
        code = 128 + result.signal
        status.write(exit_code=code, signal=result.signal)
        return code
    if options.json:
        print(result.refusal_json(reason), flush=True)
    else:
        say(result.refusal_text(reason))
    status.write(exit_code=exit_codes.DEFERRED, reason=result.reason_json(reason))
    return exit_codes.DEFERRED


def _bypass(options: RunOptions, models: tuple[str, ...], status: Status, settings: Settings) -> int:
    """FLEETGATE_BYPASS=1: run without a slot. It is recorded if that is possible without a delay."""
    began = monotonic()
    model = models[0] if models else ""
    try:
        gate = open_gate(configured=False)
        if not gate.decide_soon([cmd.Bypass(gate.me, models, shown_command(options.command))]):
            raise StoreError(f"process {gate.lock_owner()} holds the store's lock")
    except StoreError as error:
        say(f"bypass not recorded: {error}")
    status.note(admitted=True, model=model or None, waited_s=round(monotonic() - began, 3))
    env = {**os.environ, **login_for(model, settings), "FLEETGATE_MODEL": model}
    child = Child.prepare(filled_in(options.command, model), env, own_group=not has_terminal())
    child.start()
    end = supervise(child)
    status.write(exit_code=end.code, signal=end.signal)
    return end.code
