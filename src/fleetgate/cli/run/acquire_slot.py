"""The request for a slot that `run` and `acquire` share: checked options, the wait in the queue, and its result.

A process waits as long as its user allows. It leaves the queue on a signal, and continues to wait when the store's
server restarts or the gate moves to another store.
"""

from __future__ import annotations

import os
from time import monotonic

import msgspec

from fleetgate.cli.open_gate import follow
from fleetgate.cli.run.leave_on_signal import LeaveOnSignal, Stopped
from fleetgate.cli.run.mistyped_models import mention_mistyped
from fleetgate.cli.run.option_values import expires_ms, integer, seconds
from fleetgate.cli.run.run_options import RunOptions
from fleetgate.cli.run.step_log import log_step
from fleetgate.cli.run.wait_progress import Progress, say
from fleetgate.cli.store_outage import Outage
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.config.units import format_duration
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import BATCH, INTERACTIVE, NORMAL, Lease, Reason, Spec
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.pools.backoff import NEEDS_A_PERSON
from fleetgate.gate.acquire_command import acquire_command
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.slot_gate import Left, QueuedTicket, SlotGate, unapplied_text
from fleetgate.gate.wakeup import mailbox as wakeup_mailbox
from fleetgate.log.clock import steady
from fleetgate.log.protocol import StoreAway, StoreError, StoreMoved
from fleetgate.present.request_fields import (
    ModelCandidates,
    candidates,
    current_folder,
    project_name,
    request_name,
    session_key,
    unchanged,
    wanted,
    work_class,
)
from fleetgate.present.text import author, printable_json
from fleetgate.present.wall_time import local_and_utc, parse_since_ms, utc
from fleetgate.signals.redaction import readable, shown_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.queue.positions import TicketView

_RECENT_EVENTS = 1000  # in which a cancellation that just happened is looked for


class Request(msgspec.Struct):
    """The checked options of one request."""

    models: tuple[str, ...]
    kind: str
    slots: int
    project: str
    any: bool
    supervisor: bool
    caps: tuple[tuple[str, int], ...]
    family_caps: tuple[tuple[str, int], ...]
    priority: int
    since_wall_ms: int | None
    expires_ms: int
    wait_s: float | None  # None: no limit; 0: does not wait
    key: str
    role: str
    command: str
    quiet: bool
    work_class: str = NORMAL
    bound: str = ""
    session: str = ""
    name: str = ""
    log: bool = False
    note: str = ""  # what its user should know about its models
    patient: bool = True  # waits for a store whose server is being restarted
    accounts: tuple[str, ...] = ()  # of a set, those that may be used, where not all

    def outage(self) -> Outage:
        """How long this request waits for a store that is unreachable."""
        return Outage(self.wait_s if self.patient else 0.0)

    def spec(self, host: str) -> Spec:
        return Spec(
            models=self.models,
            kind=self.kind,
            slots=self.slots,
            host=host,
            project=self.project,
            any_candidate=self.any,
            supervisor=self.supervisor,
            caps=self.caps,
            family_caps=self.family_caps,
            work_class=self.work_class,
            accounts=self.accounts,
        )


def read_request(options: RunOptions, environment: Environment, loaded: Loaded | None, kind: str = "agents") -> Request:
    """Check the options of `run` and `acquire`."""
    if options.wait and options.no_wait:
        raise BadRequest("--wait and --no-wait: valid is one of the two")
    caps, family_caps = environment.caps_for(kind)
    wants = _wants(options, environment, loaded)
    project = project_name(options.project)
    return Request(
        models=wants.models,
        note=wants.note,
        kind=kind,
        slots=integer("--slots", options.slots, 1, 1, 10_000),
        project=project,
        work_class=_work_class(options, project, loaded),
        any=options.any,
        supervisor=options.supervisor,
        caps=caps,
        family_caps=family_caps,
        priority=integer("--priority", options.priority, 0, -100, 100),
        since_wall_ms=parse_since_ms(options.since) if options.since else None,
        expires_ms=expires_ms(options.expires),
        wait_s=0.0 if options.no_wait else seconds("--wait", options.wait),
        key=readable(options.key),
        role=readable(options.role),
        name=request_name(options.name),
        log=options.log,
        command=_shown(options),
        quiet=options.quiet,
        session=session_key(options.session, "--session "),
    )


