"""A state and a log of every format ever released are read "at all costs", and mean what they meant then (rule P5).

`snapshot-N.json` is a rich state as `State.export` wrote it when snapshot format N was current, `events-N.jsonl` a
log, one commit on each line, with at least one event of every type. Both were made by `build` below:

    python tests/golden/test_state_golden.py

A file that was released is never made again. So:

- a new type of event, or a new field (with a default): add to `build` a commit that has it, raise `EVENTS` by one and
  run the line above; the test that names what is missing then passes, and the older files stay as they are;
- a new field of a record in a snapshot (with a default): add a small snapshot that has it, `snapshot-1-WHAT.json`;
- a snapshot that older code would misread: raise `core.snapshots.FORMAT`, teach `State.restore` the older ones, and
  run the line above; then write down in `SUMMARIES` what the new file says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import AccessKey, CreateKey, RemoveKey, RotateKey
from fleetgate.core.budgets.calendar import Zone
from fleetgate.core.engine import Engine
from fleetgate.core.entities import AccountSet, BudgetRule, Lease, PlanRule, Reason, Rule, Spec, Ticket
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.limits.adaptive_tuning import USUAL_LAG_MS
from fleetgate.core.plans.reading import PlanReading
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.state.snapshot_format import FORMAT, BeliefRecord, BudgetRecord, PlanRecord, PoolRecord, Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, Reading, Size, Usage
from fleetgate.core.views.budget_views import budget_views
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.event_codec import decode, encode
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import START, StoreError

HERE = Path(__file__).parent
EVENTS = 2  # the newest events-N.jsonl

T0 = 1_800_000_000_000
OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"
ALICE, BOB, CHILD, SHELL = "h1|b0|4026|100|5000", "h1|b0|4026|200|6000", "h1|b0|4026|300|7000", "h1|b0|4026|400|8000"
FOREVER = 1 << 53  # a pause without an end
HOST, OPUS_POOL = "agents host:h1", "agents anthropic/claude-opus-*"

# What the budgets of events-budgets.jsonl say: used, reserved and free.
BUDGETS = {
    f"{SONNET} input/1m": (0, 501, 299),
    f"{SONNET} input/provider": (0, 501, 4_499),
    "host:h1 tokens/5h": (1_243, 1_020, 8_997_737),
    "project:web tokens/month": (3_485, 2_030, -515),
    "project:web usd/day": (615_000, 24_016, 5_360_984),
}

# What each snapshot says, in the words of the release that wrote it.
SUMMARIES: dict[int, dict[str, Any]] = {
    1: {
        "seq": 83,
        "at": T0 + 26_000,
        "file": ("/home/me/.config/fleetgate/config.toml", "d1", T0 - 5_000, 600_000),
        "caps": {
            "agents */claude-opus-*": ("built-in", 4),
            "agents anthropic/claude-opus-*": ("file", 4),
            "agents host": ("file", "auto"),
            "agents mistral/*": ("", None),
            "requests groq": ("", None),
            "requests openai": ("run time", "unlimited"),
            "requests umans": ("file", 4),
            "requests umans@work": ("run time", 2),
            "requests zai": ("file", 6),
        },
        # in use, limit, foreign, cooling, paused until, and why
        "pools": {
            "agents anthropic/claude-opus-*": (2, 4, 2, 0, 0, ""),
            "agents host:h1": (2, 6, 3, 0, 0, ""),
            "requests umans": (1, 3, 0, 1, T0 + 60_000, "rate_limited"),
            "requests umans@work": (1, 2, 0, 0, 0, ""),
            "requests zai": (1, 1, 0, 0, 0, ""),
        },
        # the model, whether it is claimed, whose life it has, when it ends
        "leases": {
            "agent": (OPUS, True, CHILD, 0),
            "script": (OPUS, True, SHELL, 0),
            "call": ("umans/coder", True, BOB, T0 + 1_810_000),
            "unclaimed": ("umans@work/coder", False, BOB, T0 + 79_000),
            "probe": ("openai/gpt-5", True, ALICE, 0),
            "first": ("zai/glm", True, ALICE, 0),
        },
        # in the order of the queue; True: passed over
        "tickets": {
            "moved": False,
            "away": True,
            "asked": False,
            "kept": False,
            "stalled": False,
            "gated": False,
            "full": False,
        },
        "stalled": {"stalled": T0 + 22_500},
        # the scope, why, until when, and who tries whether it is over
        "backoffs": {
            "google@work": ("account", "auth", T0 + 3_622_500, ""),
            "openai/gpt-5": ("model", "overloaded", T0 + 90_000_000, "probe"),
        },
        "chosen": {"worker": {"openai/gpt-5": 52}},
        "keys": {"nightly": "full"},
        "sessions": {("h1", "s-1"): "full"},
        "reserved": {"kept": (OPUS_POOL, HOST)},
        "auto_caps": {"h1": 6},
        "draining": {"h9": T0 + 500},
        "recovers_until": T0 + 900,
        "next": ["moved"],  # who enters when an opus agent ends
    },
}


def commits() -> Iterator[tuple[int, list[ev.Event]]]:
    """A log with everything in it, as (time, events)."""
    opus = Spec(models=(OPUS,), host="h1", project="blue")
    coder = Spec(models=("umans/coder",), kind="requests")
    work = Spec(models=("umans@work/coder",), kind="requests", project="blue")
    rich = Spec(
        models=(OPUS, SONNET),
        slots=2,
        host="h1",
        project="green",
        any_candidate=True,
        supervisor=True,
        caps=(("mistral/*", 3),),
        family_caps=(("opus", 6),),
        user="alice",
    )
    arrivals = iter(range(1, 100))

    def ticket(ident: str, spec: Spec, at: int, holder: str = ALICE, **more: Any) -> Ticket:
        since = more.pop("since", at)
        return Ticket(
            ident,
            spec,
            holder,
            order=since - 12_000 * more.get("priority", 0),
            arrival=next(arrivals),
            since=since,
            queued_at=at,
            expires_at=at + 86_400_000,
            **more,
        )

    full = Reason(
        code="opus_concurrency_cap",
        text="4 of 4 slots of anthropic/claude-opus-* are taken",
        pool="anthropic/claude-opus-*",
        pools=["anthropic/claude-opus-*", "host:h1"],
        in_flight=4,
        limit=4,
        model=OPUS,
    )
    paused = Reason("paused", "umans is paused after a rate limit", "umans", ["umans"], until=T0 + 60_000)

    yield (
        T0,
        [
            ev.FileLoaded(
                "/home/me/.config/fleetgate/config.toml",
                "d1",
                T0 - 5_000,
                (
                    Rule("agents", "host", auto=True),
                    Rule("agents", "anthropic/claude-opus-*", cap=4),
                    Rule("requests", "umans", cap=4, cooldown_ms=350, on_429="step", max_hold_ms=1_800_000),
                    Rule("requests", "openai", cap=2),
                    Rule("requests", "zai", cap=6, on_429="adapt", explore=False),
                ),
                600_000,
            ),
            ev.RuleSet(
                Rule("requests", "umans@work", 2, False, 5_000, "pause", 60_000, "work", usage_gate=True),
                cap_set=True,
            ),
            ev.RuleSet(Rule("requests", "groq", cooldown_ms=1_000)),
            ev.RuleSet(Rule("agents", "project", cap=5), cap_set=True),
            ev.CapReset("agents", "project"),
            ev.CapRemoved("requests", "openai"),
            ev.SelectorSeen("agents", "mistral/*"),
            ev.Observed("h1", ((OPUS, 2), ("", 1)), 6),
            ev.Bypassed(ALICE, (OPUS,), "opencode run"),
        ],
    )
    # A store that was restored; a host that is drained, and one that was.
    yield (
        T0 + 500,
        [
            ev.Recovering(T0 + 900, "restored"),
            ev.Draining("h8", "me"),
            ev.DrainEnded("h8", "me"),
            ev.Draining("h9"),
        ],
    )
    # Two agents: one with a child of its own, which ran already, one that lives with a shell.
    agent = ticket("agent", opus, T0 + 1_000, wake="/run/a.wake")
    yield T0 + 1_000, [ev.Granted("agent", OPUS, 10_000, ticket=agent, adopted="log_lost")]
    yield T0 + 2_000, [ev.Claimed("agent", CHILD)]
    yield T0 + 3_000, [ev.Granted("script", OPUS, 10_000, ticket=ticket("script", opus, T0 + 3_000, bound=SHELL))]
    # Model calls, one of which ends with everything that can be said of an end.
    yield (
        T0 + 10_000,
        [
            ev.Granted("done", "umans/coder", 10_000, ticket=ticket("done", coder, T0 + 9_000), waited_ms=1_000),
            ev.Granted(
                "call", "umans/coder", 10_000, ticket=ticket("call", coder, T0 + 10_000, BOB), ends_at=T0 + 1_810_000
            ),
            ev.Granted("gone", "umans@work/coder", 10_000, ticket=ticket("gone", work, T0 + 10_000)),
        ],
    )
    yield (
        T0 + 15_000,
        [
            ev.Paused("requests", "umans", T0 + 60_000, "rate_limited", incident=True),
            ev.Reduced("requests", "umans", 3, 4),
            ev.Reclaimed("gone", "forced", "umans@work/coder", 5_000, "me", "requests", "blue"),
        ],
    )
    # The line: everybody who comes and goes.
    yield (
        T0 + 19_000,
        [
            ev.Deferred("refused", coder, BOB, paused, "claude -p hello"),
            ev.Queued(ticket("cancelled", coder, T0 + 19_000), paused),
            ev.Queued(ticket("expired", coder, T0 + 19_000), paused),
            ev.Queued(ticket("dropped", coder, T0 + 19_000), paused),
            ev.Queued(ticket("unclaimed", work, T0 + 19_000, BOB, wake="/run/b.wake"), full),
            ev.Granted("unclaimed", "umans@work/coder", 10_000, False, ends_at=T0 + 79_000, waited_ms=10),
            ev.Queued(ticket("away", work, T0 + 19_000, BOB), full),
            ev.Granted("away", "umans@work/coder", 10_000, claimed=False),
            ev.Returned("away"),
            ev.Queued(ticket("asked", opus, T0 + 19_000), full),
            ev.Granted("asked", OPUS, 10_000, claimed=False),
            ev.Returned("asked"),
            ev.Asked("asked"),
            ev.Cancelled("cancelled", "me", ALICE, "/run/a.wake", "codex"),
            ev.Expired("expired", 86_400_000, ALICE, "/run/a.wake", "codex"),
            ev.Dropped("dropped"),
        ],
    )
    # A client that is judged by its renewals: in the queue, heard of by another process, and not heard of any more.
    yield (
        T0 + 19_500,
        [
            ev.Queued(
                ticket("unheard", coder, T0 + 19_500, client="10.0.0.7", renew_ms=30_000, renew_by=T0 + 319_500), paused
            ),
            ev.Renewed("unheard", T0 + 329_500, BOB, "/run/b.wake"),
            ev.Dropped("unheard", "unrenewed"),
        ],
    )
    yield T0 + 20_000, [ev.Queued(ticket("kept", opus, T0 + 20_000), full)]
    yield T0 + 21_000, [ev.Queued(ticket("moved", opus, T0 + 21_000), full), ev.Bumped("moved", -1, 5)]
    yield (
        T0 + 22_000,
        [
            ev.Queued(
                ticket(
                    "full",
                    rich,
                    T0 + 22_000,
                    since=T0 + 21_500,
                    priority=-7,
                    wake="/run/a.wake",
                    command="aider --model opus",
                    key="nightly",
                    role="worker",
                    session="s-1",
                    bound=SHELL,
                    client="10.0.0.7",
                    renew_ms=30_000,
                    renew_by=T0 + 322_000,
                ),
                full,
            )
        ],
    )
    # Backoffs: of an account, which stalls a ticket; of a model, whose end a probe tries out; and one that is over.
    gemini = Spec(models=("google@work/gemini-3-pro",), host="h1")
    gpt = Spec(models=("openai/gpt-5",), kind="requests")
    refused = Reason("backoff", "google@work is backed off: auth", cause="auth", until=T0 + 3_600_000)
    yield (
        T0 + 22_500,
        [
            ev.BackedOff(
                "google@work",
                "account",
                "auth",
                T0 + 22_500,
                T0 + 3_622_500,
                "HTTP 401",
                "c0ffee",
                id="agent",
                identity="email:f00d",
            ),
            ev.BackedOff("openai/gpt-5", "model", "overloaded", T0 - 30_000_000, T0 + 90_000_000, manual=True),
            ev.BackedOff("groq/fast", "model", "rate_limited", T0, T0 + 60_000, times=1),
            ev.BackoffEnded("groq/fast", "cleared"),
            ev.Queued(ticket("stalled", gemini, T0 + 22_500, BOB, stalled_at=T0 + 22_500), refused),
            ev.Granted(
                "probe", "openai/gpt-5", 10_000, ticket=ticket("probe", gpt, T0 + 22_500), probes=("openai/gpt-5",)
            ),
            ev.Chosen("worker", "openai/gpt-5"),
        ],
    )
    # The usage gate: an answer, and a question that is under way.
    yield (
        T0 + 22_700,
        [
            ev.Queued(ticket("gated", work, T0 + 22_700, BOB, asks=("umans@work",)), full),
            ev.UsageAsked("requests", "umans@work", BOB),
            ev.UsageAnswered("requests", "umans@work", 2, 3),
            ev.UsageAnswered("requests", "umans@work", 2, error="status 404"),
        ],
    )
    yield T0 + 22_900, [ev.UsageAsked("requests", "umans@work", BOB)]
    yield T0 + 23_000, [ev.Paused("requests", "umans@work", FOREVER)]
    yield T0 + 24_000, [ev.Resumed("requests", "umans@work"), ev.Reserved("kept", (OPUS_POOL, HOST))]
    # Jobs: nobody's until a worker offers, held until approved, run, and all their ends.
    job: dict[str, Any] = {"job": True, "away": True, "any_host": True}
    idle = Reason("no_worker", "no worker runs that could take it; start one with `fleetgate worker`")
    yield (
        T0 + 24_500,
        [
            ev.Queued(ticket("job", Spec(), T0 + 24_500, "", **job, confirm=True), idle),
            ev.Queued(ticket("late", Spec(), T0 + 24_500, "", **job, not_before=T0 + 60_000), idle),
            ev.Queued(ticket("asked-for", Spec(), T0 + 24_500, "", **job, confirm=True, held=True), idle),
            ev.Offered("job", BOB, "h1", "/run/b.wake", ("umans@work",)),
            ev.Withdrawn("job"),
            ev.Offered("job", BOB, "h1"),
            ev.Held("job", "codex exec"),
            ev.Approved("job", "me"),
            ev.Offered("job", BOB, "h1"),
            ev.Granted("job", "", 10_000),
            ev.Reclaimed("job", "lost", "", 5_000, job=True, silent="h1"),
            ev.JobEnded("job", "lost", 2, "its worker died", "nightly", 1),
            ev.Cancelled("late", "me", job=True),
            ev.Expired("asked-for", 86_400_000, job=True),
            ev.Granted("ran", "", 10_000, ticket=ticket("ran", Spec(), T0 + 24_500, BOB, job=True)),
            ev.Released("ran", "ok", "", 0, 5_000, job=True),
        ],
    )
    # A limit that is learned: one call is accepted, a second refused, a third is under way.
    glm = Spec(models=("zai/glm",), kind="requests")
    yield T0 + 25_000, [ev.Granted("first", "zai/glm", 10_000, ticket=ticket("first", glm, T0 + 25_000))]
    yield T0 + 25_200, [ev.Accepted("first", "requests", "zai", 1)]
    yield T0 + 25_500, [ev.Granted("second", "zai/glm", 10_000, ticket=ticket("second", glm, T0 + 25_500))]
    yield (
        T0 + 25_600,
        [
            ev.Paused("requests", "zai", T0 + 25_700, "rate_limited", incident=True),
            ev.Refused("requests", "zai", "second", "exact", 2, 1, 6),
            ev.Released("second", "rate_limited", "zai/glm", 0, 100, "requests"),
        ],
    )
    # Last, so that its slot still cools down.
    yield (
        T0 + 26_000,
        [
            ev.Released(
                "done",
                "rate_limited",
                "umans/coder",
                1_000,
                16_000,
                "requests",
                "blue",
                1,
                15,
                True,
                "worker",
                "s-1",
                "HTTP 429",
            )
        ],
    )


def replayed(log: list[tuple[int, list[ev.Event]]]) -> State:
    engine = Engine()
    for at, events in log:
        engine.replay(events, at)
    return engine.state


def build(folder: Path) -> None:
    """Write the newest files."""
    _write(list(commits()), folder / f"events-{EVENTS}.jsonl", folder / f"snapshot-{FORMAT}.json")


def _write(log: list[tuple[int, list[ev.Event]]], events_file: Path, snapshot_file: Path) -> None:
    lines = [msgspec.json.encode({"at": at, "events": msgspec.Raw(encode(events))}) for at, events in log]
    events_file.write_bytes(b"\n".join([*lines, b""]))
    snapshot = msgspec.json.encode({"format": FORMAT, **msgspec.to_builtins(replayed(log).export())})
    snapshot_file.write_bytes(msgspec.json.format(snapshot) + b"\n")


def budget_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about usage and budgets, as the engine that decided it wrote it."""
    engine = Engine(me=ALICE)
    log: list[tuple[int, list[ev.Event]]] = []

    def do(after_ms: int, *commands: cmd.Command) -> None:
        at = engine.state.at + after_ms if log else T0
        log.append((at, [event for each in (cmd.Tick(), *commands) for event in engine.handle(each, at)]))

    day = BudgetRule("project", "usd", 1_000_000, "day", when_empty="stop", estimate="max")
    minute = BudgetRule(SONNET, "input", 1_000, "1m", 60_000, burst=800)
    zone = Zone((0, T0), (3_600_000, 7_200_000))
    do(0, cmd.LoadFile("config.toml", "d1", 1, (Rule("agents", "host", cap=9),), budgets=(day, minute), zone=zone))
    do(1, cmd.SetBudget(BudgetRule("host", "tokens", 9_000_000, "5h", 18_000_000)))
    do(1, cmd.SetBudget(BudgetRule("project:web", "calls", 100, "week")))
    do(1, cmd.RemoveBudget("project:web", "calls", "week"))
    do(0, cmd.SetBudget(BudgetRule("project:web", "tokens", 5_000, "month", when_empty="warn")))
    run = Spec(models=(SONNET,), host="h1", project="web")
    call = Spec(models=(SONNET,), kind="requests", project="web")
    size = Size(2_000, 500, 3_000_000, 300_000, 3_750_000, 15_000_000)
    used = Usage(1, 500, 30, 2, 700, 600_000, RESPONSE)
    do(1, cmd.Acquire("run", run, ALICE, estimate=Usage(3, 100, 10, 1, 200, 90_000, "estimate")))
    do(1, cmd.Acquire("call", call, ALICE, size=size, run="run"), cmd.Acquire("later", call, BOB, size=size))
    readings = (Reading("input", 5_000, 100, 58_000, 60_000, 5, True),)
    do(900, cmd.ObserveRates("call", readings), cmd.Release("call", usage=used, readings=readings))
    do(1, cmd.Settle("run", Usage(1, 5, 0, 0, 5, 10, RESPONSE)))
    do(1, cmd.AddBudget("project:web usd/day", 5_000_000, T0 + 7_000_000), cmd.ResetBudget("project:web usd/day"))
    do(60_000, cmd.Release("later", "rate_limited", 2_000, refused_rate="input"))
    do(60_000, cmd.Acquire("lost", call, BOB, size=size, run="run"))
    do(3_600_000, cmd.Reclaim("lost", "me"), cmd.Release("run", usage=Usage(9, 9, 9, 9, 9, 9, "record")))
    do(60_000, cmd.Acquire("held", call, BOB, size=size), cmd.Acquire("waits", call, BOB, size=Size(9_000)))
    do(1, cmd.Acquire("agent", run, ALICE), cmd.Settle("agent", used))
    do(1, cmd.Acquire("killed", run, ALICE), cmd.Settle("killed", Usage(2, 1)), cmd.Reclaim("killed", "me"))
    return log


