"""An agent that runs under a lease: its output is read, its end is classified and reported (rules R4, R5).

This module is loaded after the agent was started. A terminal is never read: then only the exit code counts, and the
files that some agents keep of their sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time_ns

from fleetgate.config.units import format_duration
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import account_of, parse_model
from fleetgate.core.usage import ESTIMATE, Usage
from fleetgate.gate.liveness.host_beats import CUT_OFF_MS
from fleetgate.gate.providers.credentials import HeldCredential
from fleetgate.gate.slots.slot_gate import SlotGate, StopRequest
from fleetgate.log.protocol import LogReplaced, SideWrite, StoreError, StoreMoved
from fleetgate.present.text import spent_text
from fleetgate.present.wall_time import local_and_utc, utc
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.refusal_patience import Patience
from fleetgate.runner.run_usage import RunUsage, report_plan
from fleetgate.runner.session_resume import SessionResume
from fleetgate.runner.supervisor import STOPPED, ProcessEnd
from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import AgentRefusal, Reader, judge_by_exit_only
from fleetgate.signals.outcome import (
    AUTH,
    LIMITS,
    LOCAL_ERROR,
    OVERLOADED,
    QUOTA,
    RATE_LIMITED,
    USAGE_WINDOW,
    Outcome,
    outcome,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Thread

    from fleetgate.gate.replica.replica import Decided

SILENCE_S = 20 * 60.0
CUT_OFF = "cut_off"
BUDGET = "budget"
_FOLLOW_S = 30.0
_QUIET_MS = 5_000  # an agent that printed nothing for this long may be waiting for one of its calls
_TELL_AGAIN_S = 5.0  # how often refusals in a row are reported to the gate
_TROUBLE = (FleetgateError, LogReplaced, OSError)  # with the store
_NEXT_CANDIDATE = (AUTH, RATE_LIMITED)

# What a limit is for a person; the code is in the status file and the history.
_REFUSALS = {
    RATE_LIMITED: "hit a rate limit",
    USAGE_WINDOW: "has used up its usage window",
    QUOTA: "has no quota left",
    OVERLOADED: "is overloaded",
    AUTH: "rejected the login",
}


class AgentRun:
    """One running agent, from its start to its release. `say` prints a line for the user."""

    def __init__(
        self,
        gate: SlotGate,
        lease: Lease,
        argv: list[str],
        *,
        classify: str,
        silence_s: float,
        patience_s: float,
        read: bool,
        say: Callable[[str], None],
        credential: HeldCredential,
        began_wall_ms: int,
        pid: int,
        environ: Mapping[str, str],
        folder: str,
        session: SessionResume | None = None,
        follow: Callable[[StoreMoved], SlotGate] | None = None,
        proxied: bool = False,
        stops: bool = True,
    ) -> None:
        self._credential = credential  # when the agent was started: it may log in again meanwhile
        self.outcome: Outcome | None = None
        self._say = say
        self._gate = gate
        self._follow = follow  # how to go where the gate was moved to
        self._following: Thread | None = None
        self._lease = lease
        self._agent = agent_for(argv, classify)
        self._environ = environ
        self._since_wall_ms = began_wall_ms
        self.records = RunUsage(
            self._agent,
            argv,
            environ=environ,
            folder=folder,
            began_wall_ms=began_wall_ms,
            pid=pid,
            model=lease.model,
            prices=gate.settings.prices,
        )
        self.used: Usage | None = None  # in all; known when it has ended
        self._by_files = False  # what the agent wrote down decided
        self.stop = StopRequest()  # why it is stopped, if it is: by a user, or for a used-up budget
        self.interrupted = False  # it got a signal to end, and exited 0 before it had finished
        self._left = False  # it was on a terminal, and ended well: its user left it
        self.reader = Reader(self._agent, argv, lambda: time_ns() // 1_000_000) if read else None
        self.ending: EarlyStop | None = None
        self.patience: Patience | None = None
        self._patience_s = patience_s
        if self.reader is not None and self.reader.mode == "stream" and stops:
            if patience_s:
                self.patience = Patience(self.reader, patience_s, self._has_other_candidate)
            self.ending = EarlyStop(self.reader, silence_s=silence_s, patience=self.patience)
        self._proxied = proxied
        self._quiet_ms = min(_QUIET_MS, silence_s * 1000 / 4)
        self._began_at = self._ticked_at = monotonic()
        self._told_at: float | None = None  # when the gate was told of a refusal
        self._read_until = -1  # of the output, in search of one
        self.holder = ""  # who must hold the lease, where its id is used again and again
        self._session = session
        self._probes = gate.is_probe(lease.id)
        self._tied = False

    @property
    def gate(self) -> SlotGate:
        """Where its lease is by now."""
        return self._gate

    # While it runs. Nothing here waits for the store: the agent's output would wait with it.

    def feed(self, stream: int, data: bytes) -> None:
        """A piece of output, which was passed on already."""
        if self.reader is not None:
            self.reader.feed(stream, data)
            if self._probes:
                self._report_activity()
            if stream == 1 and self.reader.mode == "stream" and not self.reader.activity:
                self.hold_back_others()

    def tick(self) -> str:
        """Now and then; why the agent is to be ended, if it is."""
        self._report_activity()
        self.hold_back_others()
        self._look_for_calls()
        self.look_at_records()
        self._report_plan()
        try:
            self._gate.tick(self._lease)
        except StoreMoved as moved:
            if self._following is None and self._follow is not None:
                from threading import Thread

                self._following = Thread(target=self._go_after, args=(moved,), daemon=True)
                self._following.start()
        if why := self.look_for_stop():
            return why
        return CUT_OFF if self._gate.settings.on_cutoff == "end" and self._gate.silent_ms() > CUT_OFF_MS else ""

    def look_at_records(self) -> None:
        """What the agent writes down while it runs."""
        self.records.look(self.reader.session if self.reader is not None else "")

    def look_for_stop(self, *, told: bool = False) -> str:
        """Whether the agent is to be stopped, and why. `told`: a message says that there is something to see."""
        if self.stop == StopRequest():
            self.stop = self._gate.stop_request(self._lease, told=told) or self.stop
        return STOPPED if self.stop.by else BUDGET if self.stop.budget else ""

    def _go_after(self, moved: StoreMoved) -> None:
        """In a thread. Where it fails, the end of the agent says so."""
        assert self._follow is not None
        try:
            self._gate = self._follow(moved)
        except _TROUBLE:
            return

    def _report_activity(self) -> None:
        """Report the first activity of a probe: other agents wait for its verdict (rule B2)."""
        if self._probes and self.reader is not None and self.reader.activity:
            try:
                self._probes = not self._gate.try_decide([cmd.Active(self._lease.id)])
            except _TROUBLE:
                self._probes = False  # the verdict comes with time as well, and trying again would cost the output

    def _report_plan(self) -> None:
        """Report the plan windows that the agent speaks of (rule W1); they are never waited for."""
        try:
            report_plan(self._gate, self._lease.model or f"{self._agent.provider}/", self.reader, self.records)
        except _TROUBLE:
            return

    def hold_back_others(self) -> None:
        """Report a refusal: the agent retries and keeps its slot, and others need not hit the same limit."""
        reader = self.reader
        if reader is None or reader.seen == self._read_until:
            return
        refusal = self._refusal(reader)
        if refusal is None:
            self._read_until = reader.seen
            return
        now, before = monotonic(), self._told_at
        if before is not None and now < before + _TELL_AGAIN_S:
            return
        held_back = self._release(refusal.outcome, ProcessEnd(None, None))
        held_back.keeps, held_back.holder = True, self.holder
        try:
            if not self._gate.try_decide([held_back]):
                return  # try again later
        except _TROUBLE:
            return
        self._told_at, self._read_until = now, reader.seen
        if before is None:
            self._tell_refusal(refusal.outcome)

    def _refusal(self, reader: Reader) -> AgentRefusal | None:
        """What the agent says that others should know before it ends."""
        try:
            refusal = reader.refusal
        except Exception:
            return None  # output that cannot be read decides nothing: see runner/early_stop.py
        if refusal is None or not refusal.again or refusal.outcome.kind not in LIMITS:
            return None
        # A login may be healed by the agent itself, and for what lasts longer the agent is ended: its end tells.
        lasts = refusal.outcome.kind in (USAGE_WINDOW, QUOTA) and not reader.activity
        return None if lasts or refusal.outcome.kind == AUTH else refusal

    def _tell_refusal(self, refused: Outcome) -> None:
        what = f"{self._lease.model or 'the agent'}: {refused.kind}: {refused.evidence or refused.rule}"
        after = format_duration(int(self._patience_s * 1000))
        ends = f"; it is ended after {after} without progress" if self.patience is not None else ""
        self._say(f"{what}. The agent retries; others wait meanwhile{ends}")

    def _has_other_candidate(self) -> bool:
        """Whether this agent could run on another model at once."""
        try:
            return len(self._lease.ticket.spec.models) > 1 and self._gate.has_other_candidate(self._lease)
        except _TROUBLE:
            return False

    def _look_for_calls(self) -> None:
        """While a call of the agent waits in the proxy or is answered there, the agent is not silent: it waits."""
        now, before = monotonic(), self._ticked_at
        self._ticked_at = now
        if not self._proxied or self.ending is None or self.ending.silent_ms(now * 1000) < self._quiet_ms:
            return
        try:
            waits = self._gate.has_open_calls(self._lease.id)
        except _TROUBLE:
            return
        if waits:
            self.ending.stood_still((now - before) * 1000)

    def lingers(self) -> None:
        """Tie the slot to this process while members of the dead agent's group are alive (rule R5)."""
        if self._tied:
            return
        try:
            self._tied = self._gate.try_decide([cmd.Claim(self._lease.id, self._gate.me)])
        except _TROUBLE:
            pass  # try again later

    # Its end.

    def ended(self, end: ProcessEnd) -> None:
        """The agent is gone: judge how, and give its slot back."""
        if self.outcome is not None:
            return
        self.outcome = self._judge(end)
        side = [] if self._session is None else self._session.ended(self.reader, end)
        durable = self._session is not None and self._session.changed
        if self._following is not None:
            self._following.join(_FOLLOW_S)
        release = self._release(self.outcome, end)
        release.usage = self.used = self.records.find(self.reader, self._session.resumed if self._session else "")
        try:
            if end.ended_because == CUT_OFF and not self._could_tell(release):
                raise StoreError("the store cannot be reached")
            try:
                self.give_back(release, end, side, durable=durable)
            except StoreMoved as moved:
                if self._follow is None:
                    raise
                self._gate = self._follow(moved)
                self.give_back(release, end, side, durable=durable)
        except StoreError as error:  # the agent has run, and its code is what counts
            freed = "Its slot is freed automatically when the store is back"
            self._say(f"could not record that the agent finished: {error}. {freed}")
            return
        self._report_plan()

    def _could_tell(self, release: cmd.Release) -> bool:
        """Whether the store is reachable after all. An agent that was ended because it was not does not wait for it."""
        try:
            return self._gate.try_decide([release])
        except _TROUBLE:
            return False

    def give_back(self, release: cmd.Release, end: ProcessEnd, side: list[SideWrite], *, durable: bool) -> None:
        """Release the lease, and write down what goes with it."""
        self.note_counted(self._gate.decide([release], durable=durable, side=side)[0])

    def note_counted(self, decided: Decided) -> None:
        """What counts as used: of an agent whose calls the proxy saw, what the proxy saw (rule U2)."""
        counted = next((event.total or event.usage for event in decided.events if isinstance(event, ev.Released)), None)
        if counted is not None and counted.source != ESTIMATE:
            self.used = counted

    def _judge(self, end: ProcessEnd) -> Outcome:
        judged = self._judge_unread(end) if self.reader is None else self._judge_read(self.reader, end)
        if end.ended_because == BUDGET and (judged.kind == LOCAL_ERROR or not self._has_finished(judged)):
            return outcome(LOCAL_ERROR, f"{self._agent.name}.{BUDGET}", f"budget {self.stop.budget} is used up")
        if end.ended_because == STOPPED and (judged.kind == LOCAL_ERROR or not self._has_finished(judged)):
            return outcome(LOCAL_ERROR, f"{self._agent.name}.{STOPPED}", f"stopped by {self.stop.by}")
        return judged

    def _judge_read(self, reader: Reader, end: ProcessEnd) -> Outcome:
        judged = reader.judge(end.exit_code, end.signal)
        if end.interrupted and end.exit_code == 0 and self._was_broken_off(judged):
            self.interrupted = True
            return outcome(LOCAL_ERROR, f"{self._agent.name}.interrupted", f"interrupted by signal {end.interrupted}")
        if end.ended_because in ("no_record", "silent") and judged.kind == LOCAL_ERROR:
            return outcome(LOCAL_ERROR, f"{self._agent.name}.{end.ended_because}", end.ended_because)
        return judged

    def _has_finished(self, judged: Outcome) -> bool:
        """Whether an agent that was told to end had not only obeyed, but finished. A limit is more than that."""
        return judged.kind != "ok" or (self.reader is not None and not self._was_broken_off(judged))

    def _was_broken_off(self, judged: Outcome) -> bool:
        """Whether an agent that got a signal to end, and reports success, had not finished."""
        assert self.reader is not None
        no_limit = judged.kind in ("ok", LOCAL_ERROR)
        return no_limit and (judged.evidence == "no_activity" or self.reader.unfinished)

    def _judge_unread(self, end: ProcessEnd) -> Outcome:
        from fleetgate.signals.classify_session_files import judge_by_files

        now = time_ns() // 1_000_000
        found = judge_by_files(self._agent, self._environ, self._since_wall_ms, now, self._lease.model)
        if found is None or found.kind == LOCAL_ERROR:
            return judge_by_exit_only(self._agent, end.exit_code, end.signal)
        self._by_files, self._left = True, end.exit_code == 0
        return found

    def _release(self, judged: Outcome, end: ProcessEnd) -> cmd.Release:
        return cmd.Release(
            self._lease.id,
            judged.kind,
            retry_after_ms=judged.wait_ms,
            exit_code=end.exit_code,
            signal=end.signal,
            activity=self.reader.activity if self.reader is not None and self.reader.mode else None,
            evidence=f"{judged.rule}: {judged.evidence}" if judged.rule else judged.evidence,
            scope=judged.scope,
            family=judged.family,
            named=judged.named,
            credential=self._credential.digest,
            identity=self._credential.identity,
        )

    @property
    def stale_session(self) -> bool:
        """Whether the session that it should resume is gone, so that it did not even start (rule R9)."""
        return self._session is not None and self._session.stale and not self.stop.by

    @property
    def limited(self) -> bool:
        """Whether a limit ended it, or it did nothing at all: exit 75, whatever its own code was."""
        return self._refused and not self._left

    @property
    def _refused(self) -> bool:
        judged = self.outcome
        return judged is not None and (judged.kind in LIMITS or judged.evidence == "no_activity")

    @property
    def worth_another(self) -> bool:
        """Whether it was refused before any activity, so that the next candidate may work (rule B5)."""
        active = self._by_files if self.reader is None else self.reader.activity
        refused = self.outcome is not None and self.outcome.kind in _NEXT_CANDIDATE
        return refused and not active and not self.stop.by

    @property
    def facts(self) -> dict[str, object]:
        """For the status file (rule O6)."""
        judged = self.outcome
        if judged is None:
            return {}
        return {
            "kind": judged.kind,
            "scope": judged.held_back or None,
            "retry_at": self._retry_at(judged),
            "evidence": judged.evidence or None,
        }

    @property
    def spent_text(self) -> str:
        """What it used, and in what time: `41k in, 3.2k out, $0.31, 4m12s`; "" where that is not known."""
        if self.used is None:
            return ""
        took_s = int(monotonic() - self._began_at)
        return f"{spent_text(self.used)}, {format_duration(took_s * 1000, 2).replace(' ', '')}"

    def tell(self) -> bool:
        """Say on stderr what held it up, if something did."""
        told = self._session.told if self._session is not None else ""
        if told:
            self._say(told)
        judged = self.outcome
        if judged is None or not self._refused:
            return bool(told)
        retry_at = self._retry_at(judged)
        until = f"; held back until {retry_at}" if retry_at else ""
        if judged.kind == USAGE_WINDOW and judged.wait_ms is not None:
            until = f"; {self._window(judged)} resets at {local_and_utc(time_ns() // 1_000_000 + judged.wait_ms)}"
        subject = self._lease.model or "the agent"
        if judged.evidence == "no_activity":
            self._say(f"{subject}: the agent ended without doing anything{until}")
            return True
        said = f". The agent said: {judged.evidence}" if judged.evidence else f" ({judged.rule})"
        self._say(f"{subject} {_REFUSALS[judged.kind]}{until}{said}")
        return True

    def _window(self, judged: Outcome) -> str:
        """What is used up, as a backoff names it."""
        model = self._lease.model
        if not model:
            return "its usage window"
        account = account_of(parse_model(model))
        of = {"account": account, "family": f"{account}/{judged.family}"}.get(judged.scope, model)
        return f"the usage window of {of}"

    def _retry_at(self, judged: Outcome) -> str | None:
        return None if judged.wait_ms is None else utc(time_ns() // 1_000_000 + judged.wait_ms)