def _work_class(options: RunOptions, project: str, loaded: Loaded | None) -> str:
    """A command on a terminal is interactive unless it says otherwise (rule W4)."""
    if options.batch and options.work_class not in ("", BATCH):
        raise BadRequest(f"--batch and --class {options.work_class}: valid is one of the two")
    default = INTERACTIVE if options.command and os.isatty(0) and os.isatty(1) else NORMAL
    return work_class(BATCH if options.batch else options.work_class, project, loaded, default)


def _shown(options: RunOptions) -> str:
    """The command as listings show it: that of a shim as its user typed it, without the folder of the program."""
    command = options.command
    return shown_command([os.path.basename(command[0]), *command[1:]] if options.shim and command else command)


def _wants(options: RunOptions, environment: Environment, loaded: Loaded | None) -> ModelCandidates:
    if not options.command:  # `acquire` has none
        return ModelCandidates(candidates(options.model, environment, loaded))
    if options.shim and not options.model:
        return unchanged(options.command, environment, os.environ, current_folder())
    return wanted(options.model, options.command, environment, loaded, os.environ, current_folder(), options.classify)


class Interrupted(msgspec.Struct, frozen=True):
    """The wait was ended by a signal."""

    signal: int


Outcome = Lease | Reason | Interrupted


class AcquireResult:
    """The result of a request: a lease, a refusal, or the number of the signal that ended the wait."""

    def __init__(self, gate: SlotGate, request: Request, began: float | None) -> None:
        self.lease: Lease | None = None
        self.refusal: Reason | None = None
        self.signal = 0
        self.view: TicketView | None = None
        self.mailbox: wakeup_mailbox.Mailbox | None = None  # of a run: open while its agent is running
        self.gate = gate
        self._request = request
        self.began = monotonic() if began is None else began
        self.waited_s = 0.0
        self.warned = began is not None  # about caps that are not in force
        self.mentioned = began is not None  # a model that looks mistyped

    def finish(self, outcome: Outcome) -> AcquireResult:
        self.lease = outcome if isinstance(outcome, Lease) else None
        self.refusal = outcome if isinstance(outcome, Reason) else None
        self.signal = outcome.signal if isinstance(outcome, Interrupted) else 0
        self.waited_s = round(monotonic() - self.began, 3)
        return self

    def again(self) -> AcquireResult:
        """Request again, with the age of the first request."""
        self.close()
        return acquire_slot(self.gate, self._request, self.began)

    def close(self) -> None:
        """No more messages for this process."""
        if self.mailbox is not None:
            self.mailbox.close()

    def reason_json(self, reason: Reason) -> dict[str, object]:
        until = None if reason.until is None else utc(reason.until + self.gate.wall_offset_ms())
        return {
            "code": reason.code,
            "text": reason.text,
            "pool": reason.pool or None,
            "pools": reason.pools,
            "until": until,
            "cause": reason.cause or None,
        }

    def refusal_text(self, reason: Reason) -> str:
        """The refusal as one sentence."""
        prefix = "" if reason.code in ("cancelled", "expired") else "not admitted: "
        return f"{prefix}{reason.text}{self._resets(reason)}"

    def _resets(self, reason: Reason) -> str:
        """When a used-up window opens again, as an addition to a sentence."""
        if reason.cause != "usage_window" or not reason.model:
            return ""
        until = self.gate.backed_off_until(reason.model)
        return f"; it resets at {local_and_utc(until + self.gate.wall_offset_ms())}" if until else ""

    def refusal_json(self, reason: Reason) -> str:
        """The refusal as a JSON document."""
        view = self.view
        estimate = None if view is None or view.estimate_ms is None else [ms / 1000 for ms in view.estimate_ms]
        document = {
            "deferred": True,
            "reason": self.reason_json(reason),
            "position": None if view is None else view.position,
            "estimate_s": estimate,
            "of": None if view is None else view.of or None,
            "pool": None if view is None else view.pool or None,
        }
        return printable_json(msgspec.json.encode(document).decode())


