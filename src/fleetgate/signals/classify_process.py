"""The outcome of a process, from its output and the way it ended (rules R4, S1).

The exit code and the agent's own errors together decide:

| the end | and | outcome |
| --- | --- | --- |
| exit 0 | the agent worked, and its last error, if any, was before that | ok |
| exit 0 | an error, and no work after it | that error |
| exit 0 | a known agent in record mode that never worked | what it was trying again; else local_error, `no_activity` |
| another exit code | its last error record; else its last words; else a code of its own | what they say |
| another exit code | nothing of that | local_error |
| a signal | it had said that it was refused, and not that it went on | what it said |
| a signal | else | local_error |

Which records are errors, activity or a good end, and which lines are last words, the agents know (`agents/agent.py`).
Until the first activity every record is looked at, as it comes; after that only the end of the output, on
request, and the lines that report usage (rule U2). So reading costs little more for 100 MB than for 100 KB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.signals.agents import model_of
from fleetgate.signals.agents.agent import ACTIVITY, DONE, ERROR, REMAINS, RETRY, Agent, AgentEnd, AgentReport, Context
from fleetgate.signals.agents.detect import find_program
from fleetgate.signals.agents.usage import records_of
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordSum
from fleetgate.signals.outcome import LOCAL_ERROR, OK, RATE_LIMITED, USAGE_WINDOW, Outcome, outcome
from fleetgate.signals.output_buffers import Lines, MarkedLines, OutputEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.plans.reading import PlanReading

__all__ = ["Reader", "AgentRefusal", "judge_by_exit_only"]

# What is kept of the end. Few blocks, since each that is kept is one that the copying cannot use again while it is in
# the processor's cache.
_OUT_BYTES = 131_072
_ERR_BYTES = 65_536
_START_BYTES = 4096
_COLOURS = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_LAST_LINES = 400
_STALE_LINES = 80  # a backtrace may follow
_STALE_BYTES = 16_384  # where no records tell of activity: who has said more than that has begun


class AgentRefusal(NamedTuple):
    """A refused call that nothing came after."""

    outcome: Outcome
    again: bool  # the agent says that it makes the call again by itself
    mark: int  # the same for all refusals in a row, another one after the agent got on


class Reader:
    """Reads one process while its output passes by. `feed` is cheap; the rest is asked now and then, and at the end."""

    def __init__(self, agent: Agent, argv: Sequence[str], now_wall_ms: Callable[[], int]) -> None:
        self.agent = agent
        name, at = find_program(argv)
        args = argv[at + 1 :] if name == agent.name else argv[1:]
        self.mode = agent.mode(args)  # see `Agent.mode`
        self._resumes = agent.resumes_in(args)
        self.records = records_of(agent)
        reports = self.records.marks and (self.mode or self.records.reports_in_text)
        self._reports = MarkedLines(self.records.marks + self.records.plan_marks) if reports else None
        self.plan_windows: dict[str, PlanReading] = {}  # what was last said of each, until the caller takes it
        self._used = RecordSum()
        self._context = Context(model_of(argv) or "", now_wall_ms)
        self._out = OutputEnd(_OUT_BYTES)
        self._err = OutputEnd(_ERR_BYTES)
        self._start = b""  # of stderr; where both are one (`2>&1`) and no records, of stdout
        self._lines: Lines | None = Lines() if self.mode else None  # until the first activity
        self._read_to = 0  # how far stdout was read, by then
        self._story = _Story()  # as of then
        self._replayed: tuple[int, _Story] = (-1, self._story)

    def __repr__(self) -> str:
        how = {"stream": "records", "single": "one record"}.get(self.mode, "text")
        return f"<Reader of {self.agent.name}, {how}: {self._out.seen} and {self._err.seen} bytes, {self._story!r}>"

    def feed(self, stream: int, data: bytes) -> None:
        """A piece of stdout (1) or stderr (2), as it passes by."""
        if stream == 2:
            if data and not self._err.seen:
                self._start = b""
            self._keep_start(data)
            self._err.feed(data)
            return
        if not self.mode and not self._err.seen:
            self._keep_start(data)
        if self._lines is not None:
            self._watch(self._lines, data)
        if self._reports is not None:
            self._note_usage(self._reports.feed(data))
        self._out.feed(data)

    def _note_usage(self, lines: list[bytes]) -> None:
        for line in lines:
            report = self.records.reported(line, self._resumes)
            if report is not None:
                self._used.add(report)
            if any(mark in line for mark in self.records.plan_marks):
                now, model = self._context.now_wall_ms(), self._context.model_name
                for reading in self.records.plan_windows(line, now, model):
                    self.plan_windows[reading.window] = reading

    def _keep_start(self, data: bytes) -> None:
        if len(self._start) < _START_BYTES:
            self._start += data[: _START_BYTES - len(self._start)]

    @property
    def seen(self) -> int:
        """How many bytes came."""
        return self._out.seen + self._err.seen

    @property
    def unfinished(self) -> bool:
        """Whether the agent tells when it has finished, and has not. As text, its answer comes at the end."""
        if not self.agent.says_done:
            return False
        return not self._told_so_far().done if self.mode else not self._out.seen

    @property
    def activity(self) -> bool:
        """Whether a model has answered or a tool has run, as far as records tell."""
        return self._story.activity

    @property
    def records_seen(self) -> int:
        """How many records came, up to the first activity; those after it are not counted."""
        return self._story.records

    @property
    def session(self) -> str:
        """The id of the agent's session, for the next run to resume (rule R9); empty if it is not known."""
        start = self._start.decode("utf-8", "replace")
        return self._told_so_far().session or self.agent.session_in(start)

    def used(self) -> list[ModelUsage] | None:
        """What each model used, as the output reports it; None where it does not. At the end, once."""
        if self._reports is not None:
            self._note_usage(self._reports.finish())
        at_end = self.records.reported_at_end(self._out.whole_lines()) if self.mode == "single" else None
        if at_end is not None:
            self._used.add(at_end)
        return self._used.by_model()

    @property
    def limited(self) -> Outcome | None:
        """A rate limit or a used-up window in the records, with no activity after it (rule R5)."""
        said = self._told_so_far().said
        if said is None and self.mode and not self.activity:
            said = self.agent.notice(_lines_of(self._err.whole_lines()), self._context)
        return said if said is not None and said.kind in (RATE_LIMITED, USAGE_WINDOW) else None

    @property
    def refusal(self) -> AgentRefusal | None:
        """What holds the agent up now, as far as it says so."""
        story = self._told_so_far()
        if story.said is not None:
            return AgentRefusal(story.said, story.said is story.retry, story.refused_at)
        if self.mode and not story.activity:
            noticed = self.agent.notice(_lines_of(self._err.whole_lines()), self._context)
            return AgentRefusal(noticed, True, 0) if noticed is not None else None
        if not self.mode and self.agent.tells_retries_in_text:
            return self._refused_in_text()
        return None

    def _refused_in_text(self) -> AgentRefusal | None:
        out, err = _lines_of(self._out.whole_lines()), _lines_of(self._err.whole_lines())
        found = self.agent.retry_in_text(out, err, self._context)
        return AgentRefusal(found, True, self.agent.answers_in_text(out)) if found is not None else None

    @property
    def stale_session(self) -> bool:
        """Whether the agent said that the session it was to resume is not there."""
        if self.activity or (not self.mode and self._out.seen + self._err.seen > _STALE_BYTES):
            return False
        error = self._told_so_far().error
        text = (self._err if self._err.seen else self._out).whole_lines()  # with `2>&1` all is on stdout
        told = [*_lines_of(text)[-_STALE_LINES:], error.evidence if error is not None else ""]
        return any(re.match(pattern, line) for pattern in self.agent.stale for line in told)

    def judge(self, exit_code: int | None, signal: int | None) -> Outcome:
        """What became of the process, now that it has ended."""
        story = self._told_so_far()
        raw_err = self._err.whole_lines()
        end = AgentEnd(exit_code, signal, [], _lines_of(raw_err), raw_err.decode("utf-8", "replace"))
        if self.agent.name != "none":
            end.out = _lines_of(self._out.whole_lines())
        if exit_code == 0:
            return self._good_exit(story, end)
        found = [story.said]
        if not story.done:
            found.append(self.agent.last_words(end, self._context))
        if exit_code is not None:
            found += [story.error, self.agent.by_exit(exit_code)]
        if story.error is None:
            found.append(self._noticed(story, end))
        told = [one for one in found if one is not None]
        # The first that says more than that something failed.
        best = next((one for one in told if one.kind != LOCAL_ERROR), told[0] if told else None)
        return best or _failed(self.agent, exit_code, signal)

    def _good_exit(self, story: _Story, end: AgentEnd) -> Outcome:
        if story.said is not None:
            return story.said
        if not self.agent.exit_0_is_good:
            return self.agent.last_words(end, self._context) or OK
        if self.mode and not story.activity:
            # Some answer our own TERM with 0.
            nothing_done = outcome(LOCAL_ERROR, f"{self.agent.name}.no_activity", "no_activity")
            return self._noticed(story, end) or nothing_done
        return OK

    def _noticed(self, story: _Story, end: AgentEnd) -> Outcome | None:
        """What it said on stderr about a call that it was making again, if it never worked."""
        return self.agent.notice(end.err, self._context) if self.mode and not story.activity else None

    # --- records

    def _watch(self, lines: Lines, data: bytes) -> None:
        """Look at each record as it comes, until the agent works."""
        end = -1
        for line in lines.feed(data):
            end = data.find(b"\n", end + 1)
            self._hear(self._story, line)
            if self._story.activity:
                self._lines = None
                self._read_to = self._out.seen + end + 1
                return

    def _told_so_far(self) -> _Story:
        """The story up to now: what was watched, and what came after it."""
        if not self.mode:
            return self._story
        if self._replayed[0] != self._out.seen:
            story = replace(self._story)
            if self._lines is not None:
                self._hear(story, self._lines.unfinished())
            else:
                data = self._out.whole_lines(self._read_to)
                at = self._out.seen - len(data)
                for line in data.split(b"\n"):
                    self._hear(story, line, at)
                    at += len(line) + 1
            self._replayed = (self._out.seen, story)
        return self._replayed[1]

    def _hear(self, story: _Story, line: bytes | None, at: int = 0) -> None:
        # No error record is as long as one that is passed over: it is an answer, or what a tool said.
        told = AgentReport(ACTIVITY) if line is None else self.agent.record(line, self._context) if line else None
        if told is not None:
            story.hear(told, at)