def build_budgets(folder: Path) -> None:
    """Write the files about usage and budgets."""
    _write(budget_log(), folder / "events-budgets.jsonl", folder / "snapshot-1-budgets.json")


def stop_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about named runs, of which one is being stopped, one was, and the third lost its process."""
    engine = Engine(me=ALICE)
    log: list[tuple[int, list[ev.Event]]] = []

    def do(*commands: cmd.Command) -> None:
        at = T0 + 1_000 * len(log)
        log.append((at, [event for each in (cmd.Tick(), *commands) for event in engine.handle(each, at)]))

    opus = Spec(models=(OPUS,), host="h1")
    for number, name in enumerate(("review", "docs", "tests")):
        ident = f"run-{number}"
        do(
            cmd.Acquire(ident, opus, ALICE, name=name, log=True),
            cmd.Claim(ident, f"{CHILD}{number}"),
            cmd.Stop(ident, "me"),
        )
    do(cmd.Release("run-1", "local_error", signal=15, evidence="stopped by me"), cmd.Lost((f"{CHILD}2",)))
    return log


def build_stops(folder: Path) -> None:
    """Write the files about stopped runs."""
    _write(stop_log(), folder / "events-stops.jsonl", folder / "snapshot-1-stops.json")


def session_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about the calls of two sessions, of which one is at its cap and paused."""
    engine = Engine(me=ALICE)
    log: list[tuple[int, list[ev.Event]]] = []

    def do(*commands: cmd.Command) -> None:
        at = T0 + 1_000 * len(log)
        log.append((at, [event for each in (cmd.Tick(), *commands) for event in engine.handle(each, at)]))

    do(cmd.SetRule(Rule("requests", "session", cap=1)))
    for ident, session in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        do(cmd.Acquire(ident, Spec(models=(SONNET,), kind="requests", agent_session=session), ALICE))
    do(cmd.Pause("requests", "session:a", None), cmd.Release("b1"))
    return log


