"""From options to a lease: what `run` and `acquire` share. Waits in the queue, shows progress, leaves on a signal."""

from __future__ import annotations

import os
import signal
from time import monotonic

import msgspec

from fleetgate.cli.open_gate import follow
from fleetgate.cli.run_options import RunOptions
from fleetgate.cli.store_outage import Outage
from fleetgate.cli.wait_progress import Progress, say
from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.config.units import format_duration, parse_duration_ms
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.pools.backoff import NEEDS_A_PERSON
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.slot_gate import Left, SlotGate, unapplied_text
from fleetgate.gate.wakeup import mailbox as wakeup_mailbox
from fleetgate.log.clock import steady
from fleetgate.log.protocol import StoreAway, StoreError, StoreMoved
from fleetgate.present.request_fields import Wanted, candidates, current_folder, project_name, session_key, wanted
from fleetgate.present.text import printable_json
from fleetgate.present.wall_time import local_and_utc, parse_since_ms, utc
from fleetgate.signals.redaction import readable, shown_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.queue.positions import TicketView

_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Request(msgspec.Struct):
    """A request as the command line gives it, checked."""

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
    wait_s: float | None  # None: as long as it takes; 0: not at all
    key: str
    role: str
    command: str
    quiet: bool
    bound: str = ""
    session: str = ""
    note: str = ""  # what its user should know about its models
    patient: bool = True  # with a store whose server is being restarted

    def outage(self) -> Outage:
        """How long it bears with a store that is away."""
        return Outage(self.wait_s if self.patient else 0.0)

    def spec(self, host: str) -> Spec:
        return Spec(
            models=self.models,
            kind=self.kind,
            slots=self.slots,
            host=host,
            project=self.project,
            any=self.any,
            supervisor=self.supervisor,
            caps=self.caps,
            family_caps=self.family_caps,
        )


def read_request(options: RunOptions, environment: Environment, loaded: Loaded | None, kind: str = "agents") -> Request:
    """Check the options of `run` and `acquire`."""
    if options.wait and options.no_wait:
        raise BadRequest("--wait and --no-wait: valid is one of the two")
    caps, family_caps = environment.caps_for(kind)
    wants = _wants(options, environment, loaded)
    return Request(
        models=wants.models,
        note=wants.note,
        kind=kind,
        slots=_integer("--slots", options.slots, 1, 1, 10_000),
        project=project_name(options.project),
        any=options.any,
        supervisor=options.supervisor,
        caps=caps,
        family_caps=family_caps,
        priority=_integer("--priority", options.priority, 0, -100, 100),
        since_wall_ms=parse_since_ms(options.since) if options.since else None,
        expires_ms=_expires_ms(options.expires),
        wait_s=0.0 if options.no_wait else _seconds("--wait", options.wait),
        key=readable(options.key),
        role=readable(options.role),
        command=shown_command(options.command),
        quiet=options.quiet,
        session=session_key(options.session, "--session "),
    )


def _wants(options: RunOptions, environment: Environment, loaded: Loaded | None) -> Wanted:
    if not options.command:  # of `acquire`
        return Wanted(candidates(options.model, environment, loaded))
    return wanted(options.model, options.command, environment, loaded, os.environ, current_folder(), options.classify)


class AcquireResult:
    """What came of asking: `lease` is a Lease, a Reason (not admitted), or the number of a signal."""

    def __init__(self, gate: SlotGate, request: Request, began: float | None) -> None:
        self.lease: Lease | Reason | int = 0
        self.view: TicketView | None = None
        self.gate = gate
        self._request = request
        self.began = monotonic() if began is None else began
        self.waited_s = 0.0
        self.warned = began is not None  # of caps that are not in force

    def settle(self, lease: Lease | Reason | int) -> AcquireResult:
        self.lease = lease
        self.waited_s = round(monotonic() - self.began, 3)
        return self

    def again(self) -> AcquireResult:
        """Ask anew, with the age of the first time."""
        return ask(self.gate, self._request, self.began)

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

    def resets(self, reason: Reason) -> str:
        """When a used-up window is open again, as an addition to a sentence (SPEC R3)."""
        if reason.cause != "usage_window" or not reason.model:
            return ""
        until = self.gate.backed_off_until(reason.model)
        return f"; it resets at {local_and_utc(until + self.gate.wall_offset_ms())}" if until else ""

    def refusal_json(self, reason: Reason) -> str:
        """SPEC O5."""
        view = self.view
        estimate = None if view is None or view.estimate_ms is None else [ms / 1000 for ms in view.estimate_ms]
        told = {
            "deferred": True,
            "reason": self.reason_json(reason),
            "position": None if view is None else view.position,
            "estimate_s": estimate,
            "of": None if view is None else view.of or None,
            "pool": None if view is None else view.pool or None,
        }
        return printable_json(msgspec.json.encode(told).decode())


