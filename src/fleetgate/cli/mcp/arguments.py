"""The arguments of the tools. Their JSON schemas, which a model reads, are made from these types."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

MOST_WAIT_S = 300
MOST_TICKETS = 100
MOST_OUTPUT = 20_000

Models = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=200)]],
    Meta(
        max_length=20,
        description="Models in order of preference, each PROVIDER/MODEL such as anthropic/claude-opus-4-6. "
        "Left out: the user's default models",
    ),
]
Project = Annotated[str, Meta(max_length=100, description="Project whose share of the slots counts")]


class CapacityArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `capacity`."""

    models: Models = []
    project: Project = ""
    kind: Annotated[
        Literal["agents", "requests"], Meta(description="agents: processes to start; requests: single model calls")
    ] = "agents"


class QueueArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `queue`."""

    limit: Annotated[int, Meta(ge=1, le=MOST_TICKETS, description="How many waiting requests to list")] = 20


class SubmitArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `submit`."""

    command: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=1000,
            description='The program and its arguments, e.g. ["claude", "-p", "fix the tests"]. No shell is used; '
            "{model} and {name} are replaced by the chosen model",
        ),
    ]
    models: Models = []
    name: Annotated[str, Meta(max_length=200, description="A short name to show in lists")] = ""
    project: Project = ""
    folder: Annotated[str, Meta(description="Folder to run in. Left out: the folder of this server")] = ""
    key: Annotated[
        str,
        Meta(max_length=200, description="Idempotency key: while a job with this key is unfinished, it is returned"),
    ] = ""
    session: Annotated[
        str, Meta(max_length=200, description="Resume the agent session of the last job or run with this key")
    ] = ""
    priority: Annotated[int, Meta(ge=-100, le=100, description="Higher starts earlier; 0 is normal")] = 0
    work_class: Annotated[
        Literal["batch", "normal", "interactive"] | None,
        Meta(description="Which work gives way to which. Left out: what the user's config says, or batch"),
    ] = None
    timeout: Annotated[str, Meta(description="Stop an attempt after this long, e.g. 30m")] = ""
    expires: Annotated[str, Meta(description="Leave the queue after this long, e.g. 2h. Left out: 24h")] = ""


class JobArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `job_status`."""

    id: Annotated[str, Meta(min_length=1, max_length=200, description="The ID that `submit` returned, or a job's name")]
    wait_s: Annotated[
        int, Meta(ge=0, le=MOST_WAIT_S, description="Wait up to this many seconds for the job to finish")
    ] = 0
    output_chars: Annotated[
        int, Meta(ge=0, le=MOST_OUTPUT, description="How much of the end of its output to return")
    ] = 2000


class UsageArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `usage`."""

    by: Annotated[
        list[Literal["project", "model", "account", "host", "key", "kind", "source", "day", "hour", "run"]],
        Meta(max_length=4, description="What to group by. Left out: project and model"),
    ] = []
    since: Annotated[str, Meta(description="An age (7d, 12h), a date (2026-01-31), today or yesterday")] = "today"
    project: Annotated[str, Meta(max_length=100, description="Only this project")] = ""
    model: Annotated[str, Meta(max_length=200, description="Only these models, e.g. anthropic/claude-opus-*")] = ""