def build_sessions(folder: Path) -> None:
    """Write the files about sessions."""
    _write(session_log(), folder / "events-sessions.jsonl", folder / "snapshot-1-sessions.json")


def window_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about a window that batch work uses in a burst, and people after it."""
    engine = Engine(me=ALICE)
    log: list[tuple[int, list[ev.Event]]] = []
    load = cmd.LoadFile("f", "1", 1, (), plans=(PlanRule("anthropic"),))
    readings = [(90, 100), (96, 2_100), (105, 5_100), (108, 5_300), (130, 5_400), (160, 5_550)]
    for minutes, used in [(0, 0), *readings]:
        at = T0 + minutes * 60_000
        reading = PlanReading("5h", used, T0 + 18_000_000 - at, 18_000_000)
        command = cmd.ObservePlan("anthropic", (reading,)) if minutes else load
        log.append((at, [event for each in (cmd.Tick(), command) for event in engine.handle(each, at)]))
    return log


def build_windows(folder: Path) -> None:
    """Write the files about what is learned of windows."""
    _write(window_log(), folder / "events-windows.jsonl", folder / "snapshot-1-windows.json")


def plan_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about plan windows and classes, as the engine that decided it wrote it."""
    engine, log = Engine(me=ALICE), []

    def do(after_ms: int, command: cmd.Command) -> None:
        at = T0 + after_ms
        events = engine.handle(cmd.Tick(), at) + engine.handle(command, at)
        log.append((at, events))

    hour = 3_600_000
    plan = PlanRule("anthropic", 1_500, False, 20 * 60_000, hour // 2)
    do(0, cmd.LoadFile("config.toml", "d1", 1, (Rule("agents", "host", cap=9),), plans=(plan, PlanRule("openai"))))
    week = PlanReading("7d_opus", 4_000, 24 * hour, 7 * 24 * hour, "claude-opus-*")
    do(hour, cmd.ObservePlan("anthropic", (PlanReading("5h", 6_300, 4 * hour, 5 * hour), week)))
    do(hour + 60_000, cmd.ObservePlan("anthropic", (PlanReading("5h", 9_000, 4 * hour - 60_000, 5 * hour),)))
    do(hour + 120_000, cmd.Acquire("batch", Spec((SONNET,), host="h1", work_class="batch"), BOB))
    do(hour + 180_000, cmd.Acquire("person", Spec((SONNET,), host="h1", work_class="interactive"), BOB))
    do(hour + 240_000, cmd.ObservePlan("openai", (PlanReading("5h", 2_000, 4 * hour, 5 * hour),)))
    caps = (
        Rule("agents", "host", cap=2, reserve=1, lendable=True),
        Rule("requests", "umans", cap=9, reserve_share=2_500),
    )
    do(
        hour + 300_000,
        cmd.LoadFile("config.toml", "d2", 2, caps, plans=(plan,), preempt_after_ms=1_000, weights=(("web", 3),)),
    )
    for ident in ("job", "other job"):
        do(hour + 310_000, cmd.Acquire(ident, Spec((), host="h1", work_class="batch"), "", job=True))
        do(hour + 310_000, cmd.Offer(ident, BOB, "h1"))
    do(hour + 311_000, cmd.Release("person"))
    do(hour + 312_000, cmd.Claim("job", CHILD))
    do(hour + 312_000, cmd.Claim("other job", SHELL))
    for ident in ("another person", "third person"):
        do(hour + 313_000, cmd.Acquire(ident, Spec((), host="h1", work_class="interactive"), ALICE))
    do(hour + 315_000, cmd.Tick())
    do(hour + 316_000, cmd.Lost((SHELL,)))
    do(hour + 319_000, cmd.Tick())
    do(hour + 320_000, cmd.Acquire("call", Spec(("umans/coder",), "requests", project="web"), ALICE))
    do(hour + 321_000, cmd.Release("call", usage=Usage(1, 500, 0, 0, 250, None, RESPONSE)))
    return log


def build_plans(folder: Path) -> None:
    """Write the files about plan windows and classes."""
    _write(plan_log(), folder / "events-plans.jsonl", folder / "snapshot-1-plans.json")


def key_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about access keys, as the engine that decided it wrote it."""
    engine = Engine(me=ALICE)
    ci = AccessKey("ci", "d1", "agent", "web", "batch", 0, expires_at=T0 + 90)
    commands: list[cmd.Command] = [
        CreateKey(ci, "ann@h1"),
        CreateKey(AccessKey("wall", "d2", "viewer"), "ann@h1"),
        RotateKey("ci", "d3", "bob@h1"),
        RemoveKey("wall", "bob@h1"),
    ]
    return [(T0 + at, engine.handle(command, T0 + at)) for at, command in enumerate(commands)]


def build_keys(folder: Path) -> None:
    """Write the files about access keys."""
    _write(key_log(), folder / "events-keys.jsonl", folder / "snapshot-1-keys.json")


def author_log() -> list[tuple[int, list[ev.Event]]]:
    """A log of changes that name their author, and of requests with an access key."""
    engine = Engine(me=ALICE)
    ci = AccessKey("ci", "d1", "agent", "web")
    own = (Rule("requests", "key:ci", cap=1, cooldown_ms=0),), (BudgetRule("key:ci", "calls", 9, "day"),)
    spec = Spec((SONNET,), "requests", project="web", access_key="ci")
    by = "ann@h1"
    commands: list[cmd.Command] = [
        cmd.LoadFile("/c.toml", "f1", 1, (Rule("requests", "umans", cap=2),), by=by),
        CreateKey(ci, by, *own),
        CreateKey(AccessKey("old", "d2", "agent", "web"), by, (Rule("agents", "key:old", cap=1),)),
        RemoveKey("old", by),
        cmd.SetRule(Rule("requests", "anthropic", cap=3, cooldown_ms=0), by),
        cmd.SetRule(Rule("requests", "groq", cap=3), by),
        cmd.RemoveCap("requests", "groq", by),
        cmd.ResetCap("requests", "groq", by),
        cmd.SetBudget(BudgetRule("project", "calls", 9, "day"), by),
        cmd.SetBudget(BudgetRule("host", "calls", 9, "day"), by),
        cmd.RemoveBudget("host", "calls", "day", by),
        cmd.UnsetBudget("host", "calls", "day", by),
        cmd.Pause("requests", "anthropic", 60_000, by),
        cmd.Resume("requests", "anthropic", by),
        cmd.BackOff("groq", "quota", 60_000, by=by),
        cmd.EndBackoff("groq", by),
        cmd.Acquire("first", spec, ALICE),
        cmd.AddBudget("key:ci calls/day", 2, by=by),
        cmd.ResetBudget("project:web calls/day", by),
        cmd.Acquire("second", spec, ALICE),
        cmd.Acquire("third", spec, ALICE),
        cmd.Bump("third", None, by),
        cmd.Release("first"),
        cmd.Reclaim("third", by),
        cmd.Acquire("job", Spec((SONNET,), project="web", access_key="ci"), "", job=True, by="key ci"),
    ]
    return [
        (T0 + at, engine.handle(cmd.Tick(), T0 + at) + engine.handle(command, T0 + at))
        for at, command in enumerate(commands)
    ]


def build_authors(folder: Path) -> None:
    """Write the files about authors."""
    _write(author_log(), folder / "events-authors.jsonl", folder / "snapshot-1-authors.json")


def set_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about account sets, as the engine that decided it wrote it."""
    engine = Engine(me=ALICE)
    sets = (
        AccountSet("anthropic", ("work", "spare"), ("api",), "first", "conversation", 5_000),
        AccountSet("openai", ("a", "b"), (), "most-left", "none"),
    )
    caps = (Rule("requests", "anthropic", cap=1, on_429="pause"),)
    calls = Spec((SONNET,), "requests")
    commands: list[tuple[int, cmd.Command]] = [
        (0, cmd.LoadFile("config.toml", "d1", 1, caps, account_sets=sets)),
        (1, cmd.Acquire("c1", calls, ALICE, conversation="one")),
        (2, cmd.Acquire("c2", calls, ALICE, conversation="two")),
        (3, cmd.Acquire("c3", calls, ALICE)),
        (4, cmd.Acquire("c4", calls, ALICE, conversation="one")),
        (5_000, cmd.Release("c2")),
        (5_500, cmd.Tick()),
        (5_600, cmd.Acquire("c5", calls, ALICE, conversation="two")),
        (5_700, cmd.Acquire("c6", Spec((SONNET,), "requests", accounts=("default",)), ALICE)),
    ]
    log = []
    for after_ms, command in commands:
        at = T0 + after_ms
        log.append((at, engine.handle(cmd.Tick(), at) + engine.handle(command, at)))
    return log


def build_sets(folder: Path) -> None:
    """Write the files about account sets."""
    _write(set_log(), folder / "events-sets.jsonl", folder / "snapshot-1-sets.json")


def run_call_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about calls of runs that go on while others wait for a plan window, and for the rest of a budget."""
    engine = Engine(me=ALICE)
    caps = (Rule("agents", "host", cap=9), Rule("requests", "anthropic", cap=1, cooldown_ms=0, on_429="pause"))
    calls = Spec((SONNET,), "requests", work_class="batch")
    usage = Usage(1, 500, source=RESPONSE)
    commands: list[tuple[int, cmd.Command]] = [
        (0, cmd.LoadFile("config.toml", "d1", 1, caps, plans=(PlanRule("anthropic"),))),
        (1, cmd.SetBudget(BudgetRule("project", "tokens", 1_000, "day"))),
        (2, cmd.Acquire("run", Spec((SONNET,), host="h1"), BOB, estimate=usage)),
        (3, cmd.ObservePlan("anthropic", (PlanReading("5h", 9_000, 3_600_000, 18_000_000),))),
        (4, cmd.Acquire("outside", calls, ALICE)),
        (5, cmd.Acquire("c1", calls, ALICE, run="run", estimate=usage)),
        (6, cmd.Acquire("c2", calls, ALICE, run="run", estimate=usage)),
    ]
    return [(T0 + at, engine.handle(cmd.Tick(), T0 + at) + engine.handle(command, T0 + at)) for at, command in commands]


def build_run_calls(folder: Path) -> None:
    """Write the files about calls of runs."""
    _write(run_call_log(), folder / "events-run-calls.jsonl", folder / "snapshot-1-run-calls.json")


def refusal_price_log() -> list[tuple[int, list[ev.Event]]]:
    """A log about what a refusal costs: one price from the file, one set at run time."""
    engine = Engine(me=ALICE)
    commands: list[tuple[int, cmd.Command]] = [
        (0, cmd.LoadFile("config.toml", "d1", 1, (Rule("requests", "anthropic", cap=6, refusals="cheap"),))),
        (1, cmd.SetRule(Rule("requests", "anthropic@work", cap=4, refusals="expensive"))),
        (2, cmd.Acquire("c1", Spec(("anthropic@work/claude-sonnet-4-6",), "requests"), ALICE)),
    ]
    return [(T0 + at, engine.handle(cmd.Tick(), T0 + at) + engine.handle(command, T0 + at)) for at, command in commands]


def build_refusal_prices(folder: Path) -> None:
    """Write the files about prices of refusals."""
    _write(refusal_price_log(), folder / "events-refusals.jsonl", folder / "snapshot-1-refusals.json")


# A belief with every field: 60 calls at once were found, and the lag was shortened once and refused once.
BELIEF: dict[str, Any] = {
    "limit": 60,
    "proven": 58,
    "ahead": 2,
    "firm": 55,
    "proven_at": T0 + 100,
    "failed": 61,
    "lag_ms": 1_600,
    "lag_low": 900,
    "lag_was": 2_000,
    "lag_at": T0 + 60,
    "stride": 3,
    "again": 1,
    "since": 57,
    "since_at": T0 + 110,
    "settled": 59,
    "began_at": T0,
    "changes": 4,
    "clean": 7,
    "epoch": 9,
    "in_a_row": 1,
    "next_probe": T0 + 500_000,
    "probing": True,
    "unproven": "c1",
    "sent_at": T0 + 120,
    "tried_at": T0 + 90,
    "tried": 58,
    "freed_at": T0 + 80,
    "hold_ms": 2_300,
    "gap_ms": 640,
    "freed": [(T0 + 80, 1)],
    "rejected": [T0 + 70],
    "before": (64, 62),
    "failed_before": 65,
    "probe_before": T0 + 400_000,
    "last_why": "again",
    "last_level": 61,
    "last_at": T0 + 50,
}


def build_pace(folder: Path) -> None:
    """Write the snapshot with a belief that has every field."""
    engine = Engine(me=ALICE)
    engine.handle(cmd.SetRule(Rule("requests", "anthropic", cap=100)), T0)
    engine.handle(cmd.Acquire("c1", Spec((SONNET,), "requests"), ALICE), T0)
    adaptive = engine.state.pools["requests anthropic"].limiter.adaptive
    assert adaptive is not None
    for name, value in BELIEF.items():
        setattr(adaptive.belief, name, value)
    data = msgspec.json.encode(State.restore(engine.state.export()).export())
    (folder / "snapshot-1-pace.json").write_bytes(msgspec.json.format(data, indent=2) + b"\n")


def read_log(path: Path) -> list[tuple[int, list[ev.Event]]]:
    """A log's lines, by the decoder that the stores use."""
    lines = path.read_bytes().splitlines()
    texts = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in lines]
    return [(msgspec.json.decode(text["at"], type=int), decode(0, bytes(text["events"]))) for text in texts]