def acquire_slot(gate: SlotGate, request: Request, began: float | None = None) -> AcquireResult:
    """Request slots, and wait for them as long as the request allows. `began`: when it was first made (monotonic)."""
    result = AcquireResult(gate, request, began)
    usable = _with_credentials(gate, request, report=began is None and not request.quiet)
    if isinstance(usable, Reason):
        return result.finish(usable)
    request = usable
    if os.environ.get("FLEETGATE_LEASE") and began is None and request.patient:
        from fleetgate.cli.open_gate import open_gate
        from fleetgate.cli.run import nested_run

        hindrance = nested_run.hindrance(open_gate(gate.loaded), request)
        if hindrance is not None:
            return result.finish(hindrance)
    mailbox = _mailbox(gate) if request.wait_s != 0 or not request.bound else None
    gate.address = mailbox.address if mailbox is not None else ""
    command = _acquire(gate, request, began)
    with LeaveOnSignal(gate) as signals:
        try:
            while (outcome := _outcome(result, request, command, mailbox, signals)) is None:
                say("lost its place in the queue (the store was replaced, or this host was cut off): requesting again")
                command = _acquire(result.gate, request, result.began)
            if signals.caught and isinstance(outcome, Lease):  # the grant and the signal came together: leave anyway
                _leave(result.gate, command.id)
                outcome = Interrupted(signals.caught)
            return result.finish(outcome)
        except Stopped:
            _leave(result.gate, command.id)
            return result.finish(Interrupted(signals.caught))
        finally:
            if result.lease is not None and not request.bound:
                result.mailbox = mailbox  # `fleetgate stop` reaches the run through it
            elif mailbox is not None:
                mailbox.close()


def _outcome(
    result: AcquireResult,
    request: Request,
    command: cmd.Acquire,
    mailbox: wakeup_mailbox.Mailbox | None,
    signals: LeaveOnSignal,
) -> Outcome | None:
    """The outcome of a request. If its gate moves meanwhile, the same request at the new place finds its ticket."""
    outage = request.outage()
    while True:
        gate = result.gate
        try:
            log_step(command.id, f"requested a slot for {', '.join(request.models) or 'no model'}")
            got: Outcome | None = gate.acquire(command)
            if gate.unapplied and gate.loaded is not None and not (result.warned or request.quiet):
                result.warned = True
                say(unapplied_text(gate.loaded.path, gate.unapplied))
            if request.models and not (result.mentioned or request.quiet):
                result.mentioned = True
                mention_mistyped(gate, request.models)
            if got is None:
                log_step(command.id, "queued")
                got = _wait(gate, request, command.id, mailbox, signals, result)
            if isinstance(got, Lease):
                log_step(command.id, f"granted {got.model or 'a slot'} after {monotonic() - result.began:.3f} s")
            return got
        except StoreAway as error:
            if not outage.retries_after(error, known=True, wakeup_fd=signals.fd):
                raise
            if signals.caught:
                return Interrupted(signals.caught)
        except StoreMoved as moved:
            result.gate = follow(moved, gate.loaded)
            result.gate.address = gate.address
            signals.switch_to(result.gate)
            gate.close()


def _with_credentials(gate: SlotGate, request: Request, *, report: bool) -> Request | Reason:
    """The request without candidates that are known to have no credentials; a refusal when none is left (rule B4).

    A single candidate stays: its agent may find a credential elsewhere. Of a set, accounts with a credential are used.
    """
    request = msgspec.structs.replace(request, accounts=gate.credentials.accounts_left(request.models))
    if len(request.models) < 2:
        return request
    left, missing = gate.credentials.with_credentials(request.models)
    if not missing:
        return request
    if not left:
        return Reason("no_credentials", f"no candidate has credentials; {'; '.join(missing)}", model=request.models[0])
    for text in missing if report else ():
        say(f"skipped {text}")
    return msgspec.structs.replace(request, models=left)


def _leave(gate: SlotGate, ident: str) -> None:
    """Leave because of a signal, at once: if the store fails, others find the ticket's process gone."""
    try:
        gate.leave(ident)
    except (StoreError, Stopped):
        pass