def ask(gate: SlotGate, request: Request, began: float | None = None) -> AcquireResult:
    """Ask for slots, and wait for them as long as was wished. `began`: when they were first asked for (monotonic)."""
    asked = AcquireResult(gate, request, began)
    usable = _with_credentials(gate, request, tell=began is None and not request.quiet)
    if isinstance(usable, Reason):
        return asked.settle(usable)
    request = usable
    if os.environ.get("FLEETGATE_LEASE") and began is None and request.patient:
        from fleetgate.cli import nested_run
        from fleetgate.cli.open_gate import open_gate

        hindrance = nested_run.hindrance(open_gate(gate.loaded), request)
        if hindrance is not None:
            return asked.settle(hindrance)
    mailbox = _mailbox(gate) if request.wait_s != 0 else None
    gate.address = mailbox.address if mailbox is not None else ""
    command = _acquire(gate, request, began)
    with _Signals(gate) as signals:
        try:
            while (got := _got(asked, request, command, mailbox, signals)) is None:
                say("its place in the queue is gone (the store was replaced, or this host was cut off): asking again")
                command = _acquire(asked.gate, request, asked.began)
            if signals.caught and isinstance(got, Lease):  # it came with the grant: leave all the same
                _leave(asked.gate, command.id)
                got = signals.caught
            return asked.settle(got)
        except _Stopped:
            _leave(asked.gate, command.id)
            return asked.settle(signals.caught)
        finally:
            if mailbox is not None:
                mailbox.close()


def _got(
    asked: AcquireResult,
    request: Request,
    command: cmd.Acquire,
    mailbox: wakeup_mailbox.Mailbox | None,
    signals: _Signals,
) -> Lease | Reason | int | None:
    """What came of a request, wherever its gate goes meanwhile. Asking there once more finds its place."""
    outage = request.outage()
    while True:
        gate = asked.gate
        try:
            got = gate.acquire(command)
            if gate.unapplied and gate.loaded is not None and not (asked.warned or request.quiet):
                asked.warned = True
                say(unapplied_text(gate.loaded.path, gate.unapplied))
            return got or _wait(gate, request, command.id, mailbox, signals, asked)
        except StoreAway as error:
            if not outage.bears(error, known=True, wakeup_fd=signals.fd):
                raise
            if signals.caught:
                return signals.caught
        except StoreMoved as moved:
            asked.gate = follow(moved, gate.loaded)
            asked.gate.address = gate.address
            signals.go_to(asked.gate)
            gate.close()


def _with_credentials(gate: SlotGate, request: Request, *, tell: bool) -> Request | Reason:
    """The request without candidates that are known to have no credentials; a refusal when none is left (SPEC B4).

    A single candidate stays: nobody else could do its work, and its agent may find a credential elsewhere.
    """
    if len(request.models) < 2:
        return request
    left, told = gate.credentials.with_credentials(request.models)
    if not told:
        return request
    if not left:
        return Reason("no_credentials", f"no candidate has credentials; {'; '.join(told)}", model=request.models[0])
    for text in told if tell else ():
        say(f"passed over {text}")
    return msgspec.structs.replace(request, models=left)


def _leave(gate: SlotGate, ident: str) -> None:
    """Go, because of a signal: nothing is worth a delay, not even a store that fails. What is left goes with us."""
    try:
        gate.leave(ident)
    except (StoreError, _Stopped):
        pass


def _acquire(gate: SlotGate, request: Request, began: float | None) -> cmd.Acquire:
    since = None
    if request.since_wall_ms is not None:
        since = request.since_wall_ms - steady(gate.wall_offset_ms())
    elif began is not None:
        since = gate.now() - int((monotonic() - began) * 1000)
    return cmd.Acquire(
        id=new_id(),
        spec=request.spec(gate.host),
        holder=gate.me,
        wait=request.wait_s != 0,
        since=since,
        priority=request.priority,
        expires_ms=request.expires_ms,
        wake=gate.address,
        command=request.command,
        key=request.key,
        role=request.role,
        bound=request.bound,
        asks=gate.usage.accounts(request.models),
        session=request.session,
    )


def _mailbox(gate: SlotGate) -> wakeup_mailbox.Mailbox | None:
    """Where to be woken; without one the backstop poll must do."""
    try:
        return wakeup_mailbox.Mailbox(wakeup_mailbox.runtime_folder(gate.folder)) if gate.folder else None
    except OSError:
        return None