def read_snapshot(number: int) -> bytes:
    return (HERE / f"snapshot-{number}.json").read_bytes()


def loaded(data: bytes) -> State:
    """A state as a process has it that starts with this snapshot."""
    log = MemoryLog(lambda: T0 + 26_000)
    log.lock()
    log.begin()
    position = log.append(START, T0 + 26_000, [], None)
    log.unlock()
    log.save_snapshot(data, position)
    return Replica(log, "h1|b0|4026|1|1").catch_up()


def summary(state: State) -> dict[str, Any]:
    now = state.at
    return {
        "seq": state.seq,
        "at": now,
        "file": (state.file_path, state.file_digest, state.file_modified, state.seniority_ms),
        "caps": {
            f"{kind} {selector}": (cap.source, "auto" if cap.auto else "unlimited" if cap.unlimited else cap.cap)
            for (kind, selector), cap in sorted(state.rules.caps.items())
            if (kind, selector) != ("requests", "mistral/*")
        },
        "pools": {
            key: (
                pool.used,
                pool.limit,
                pool.foreign,
                pool.occupied(now) - pool.used - pool.foreign,
                pool.paused_until if pool.paused_until > now else 0,
                pool.pause_cause if pool.paused_until > now else "",
            )
            for key, pool in sorted(state.pools.items())
            if pool.cap.capped and pool.cap.source != "built-in"
        },
        "leases": {
            ident: (lease.model, lease.claimed, lease.lives_with, lease.ends_at)
            for ident, lease in state.leases.items()
        },
        "tickets": {
            ticket.id: ticket.away
            for ticket in sorted(state.tickets.values(), key=lambda ticket: (ticket.order, ticket.arrival))
        },
        "stalled": {ticket.id: ticket.stalled_at for ticket in state.tickets.values() if ticket.stalled_at},
        "backoffs": {
            key: (backoff.scope, backoff.reason, backoff.until, backoff.probing)
            for key, backoff in state.backoffs.items()
        },
        "chosen": state.chosen,
        "keys": state.keys,
        "sessions": state.sessions,
        "reserved": state.reserved,
        "auto_caps": state.auto_caps,
        "draining": state.draining,
        "recovers_until": state.recovers_until,
        "next": _next(state),
    }


