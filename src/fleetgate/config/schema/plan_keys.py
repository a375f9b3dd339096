"""The keys of `[plans]`, `[preempt]` and `[projects]`. Defaults are taken from the engine."""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.schema.shapes import Key, Map, Scalar, Table
from fleetgate.config.units import format_duration, parse_duration_ms
from fleetgate.core.entities import PlanRule

_DURATION = Scalar("duration", parse_duration_ms)

PLAN = Table(
    "the plan of a provider",
    (
        Key(
            "reserve",
            Scalar("percentage", v.read_share),
            "How much of each window is kept for interactive work.",
            '"20%"',
            f"{PlanRule('').reserve // 100}%",
        ),
        Key(
            "pace",
            Scalar("true or false", v.read_flag),
            "Whether batch work keeps to the pace: it stops when as large a part of a window is used as has passed.",
            "true",
            "true",
        ),
        Key(
            "band",
            _DURATION,
            "How far behind the pace batch work starts again; at most three tenths of the window.",
            '"100m"',
            format_duration(PlanRule("").band_ms),
        ),
        Key(
            "drain",
            _DURATION,
            "How long before the reset the rest of a window is free for normal work; at most a tenth of the window.",
            '"30m"',
            format_duration(PlanRule("").drain_ms),
        ),
    ),
)

PREEMPT_AFTER_MS = 30_000
PREEMPT_DOC = (
    "Batch jobs give way to interactive requests: a job is stopped and returns to the queue, with its session and "
    "without losing a retry. Plain runs never give way."
)
PREEMPT = Table(
    "preemption",
    (
        Key(
            "after",
            Scalar("duration", v.read_some_duration_ms),
            "How long an interactive request waits for a slot before a batch job gives way to it.",
            '"30s"',
            format_duration(PREEMPT_AFTER_MS),
        ),
    ),
)

PROJECTS_DOC = "Projects that get more than others, or have a cap of their own."
_PROJECT = Table(
    "a project",
    (
        Key(
            "weight",
            Scalar("whole number from 1", v.read_weight),
            "How much of a shared pool the project gets, compared with others that wait for it.",
            "3",
            "1",
        ),
        Key(
            "cap",
            Scalar("whole number from 1", v.read_cap),
            'How many agents of the project may run at once: the same as `"project:NAME"` in `[agents]`.',
            "8",
            "that of `project`",
        ),
    ),
)
PROJECTS = Map("table of projects", "PROJECT", v.read_project_name, _PROJECT)