def _wait(
    gate: SlotGate,
    request: Request,
    ident: str,
    mailbox: wakeup_mailbox.Mailbox | None,
    signals: _Signals,
    asked: AcquireResult,
) -> Lease | Reason | int | None:
    """Wait in the queue. None when the whole queue is gone, with the log that it was in."""
    progress = Progress(request.command or "this request", quiet=request.quiet)
    hopeless: list[Reason] = []

    def on_view(view: TicketView) -> None:
        progress.show(view, gate.now())
        if view.reason.cause in NEEDS_A_PERSON and gate.is_hopeless(view):  # not of one candidate alone
            hopeless.append(view.reason)

    waiter = gate.waiter(ident, mailbox, on_view=on_view, on_trouble=progress.trouble)
    until = None if request.wait_s is None else asked.began + request.wait_s
    try:
        got = waiter.wait(until, signals.fd, lambda: bool(signals.caught or hopeless))
    finally:
        progress.clear()
    if isinstance(got, Lease):
        return got
    if isinstance(got, Left):
        if got.why == "lost" and not (request.bound and process_identity.is_gone(request.bound)):
            return None  # of a store that was restored, or of a host that was cut off. Nobody meant us: ask again
        return Reason(got.why, _left(got.why, request))
    if signals.caught:
        _leave(gate, ident)
        return signals.caught
    asked.view = gate.view(ident)
    gate.leave(ident)
    if hopeless:
        return hopeless[-1]
    reason = asked.view.reason if asked.view is not None else Reason("behind", "others are ahead in the queue")
    return Reason(
        reason.code,
        f"after {request.wait_s:g}s in the queue, {reason.text}",
        reason.pool,
        reason.pools,
        reason.until,
        model=reason.model,
        cause=reason.cause,
    )


def _left(why: str, request: Request) -> str:
    if why == "expired":
        return f"expired after {format_duration(request.expires_ms) if request.expires_ms else '24h'} in the queue"
    if why == "lost":
        return f"process {process_identity.pid_of(request.bound)}, which was to have it, is gone"
    return "its ticket was cancelled by somebody"


class _Stopped(Exception):
    """A signal came while we waited for the store's lock."""


class _Signals:
    """While in the queue, a signal means leaving it; elsewhere it is kept until there is time for it."""

    def __init__(self, gate: SlotGate) -> None:
        self.caught = 0
        self.fd = -1
        self._gate = gate
        self._locking = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        self.fd, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._old_fd = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        for number in _LEAVING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._catch)
        self._hook()
        return self

    def _hook(self) -> None:
        start, stop = self._gate.before_lock, self._gate.after_lock

        def before() -> None:
            self._locking = True
            start()

        def after() -> None:
            self._locking = False
            stop()

        self._hooks = (start, stop)
        self._gate.before_lock, self._gate.after_lock = before, after

    def go_to(self, gate: SlotGate) -> None:
        """Another gate is waited for from now on."""
        self._gate.before_lock, self._gate.after_lock = self._hooks
        self._gate = gate
        self._hook()

    def _catch(self, number: int, frame: object) -> None:
        first = not self.caught
        self.caught = self.caught or number
        if self._locking and (self._gate.lock_owner() not in (None, os.getpid()) or not first):
            raise _Stopped

    def __exit__(self, *_: object) -> None:
        self._gate.before_lock, self._gate.after_lock = self._hooks
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._old_fd)
        os.close(self.fd)
        os.close(self._written)


def _integer(name: str, text: str, default: int, low: int, high: int) -> int:
    if not text:
        return default
    digits = text[1:] if text[:1] in ("-", "+") else text
    value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else low - 1
    if not low <= value <= high:
        raise BadRequest(f"{name} {shown(text)}: valid is a whole number from {low} to {high}")
    return value


def _duration(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error


def _expires_ms(text: str) -> int:
    """0: the default."""
    expires_ms = _duration("--expires", text)
    if expires_ms == 0:
        raise BadRequest(f"--expires {shown(text)}: valid is a duration longer than zero, for example 30m or 24h")
    return expires_ms or 0


def _seconds(name: str, text: str) -> float | None:
    ms = _duration(name, text)
    return None if ms is None else ms / 1000


def bound_process(text: str) -> str:
    """The process whose life a lease is tied to (SPEC L4)."""
    pid = _integer("--pid", text, 0, 1, 1 << 22)
    process = process_identity.identify(pid)
    if process is None:
        raise BadRequest(f"--pid {pid}: there is no such process")
    return process