def _next(state: State) -> list[str]:
    """Who enters when the agent ends: a restored state can be decided on."""
    engine = Engine(State.restore(state.export()))
    now = state.at + 1
    engine.handle(cmd.Tick(), now)
    check_invariants(engine.state)
    check_settled(engine.state, now)
    events = engine.handle(cmd.Release("agent"), now)
    check_invariants(engine.state)
    return [event.id for event in events if isinstance(event, ev.Granted)]


def unlearned(snapshot: Snapshot) -> Snapshot:
    """All but what the adaptive limit has learned: since the first snapshots it learns by other rules from a log."""
    pools = [msgspec.structs.replace(record, adapt=None) for record in snapshot.pools]
    return msgspec.structs.replace(snapshot, pools=pools)


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_P5_a_snapshot_of_every_format_ever_released_restores_to_what_it_meant(number: int) -> None:
    state = loaded(read_snapshot(number))
    check_invariants(state)
    assert summary(state) == SUMMARIES[number]
    if number == FORMAT:
        assert msgspec.json.decode(read_snapshot(number), type=Snapshot) == state.export()


@pytest.mark.parametrize("number", range(1, EVENTS + 1))
def test_P5_a_log_of_every_release_is_read_and_replayed_to_what_it_meant(number: int) -> None:
    state = replayed(read_log(HERE / f"events-{number}.jsonl"))
    check_invariants(state)
    assert summary(state) == SUMMARIES[1]


