"""The threads in which the routes call jobs/. The two layers do not import each other: cli/commands/serve.py hands the
jobs in.

The calls block, so they run in threads: one thread for reads and changes, which are done one after another anyway, and
a few for output, which many clients may follow at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Protocol, TypeVar

from fleetgate.api.answer_cache import MOST_INLINE, AnswerCache, Begun
from fleetgate.api.errors import RequestRefused
from fleetgate.config.file import Loaded
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.state.state import State
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.present.json.jobs import JobFilter, JobShape, JobsShape, OutputShape, SubmittedShape
from fleetgate.present.log_time import LogTimes

MOST_FOLLOWING = 200
LOOK_S = 0.2  # how often the output of a job that a client follows is read
_READERS = 4

T = TypeVar("T")


class JobCalls(Protocol):
    """What cli/commands/serve.py hands in (jobs/blocking_api.py). Every call blocks."""

    def use(self, loaded: Loaded) -> None: ...
    def close(self) -> None: ...
    def find(self, ident: str) -> str: ...
    def page(self, wanted: JobFilter, offset: int, limit: int) -> JobsShape: ...
    def one(self, ident: str) -> JobShape: ...
    def has_ended(self, ident: str) -> bool: ...
    def output(self, ident: str, after: str, most: int, tail: int | None, stream: str) -> OutputShape: ...
    def submit(
        self, said: Sequence[dict[str, Any]], by: str, access_key: str, only_project: str
    ) -> list[SubmittedShape]: ...
    def cancel(self, ident: str, by: str) -> JobShape: ...
    def retry(self, ident: str, by: str, key: AccessKey | None) -> JobShape: ...
    def approve(self, ident: str, by: str) -> JobShape: ...


class JobThreads:
    """Runs the calls in threads."""

    def __init__(self, jobs: JobCalls, gate: ServiceGate, shared: AnswerCache, may_submit: bool) -> None:
        self.may_submit = may_submit
        self._jobs = jobs
        self._gate = gate
        self._shared = shared
        self._thread = ThreadPoolExecutor(1, "fleetgate-jobs")
        self._readers = ThreadPoolExecutor(_READERS, "fleetgate-output")
        self._following = 0

    def close(self) -> None:
        """After all who ask; one at work ends first."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._jobs.close()

    @property
    def _known(self) -> JobCalls:
        if not self._gate.folder:
            raise RequestRefused(503, "no_jobs", "this service keeps no jobs: its store is in memory")
        return self._jobs

    async def do(self, call: Callable[[JobCalls], T]) -> T:
        """What a call answers."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, self._known)

    async def use(self, loaded: Loaded) -> None:
        if self._gate.folder:
            await self.do(lambda jobs: jobs.use(loaded))

    async def page(self, wanted: JobFilter, offset: int, limit: int) -> JobsShape:
        """A page of the list, made once for all who ask for it at the same time."""
        jobs = self._known

        def begin(_: State, __: LogTimes) -> Begun:
            return Begun(MOST_INLINE + 1, lambda: jobs.page(wanted, offset, limit))  # never on the loop

        answer: JobsShape = await self._shared.answer(("jobs", wanted, offset, limit), begin)
        return answer

    async def output(
        self, ident: str, after: str, most: int, tail: int | None, stream: str, wait_s: float, stopping: asyncio.Event
    ) -> OutputShape:
        """What a job printed; if there is nothing yet, whatever comes within `wait_s`."""
        found = await self.do(lambda jobs: jobs.find(ident))
        if wait_s and self._following >= MOST_FOLLOWING:
            raise RequestRefused(
                429, "too_many_waiting", f"{MOST_FOLLOWING} follow output already: ask again later", retry_after_s=5
            )
        until = monotonic() + wait_s
        self._following += 1
        ran = False
        try:
            while True:
                ended = await self._has_ended(found)  # first: what it printed last is then read
                if ended and ran:
                    await asyncio.sleep(LOOK_S)  # its worker records the end a moment after it
                ran = not ended
                answer = await self._read(found, after, most, tail, stream)
                answer.ended = ended and not answer.more
                if answer.pieces or answer.more or answer.ended or monotonic() >= until or stopping.is_set():
                    return answer
                after, tail = answer.next, None
                await asyncio.sleep(min(LOOK_S, max(until - monotonic(), 0)))
        finally:
            self._following -= 1

    async def _read(self, ident: str, after: str, most: int, tail: int | None, stream: str) -> OutputShape:
        jobs = self._known
        call = lambda: jobs.output(ident, after, most, tail, stream)  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def _has_ended(self, ident: str) -> bool:
        state = await self._gate.read()
        if ident in state.tickets or ident in state.leases:
            return False
        return await self.do(lambda jobs: jobs.has_ended(ident))