def judge_by_exit_only(agent: Agent, exit_code: int | None, signal: int | None) -> Outcome:
    """The outcome of a process on a terminal, which is never read (rule R2)."""
    if exit_code == 0:
        return OK
    return (agent.by_exit(exit_code) if exit_code is not None else None) or _failed(agent, exit_code, signal)


def _failed(agent: Agent, exit_code: int | None, signal: int | None) -> Outcome:
    how, seen = ("signal", f"signal {signal}") if exit_code is None else ("exit", f"exit {exit_code}")
    return outcome(LOCAL_ERROR, f"{agent.name}.{how}", seen)


class _Story(Struct):
    """What the records told, in their order."""

    records: int = 0
    activity: bool = False
    done: bool = False
    session: str = ""
    retry: Outcome | None = None  # since the last activity
    error: Outcome | None = None  # the last one
    went_on: bool = False  # there was activity after it
    refused_at: int = 0  # where in the output the refusals began that still stand

    def __repr__(self) -> str:
        told = ("done" if self.done else "active") if self.activity else "no activity"
        return f"{told}, {self.error or self.retry or 'no error'}"

    @property
    def said(self) -> Outcome | None:
        """The refusal that still stands."""
        return self.retry if self.error is None or self.went_on else self.error

    def hear(self, told: AgentReport, at: int = 0) -> None:
        self.records += 1
        if told.what in (RETRY, ERROR) and self.said is None:
            self.refused_at = at
        self.session = told.session or self.session
        if told.what == ACTIVITY:
            self.activity, self.went_on, self.retry = True, True, None
        elif told.what == REMAINS:
            self.activity = True
        elif told.what == DONE:
            self.activity, self.done, self.retry, self.error = True, True, None, None
        elif told.what == RETRY:
            self.retry = told.outcome
        elif told.what == ERROR and told.outcome is not None:
            self.error, self.went_on, self.done = _completed(told.outcome, self.retry), False, False


def _completed(error: Outcome, before: Outcome | None) -> Outcome:
    """Records that announced an error tell its end, and the models of a window, more exactly than its sentence does."""
    if before is None or before.kind != error.kind:
        return error
    wait_ms = error.wait_ms if before.wait_ms is None else before.wait_ms
    if before.family and not error.family:
        return replace(error, wait_ms=wait_ms, family=before.family, scope=before.scope)
    return replace(error, wait_ms=wait_ms)


def _lines_of(data: bytes) -> list[str]:
    """The last lines as a person sees them: without colours, and after a carriage return what overwrote the rest."""
    lines = []
    for raw in data.decode("utf-8", "replace").split("\n")[-_LAST_LINES:]:
        line = _COLOURS.sub("", raw.rstrip("\r").rpartition("\r")[2]).strip()
        if line:
            lines.append(line)
    return lines