def test_a_snapshot_with_a_backoff_of_refused_calls_restores_to_what_it_meant() -> None:
    (backoff,) = loaded((HERE / "snapshot-1-refused-calls.json").read_bytes()).backoffs.values()
    assert (backoff.key, backoff.times, backoff.ends_at) == ("groq/fast", 3, T0 + 64_000)


def test_a_log_about_plan_windows_and_classes_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-plans.jsonl"))
    check_invariants(state)
    windows = {key: (each.used_then, each.resets_at - T0, each.warned) for key, each in state.plans.windows.items()}
    assert windows == {
        "plan anthropic 5h": (9_000, 18_000_000, True),
        "plan anthropic 7d_opus": (4_000, 90_000_000, False),
        "plan openai 5h": (2_000, 18_240_000, True),
    }
    assert {each.id: each.spec.work_class for each in state.tickets.values()} == {
        "batch": "batch",
        "third person": "interactive",
    }
    assert {each.id: (each.ticket.spec.work_class, each.gives_way_to) for each in state.leases.values()} == {
        "job": ("batch", "third person"),
        "another person": ("interactive", ""),
    }
    kept = loaded((HERE / "snapshot-1-plans.json").read_bytes()).export()
    # The pace of batch work and the adaptive limit follow other rules since then; what is used means the same.
    told = msgspec.structs.replace(state.export(), plan_windows=kept.plan_windows)
    for snapshot in (kept, told):
        (cools,) = [record for record in snapshot.pools if record.cooling]
        assert cools.adapt is not None
        cools.cooling, cools.shares = [], {}  # how long a slot cools down is learned, and a call is charged for it
    assert unlearned(kept) == unlearned(told)


