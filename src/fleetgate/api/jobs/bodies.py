"""What requests say of jobs: as `fleetgate submit` does, with durations in seconds. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fleetgate.api.bodies import Name, WorkClass
from fleetgate.present.json.jobs import SubmittedShape

MOST_JOBS = 1_000

Word = Annotated[str, Meta(max_length=200)]
Argument = Annotated[str, Meta(max_length=128 * 1024)]
Duration = Annotated[float, Meta(gt=0, le=100_000_000)]


class JobBody(Struct, forbid_unknown_fields=True):
    """What `fleetgate submit` says on its command line. The command is run as it is, never through a shell."""

    command: Annotated[list[Argument], Meta(min_length=1, max_length=10_000)]
    models: Annotated[list[Name], Meta(max_length=20)] = []
    any: bool = False
    name: Word = ""
    project: Annotated[str, Meta(max_length=100)] = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    expires_s: Duration | None = None
    retries: Annotated[int, Meta(ge=0, le=1000)] | None = None
    retry_on: Annotated[list[Word], Meta(max_length=100)] = []
    on_lost: Literal["retry", "fail"] = "retry"
    key: Word = ""
    cwd: Annotated[str, Meta(max_length=4096)] = ""
    env: dict[str, str] = {}
    timeout_s: Duration | None = None
    silence_s: Duration | None = None
    session: Word = ""
    role: Word = ""
    classify: Word = ""
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 1
    supervisor: bool = False
    confirm: bool = False
    any_host: bool = False
    work_class: WorkClass | None = field(default=None, name="class")

    def said(self) -> dict[str, Any]:
        """By the names of a line of `fleetgate submit --batch`."""
        said: dict[str, Any] = {name: getattr(self, name) for name in _AS_THEY_ARE if getattr(self, name)}
        if self.models:
            said["model"] = self.models
        if self.work_class is not None:
            said["class"] = self.work_class
        if self.retries is not None:
            said["retries"] = self.retries
        for name in ("expires", "timeout", "silence"):
            seconds = getattr(self, f"{name}_s")
            if seconds is not None:
                said[name] = f"{max(int(seconds * 1000), 1)}ms"
        return said


_AS_THEY_ARE = (
    *("command", "any", "name", "project", "priority", "retry_on", "on_lost", "key", "cwd", "env", "session", "role"),
    *("classify", "slots", "supervisor", "confirm", "any_host"),
)


class JobsBody(Struct, forbid_unknown_fields=True):
    jobs: Annotated[list[JobBody], Meta(min_length=1, max_length=MOST_JOBS)]


class JobsSubmitted(Struct):
    jobs: list[SubmittedShape]
