"""The job commands for a service: a gate that stays open, and JSON shapes as answers.

Every call blocks, so a service makes them in threads. Calls wait for each other, except those for output, which only
read files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Lock
from time import time_ns
from typing import Any

from fleetgate.config.file import Loaded
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import actions, job_store, output_files, state_machine, submit
from fleetgate.jobs.job_json import STREAMS, job_json, piece_json, submitted_json
from fleetgate.jobs.job_store import JobSelection
from fleetgate.jobs.spec_parser import SpecParser
from fleetgate.present.json.jobs import JobFilter, JobShape, JobsShape, OutputShape, SubmittedShape
from fleetgate.present.log_time import LogTimes

_TAKEN_UP_S = 0.05  # others wait for the desk meanwhile


class JobService:
    """Opens its gate when it is first asked."""

    def __init__(self, open_gate: Callable[[Loaded | None], DirectGate], loaded: Loaded | None) -> None:
        self._open_gate = open_gate
        self._loaded = loaded
        self._opened: DirectGate | None = None
        self._lock = Lock()

    @property
    def _gate(self) -> DirectGate:
        if self._opened is None:
            self._opened = self._open_gate(self._loaded)
        return self._opened

    def use(self, loaded: Loaded) -> None:
        """Use the settings of a config file that was read again."""
        with self._lock:
            self._loaded = loaded
            self._close()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # Looking.

    def find(self, ident: str) -> str:
        """The job, or the run with kept output, of which this is the beginning of the id, or the name."""
        with self._lock:
            return job_store.find_output(self._gate, ident)

    def page(self, wanted: JobFilter, offset: int, limit: int) -> JobsShape:
        for state in wanted.states:
            if state not in state_machine.STATES:
                raise BadRequest(f"state {shown(state)}: valid are {', '.join(state_machine.STATES)}")
        now = time_ns() // 1_000_000
        chosen = JobSelection(
            wanted.states,
            wanted.project,
            wanted.name,
            0 if wanted.since_s is None else now - int(wanted.since_s * 1000),
            0 if wanted.everything or wanted.states else now - job_store.DAY_MS,
        )
        with self._lock:
            found = job_store.listing(self._gate, chosen, offset, limit)
            moments = LogTimes(self._gate)
        return JobsShape([job_json(view, moments) for view in found.views], found.total, found.counts)

    def one(self, ident: str) -> JobShape:
        with self._lock:
            return self._one(job_store.find_job(self._gate, ident))

    def _one(self, ident: str) -> JobShape:
        return job_json(job_store.view(self._gate, ident), LogTimes(self._gate))

    def has_ended(self, ident: str) -> bool:
        with self._lock:
            return job_store.has_ended(self._gate, ident)

    def output(self, ident: str, after: str, most: int, tail: int | None, stream: str) -> OutputShape:
        """What it printed behind a place; whether it has ended is for the caller to say."""
        folder = self._gate.folder
        found = output_files.page(folder, ident, after, most=most, tail=tail)
        pieces = [piece for piece in found.pieces if not stream or STREAMS.get(piece.mark, "out") == stream]
        return OutputShape(ident, [piece_json(piece) for piece in pieces], found.next, found.more, found.skipped, False)

    # Changing.

    def submit(
        self, said: Sequence[dict[str, Any]], by: str, access_key: str, only_project: str
    ) -> list[SubmittedShape]:
        """Put jobs in the queue, all or none; a relative folder is below the home of the service's user."""
        with self._lock:
            gate = self._gate
            reading = SpecParser(gate.host, self._loaded, os.path.expanduser("~"))
            specs = []
            for number, each in enumerate(said):
                try:
                    specs.append(reading.spec(each))
                except BadRequest as error:
                    where = f"jobs[{number}]: " if len(said) > 1 else ""
                    raise BadRequest(f"{where}{error}") from error
            submitted = submit.submit(gate, specs, by=by, access_key=access_key, only_project=only_project)
            moments = LogTimes(gate)
            if len(submitted) == 1:
                submit.taken_up(gate, submitted[0].id, _TAKEN_UP_S)
                return [submitted_json(job_store.view(gate, submitted[0].id), moments, new=submitted[0].new)]
            found = job_store.several(gate, {one.id for one in submitted})
            return [submitted_json(found[one.id], moments, new=one.new) for one in submitted]

    def cancel(self, ident: str, by: str) -> JobShape:
        with self._lock:
            found = job_store.find_job(self._gate, ident)
            actions.cancel(self._gate, found, by)
            return self._one(found)

    def retry(self, ident: str, by: str, key: AccessKey | None) -> JobShape:
        with self._lock:
            found = job_store.find_job(self._gate, ident)
            actions.retry(self._gate, found, by, key)
            return self._one(found)

    def approve(self, ident: str, by: str) -> JobShape:
        with self._lock:
            found = job_store.find_job(self._gate, ident)
            actions.approve(self._gate, found, by)
            return self._one(found)