def test_a_log_about_what_is_learned_of_windows_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-windows.jsonl"))
    burn = state.plans.windows["plan anthropic 5h"].burn
    assert (burn.on_rate(18_000_000), burn.off_rate(18_000_000), burn.after_now) == (125_000, 1_500, 300)
    assert loaded((HERE / "snapshot-1-windows.json").read_bytes()).export() == state.export()


def test_a_log_about_access_keys_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-keys.jsonl"))
    (key,) = state.access_keys.values()
    assert key == AccessKey("ci", "d3", "agent", "web", "batch", 0, T0, T0 + 90)
    assert loaded((HERE / "snapshot-1-keys.json").read_bytes()).export() == state.export()


def test_a_log_about_authors_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-authors.jsonl"))
    check_invariants(state)
    assert {each.id: (each.by, each.spec.access_key) for each in state.tickets.values()} == {"job": ("key ci", "ci")}
    assert list(state.leases) == ["second"]
    assert state.pools["requests key:ci"].used == 1
    assert "agents key:old" not in state.pools
    assert unlearned(loaded((HERE / "snapshot-1-authors.json").read_bytes()).export()) == unlearned(state.export())


def test_a_log_about_account_sets_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-sets.jsonl"))
    check_invariants(state)
    assert {ident: lease.model.partition("/")[0] for ident, lease in state.leases.items()} == {
        "c1": "anthropic@work",
        "c3": "anthropic@api",
        "c4": "anthropic@spare",
        "c6": "anthropic",
    }
    assert {ident: ticket.spec.home for ident, ticket in state.tickets.items()} == {"c5": "anthropic@spare"}
    assert state.accounts.homes.export() == [
        ("two", "anthropic@spare", T0 + 2),
        ("one", "anthropic@spare", T0 + 5_500),
    ]
    assert state.accounts.export_ramps(T0 + 5_600) == [("anthropic@spare", T0 + 5_500, T0 + 5_500, 1)]
    assert loaded((HERE / "snapshot-1-sets.json").read_bytes()).export() == state.export()


def test_a_log_about_usage_and_budgets_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-budgets.jsonl"))
    check_invariants(state)
    found = {view.name: (view.used, view.reserved, view.free) for view in budget_views(state, state.at)}
    assert found == BUDGETS
    assert {row.usage.source: row.usage.cost for row in state.usage.rows()} == {
        "": None,
        "response": 600_000,
        "estimate": 9_006,
    }
    assert loaded((HERE / "snapshot-1-budgets.json").read_bytes()).export() == state.export()


def test_a_log_about_calls_of_runs_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-run-calls.jsonl"))
    check_invariants(state)
    assert list(state.leases) == ["run", "c1"]
    assert {ticket.id: ticket.spec.of_run for ticket in state.tickets.values()} == {"outside": "", "c2": "run"}
    assert loaded((HERE / "snapshot-1-run-calls.json").read_bytes()).export() == state.export()


def test_a_log_about_stopped_runs_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-stops.jsonl"))
    check_invariants(state)
    assert [(lease.ticket.name, lease.stop_by) for lease in state.leases.values()] == [("review", "me")]
    assert loaded((HERE / "snapshot-1-stops.json").read_bytes()).export() == state.export()


def test_a_log_about_prices_of_refusals_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-refusals.jsonl"))
    assert state.rules.caps["requests", "anthropic"].refusals == "cheap"
    assert state.pools["requests anthropic@work"].cap.refusals == "expensive"
    assert unlearned(loaded((HERE / "snapshot-1-refusals.json").read_bytes()).export()) == unlearned(state.export())


def test_a_snapshot_with_all_that_an_adaptive_limit_believes_restores_to_what_it_meant() -> None:
    data = (HERE / "snapshot-1-pace.json").read_bytes()
    state = loaded(data)
    pool = state.pools["requests anthropic"]
    assert pool.limiter.adaptive is not None
    belief = pool.limiter.adaptive.belief
    assert {name: getattr(belief, name) for name in BELIEF} == BELIEF
    assert set(belief.calls) == {"c1"}
    assert (pool.limit, pool.cooldown_ms) == (60, 1_600)
    assert msgspec.json.decode(data, type=Snapshot) == state.export()


