"""The usage of one run, by the agent's own records (rules U2, U3).

What the agent prints counts, or what it keeps of its session, whichever knows more. A cost that it does not report is
computed from the prices of its models. Where nothing is known, nothing is said.

The rule: records that cannot be read never disturb the run.
"""

from __future__ import annotations

from time import monotonic, time_ns

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.log.clock import boot_ms
from fleetgate.signals.agents.detect import find_program
from fleetgate.signals.agents.usage import records_of
from fleetgate.signals.agents.usage.records import AgentStart
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, total_of
from fleetgate.signals.agents.usage.session_files import usage_since

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetgate.core.plans.reading import PlanReading
    from fleetgate.core.prices import ConfiguredPrice
    from fleetgate.core.usage import Usage
    from fleetgate.gate.slots.slot_gate import SlotGate
    from fleetgate.signals.agents.agent import Agent
    from fleetgate.signals.agents.usage.followed_file import FollowedFile
    from fleetgate.signals.classify_process import Reader

_FOLLOW_S = 5.0  # how often the session file of a running agent is read on
_MOST_SESSIONS = 20  # of one run: on a terminal, its user may begin another


class RunUsage:
    """Finds out what one agent used. `pid` is its process, `model` that of its slot."""

    def __init__(
        self,
        agent: Agent,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        folder: str,
        began_wall_ms: int,
        pid: int,
        model: str,
        prices: Sequence[ConfiguredPrice],
    ) -> None:
        name, at = find_program(argv)
        args = argv[at + 1 :] if name == agent.name else argv[1:]
        self._start = AgentStart(tuple(args), environ, folder, began_wall_ms)
        self._agent = agent
        self._records = records_of(agent)
        self._pid = pid
        self._model = model
        self._prices = prices
        self._sessions: dict[str, None] = {}
        self._limits: RecordedUsage | None = None
        self._needs_prices = not self._records.reports_cost
        self._followed: FollowedFile | None = None
        self._printed: dict[str, tuple[PlanReading, int]] = {}  # windows that it printed, and when by the boot clock
        self._follow_at = monotonic() + _FOLLOW_S

    def look(self, session: str = "") -> None:
        """Now and then, while the agent runs: which session is it? What it costs will be asked for at the end.

        `session` is what its output says about that.
        """
        if self._records.files_report_plan and monotonic() >= self._follow_at:
            self._follow_at = monotonic() + _FOLLOW_S
            self._follow(session)
        try:
            session = self._records.session_of(self._start.environ, self._pid)
        except Exception:
            return
        if session and len(self._sessions) < _MOST_SESSIONS:
            self._sessions[session] = None
        if self._needs_prices:
            from fleetgate.gate.prices.lookup import load_in_background

            self._needs_prices = False
            load_in_background()

    def _follow(self, session: str) -> None:
        """What the agent has written about its plan since the last look."""
        try:
            if self._followed is None:
                from fleetgate.signals.agents.usage.followed_file import FollowedFile

                self._followed = FollowedFile(self._records)
            known = (session,) if session else tuple(self._sessions)
            self._limits = self._followed.look(replace(self._start, sessions=known)) or self._limits
        except Exception:
            return

    def find(self, reader: Reader | None, resumed: str = "") -> Usage | None:
        """What the agent used, now that it has ended; None where its records do not tell. `resumed`: its session."""
        try:
            parts = self._parts(reader, resumed)
            return None if parts is None else total_of([self._priced(part) for part in parts])
        except Exception:
            return None

    def _parts(self, reader: Reader | None, resumed: str) -> list[ModelUsage] | None:
        printed = reader.used() if reader is not None else None
        if printed is not None and not self._records.prefers_files(self._start.args):
            return printed
        named = (reader.session if reader is not None else "") or resumed
        sessions = (*self._sessions, *((named,) if named and named not in self._sessions else ()))
        recorded = usage_since(self._records, replace(self._start, sessions=sessions))
        self._limits = recorded.limits or self._limits
        kept = recorded.by_model()
        return printed if kept is None else kept

    def hear_plan(self, reader: Reader) -> None:
        """Take the plan windows that the agent has printed since the last look."""
        if reader.plan_windows:
            now = boot_ms()
            self._printed |= {name: (reading, now) for name, reading in reader.plan_windows.items()}
            reader.plan_windows.clear()

    def plan_windows(self, now_wall_ms: int) -> tuple[PlanReading, ...]:
        """The plan windows that its session files report, and those that it printed, each with its age by now."""
        now, found, limits = boot_ms(), {}, self._limits
        if limits is not None and limits.at_ms is not None:
            from fleetgate.signals.agents.plan_windows import windows_in_token_count

            found = {each.window: each for each in windows_in_token_count(limits.limits, limits.at_ms, now_wall_ms)}
        printed = {name: replace(reading, age_ms=now - at) for name, (reading, at) in self._printed.items()}
        return tuple((found | printed).values())

    def forget_plan(self) -> None:
        """What was reported need not be reported again."""
        self._limits = None
        self._printed.clear()

    def _priced(self, part: ModelUsage) -> ModelUsage:
        usage = part.usage
        if usage.cost is not None or not usage.tokens:
            return part
        from fleetgate.gate.prices.lookup import price_of

        price = price_of(self._full_name(part.model), self._prices)
        return part if price is None else ModelUsage(part.model, replace(usage, cost=price.cost(usage)))

    def _full_name(self, model: str) -> str:
        """`provider/model`; a bare name is of the slot's provider, or of the only one that the agent knows."""
        if not model:
            return self._model
        provider = self._model.partition("/")[0] or self._agent.provider
        return model if "/" in model else f"{provider}/{model}"


def report_plan(gate: SlotGate, model: str, reader: Reader | None, records: RunUsage) -> None:
    """Report the plan windows that an agent printed, or wrote down, to the gate; if that is busy, later."""
    if reader is not None:
        records.hear_plan(reader)
    found = records.plan_windows(time_ns() // 1_000_000)
    account = model.partition("/")[0].removesuffix("@default")
    if found and account and gate.try_decide([cmd.ObservePlan(account, found)]):
        records.forget_plan()