def _acquire(gate: SlotGate, request: Request, began: float | None) -> cmd.Acquire:
    since = None
    if request.since_wall_ms is not None:
        since = request.since_wall_ms - steady(gate.wall_offset_ms())
    elif began is not None:
        since = gate.now() - int((monotonic() - began) * 1000)
    return acquire_command(
        gate,
        request.spec(gate.host),
        wait=request.wait_s != 0,
        since=since,
        priority=request.priority,
        expires_ms=request.expires_ms,
        command=request.command,
        key=request.key,
        role=request.role,
        name=request.name,
        log=request.log,
        bound=request.bound,
        session=request.session,
    )


def _mailbox(gate: SlotGate) -> wakeup_mailbox.Mailbox | None:
    """The socket that wakes this process; without one it polls."""
    try:
        return wakeup_mailbox.Mailbox(wakeup_mailbox.runtime_folder(gate.folder)) if gate.folder else None
    except OSError:
        return None


def _wait(
    gate: SlotGate,
    request: Request,
    ident: str,
    mailbox: wakeup_mailbox.Mailbox | None,
    signals: LeaveOnSignal,
    result: AcquireResult,
) -> Outcome | None:
    """Wait in the queue. None when the whole queue is gone, together with the log that it was in."""
    progress = Progress(quiet=request.quiet)
    hopeless: list[Reason] = []

    def on_view(view: TicketView) -> None:
        progress.show(view, gate.now())
        if view.reason.cause in NEEDS_A_PERSON and gate.is_hopeless(view):  # all candidates, not just one
            hopeless.append(view.reason)

    waiter = gate.waiter(QueuedTicket(ident, mailbox, on_view, progress.trouble))
    until = None if request.wait_s is None else result.began + request.wait_s
    try:
        got = waiter.wait(until, signals.fd, lambda: bool(signals.caught or hopeless))
    finally:
        progress.clear()
    if isinstance(got, Lease):
        return got
    if isinstance(got, Left):
        if got.why == "lost" and not (request.bound and process_identity.is_gone(request.bound)):
            return None  # the store was restored, or this host was cut off: request again
        return Reason(got.why, _left_text(gate, ident, got.why, request))
    if signals.caught:
        _leave(gate, ident)
        return Interrupted(signals.caught)
    result.view = gate.view(ident)
    gate.leave(ident)
    if hopeless:
        return hopeless[-1]
    reason = result.view.reason if result.view is not None else Reason("behind", "others are ahead in the queue")
    waited = format_duration(int((request.wait_s or 0) * 1000), 2)
    return Reason(
        reason.code,
        f"no slot within {waited}: {reason.text}",
        reason.pool,
        reason.pools,
        reason.until,
        model=reason.model,
        cause=reason.cause,
    )


def _left_text(gate: SlotGate, ident: str, why: str, request: Request) -> str:
    """Why a ticket left the queue without a lease."""
    if why == "expired":
        return f"expired after {format_duration(request.expires_ms) if request.expires_ms else '24h'} in the queue"
    if why == "lost":
        return f"process {process_identity.pid_of(request.bound)}, which was to own the lease, has exited"
    by = _cancelled_by(gate, ident)
    return f"cancelled by {by}" if by else "cancelled"


def _cancelled_by(gate: SlotGate, ident: str) -> str:
    """The user and host in the history of a ticket that was just cancelled; "" where that cannot be found out."""
    from fleetgate.cli.open_gate import open_gate

    try:
        reader = open_gate(gate.loaded)
        history = reader.log.history(max(reader.replica.catch_up().seq - _RECENT_EVENTS, 0))
        found = [event.by for _, _, event in history if isinstance(event, ev.Cancelled) and event.id == ident]
        reader.close()
    except FleetgateError:
        return ""
    return author(found[-1]) if found else ""


def bound_process(text: str) -> str:
    """The process with which a lease ends (rule L4)."""
    pid = integer("--pid", text, 0, 1, 1 << 22)
    process = process_identity.identify(pid)
    if process is None:
        raise BadRequest(f"--pid {pid}: there is no such process")
    return process