def test_a_snapshot_of_an_older_adaptive_limit_keeps_its_limit_and_goes_on() -> None:
    engine = Engine(loaded(read_snapshot(1)), me=ALICE)
    pool = engine.state.pools["requests zai"]
    adaptive = pool.limiter.adaptive
    assert adaptive is not None
    belief = adaptive.belief
    assert (pool.limit, belief.proven, belief.failed, pool.cooldown_ms) == (1, 1, 2, USUAL_LAG_MS)
    assert (belief.began_at, belief.changes, belief.settled, belief.stride) == (0, 0, 0, 0)
    now = belief.next_probe
    engine.handle(cmd.Tick(), now)
    for ident in ("one", "two"):
        engine.handle(cmd.Acquire(ident, Spec(("zai/glm-4.6",), "requests"), ALICE), now)
    while not belief.probing:
        due = engine.next_deadline()
        assert due is not None
        now = max(due, now)
        engine.handle(cmd.Tick(), now)
        check_settled(engine.state, now)
    engine.handle(cmd.Active(belief.unproven), now)
    assert pool.limit > 1
    assert State.restore(engine.state.export(now)).export(now) == engine.state.export(now)


def test_a_log_about_sessions_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-sessions.jsonl"))
    check_invariants(state)
    assert [(lease.id, lease.ticket.spec.agent_session) for lease in state.leases.values()] == [("a1", "a")]
    assert [(ticket.id, ticket.spec.agent_session) for ticket in state.tickets.values()] == [("a2", "a")]
    restored = loaded((HERE / "snapshot-1-sessions.json").read_bytes())
    assert restored.export() == state.export()
    assert restored.pools["requests session:a"].paused_until == FOREVER


def test_a_log_with_a_budget_that_was_unset_means_what_it_meant() -> None:
    state = replayed(read_log(HERE / "events-unset-budget.jsonl"))
    assert [rule.selector for rule, _ in state.budget_rules.rules()] == ["host"]
    assert list(state.budget_rules.runtime) == [("host", "calls", "5h")]


def test_a_snapshot_is_what_the_log_before_it_says() -> None:
    replay = replayed(read_log(HERE / "events-1.jsonl"))
    assert unlearned(loaded(read_snapshot(1)).export()) == unlearned(replay.export())


def test_the_logs_have_every_event_and_every_field() -> None:
    seen: dict[str, set[str]] = {}
    for path in HERE.glob("events-*.jsonl"):
        for line in path.read_bytes().splitlines():
            for event in msgspec.json.decode(line)["events"]:
                seen.setdefault(event["type"], set()).update(event.keys() - {"type"})
    for kind in get_args(ev.Event):
        fields = set(kind.__struct_encode_fields__)
        assert fields == seen.get(kind.__struct_config__.tag, set()), f"{kind.__name__}: see the top of this file"


def test_the_files_have_every_field_of_every_record() -> None:
    seen: dict[type, set[str]] = {}
    for path in [*HERE.glob("snapshot-*.json"), *HERE.glob("events-*.jsonl")]:
        for line in path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]:
            _note(msgspec.json.decode(line), seen)
    for kind in (
        Ticket,
        Spec,
        Lease,
        Rule,
        Reason,
        Backoff,
        PoolRecord,
        BudgetRule,
        BudgetRecord,
        PlanRule,
        PlanRecord,
        Usage,
        AccessKey,
        AccountSet,
        Snapshot,
        BeliefRecord,
    ):
        assert set(kind.__struct_encode_fields__) == seen[kind] - GONE.get(kind, set()), (
            f"{kind.__name__}: see the top of this file"
        )


# Fields that older files have and that no release reads any more.
GONE: dict[type, set[str]] = {BeliefRecord: {"held_at", "good", "interval_ms", "ghost_age", "drops"}}

# By what an object has that no other has, its type.
_KNOWN_BY = {
    "arrival": Ticket,
    "models": Spec,
    "granted_seq": Lease,
    "selector": Rule,
    "per": BudgetRule,
    "budget": BudgetRecord,
    "cache_read": Usage,
    "band_ms": PlanRule,
    "samples": PlanRecord,
    "code": Reason,
    "hold_mean_ms": PoolRecord,
    "scope": Backoff,
    "file_rules": Snapshot,
    "access_keys": Snapshot,
    "digest": AccessKey,
    "use": AccountSet,
    "homes": Snapshot,
    "gap_ms": BeliefRecord,
    "since_at": BeliefRecord,
}


def _note(value: Any, seen: dict[type, set[str]]) -> None:
    if isinstance(value, list):
        for each in value:
            _note(each, seen)
    elif isinstance(value, dict):
        if "type" not in value:  # an event's own fields are looked at elsewhere
            for key, kind in _KNOWN_BY.items():
                if (
                    key in value
                    and not (key == "selector" and "per" in value)
                    and not (key == "budget" and "code" in value)
                    and not (key == "digest" and "role" not in value)
                ):
                    seen.setdefault(kind, set()).update(value)
        for each in value.values():
            _note(each, seen)


def test_a_snapshot_carries_its_format_so_that_a_later_release_knows_it() -> None:
    assert msgspec.json.decode(msgspec.json.encode(State().export()))["format"] == FORMAT


def test_a_snapshot_of_a_newer_format_is_refused_with_what_to_do() -> None:
    data = msgspec.json.decode(read_snapshot(FORMAT))
    data["format"] = FORMAT + 1
    with pytest.raises(StoreError, match="upgrade"):
        loaded(msgspec.json.encode(data))


def test_a_snapshot_with_fields_that_this_release_does_not_know_is_read() -> None:
    data = msgspec.json.decode(read_snapshot(FORMAT))
    data["added_later"] = {"x": 1}
    data["tickets"][0]["added_later"] = True
    assert loaded(msgspec.json.encode(data)).export() == loaded(read_snapshot(FORMAT)).export()


def test_a_snapshot_that_is_none_is_refused_with_what_to_do() -> None:
    with pytest.raises(StoreError, match="doctor"):
        loaded(b'{"seq": "three"}')
    with pytest.raises(StoreError, match="doctor"):
        loaded(read_snapshot(FORMAT)[:-100])


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    build_budgets(target)
    build_stops(target)
    build_sessions(target)
    build_windows(target)
    build_plans(target)
    build_keys(target)
    build_authors(target)
    build_sets(target)
    build_run_calls(target)
    build_refusal_prices(target)
    build_pace(target)
    build(target)
