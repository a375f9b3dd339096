"""The service behind the routes: the gate, its clients, the feed of events, the metrics.

Routes get this as `service`. It is made and ended by api/server.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import time

from fleetgate import __version__
from fleetgate.api.answer_cache import AnswerCache
from fleetgate.api.errors import RequestRefused
from fleetgate.api.events.feed import Feed
from fleetgate.api.history_reader import HistoryReader
from fleetgate.api.jobs.threads import JobCalls, JobThreads
from fleetgate.api.metrics.prometheus import Counters
from fleetgate.api.metrics.time_series import Series
from fleetgate.api.security.request_guard import Access
from fleetgate.config.environment import Environment
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import Loaded, load
from fleetgate.config.paths import config_path, state_folder
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.gate.serving.access_keys import AccessKeys
from fleetgate.gate.serving.client_renewals import ClientRenewals
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.present.limits.history import LimitMarks
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import succeeded
from fleetgate.present.wall_time import utc

LOOK_AROUND_S = 2.0
MOST_WAITING = 2_000
MOST_STREAMS = 500


class Service:
    """A running API."""

    def __init__(
        self,
        gate: ServiceGate,
        access: Access,
        loaded: Loaded | None,
        environment: Environment,
        jobs: JobCalls,
        workers_trouble: Callable[[], str],
    ) -> None:
        self.gate = gate
        self.access = access
        self.access_keys = AccessKeys(gate.core)
        access.find_key, access.named_key = self.access_keys.find, self.access_keys.named
        self.loaded = loaded
        self.environment = environment
        self.version = __version__
        self.started_at = utc(int(time() * 1000)) or ""
        self.url = ""
        self.clients = ClientRenewals(gate)
        self.feed = Feed(gate)
        self.counters = Counters(gate)
        self.series = Series(gate, self.feed, f"{state_folder()}/series.json" if gate.folder else "")
        self.shared = AnswerCache(gate)
        self.archive = HistoryReader(gate)
        self.limit_marks = LimitMarks()
        self.jobs = JobThreads(jobs, gate, self.shared, access.may_submit)
        self.stopping = asyncio.Event()
        self.dashboard = False  # whether its files are there
        self.workers_trouble = workers_trouble  # why its workers are not running; "" when they are
        self._tasks: list[asyncio.Task[None]] = []
        self._config_seen = _stamp()

    async def start(self) -> None:
        """Begin; the gate is open."""
        for hearer in (self.clients.apply, self.counters.hear, self.series.hear):
            self.feed.hear(hearer)
        self.gate.core.commits.on_batch = self.counters.batch
        self.series.load()
        await self.access_keys.start()
        await self.feed.start()
        await self.clients.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._look_around()),
            loop.create_task(self.series.run()),
            loop.create_task(self.counters.watch_lag()),
        ]

    async def stop(self) -> None:
        """End all streams, clients and threads; the gate is closed after this."""
        self.stopping.set()
        await self.feed.stop()
        await self.clients.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.series.save()
        self.shared.close()
        self.archive.close()
        self.jobs.close()

    def say_goodbye(self) -> None:
        """End streams and long polls now; new ones are refused."""
        self.feed.say_goodbye()
        self.clients.answer_polls()

    async def look(self) -> tuple[State, LogTimes]:
        """The state to be shown, and the times to show it in. Good until the next `await`."""
        state = await self.gate.read()
        return state, LogTimes(self.gate)

    async def change(self, *commands: cmd.Command, durable: bool = True) -> list[ev.Event]:
        """Run commands together; the events of all of them. The first error is raised."""
        return succeeded(await self.gate.decide(*commands, durable=durable))

    def check_room_to_wait(self) -> None:
        """Refuse a long poll when too many wait already."""
        if self.stopping.is_set():
            raise RequestRefused(503, "stopping", "the service stops: ask again in a moment", retry_after_s=1)
        if self.clients.listening >= MOST_WAITING:
            raise RequestRefused(
                429,
                "too_many_waiting",
                f"{MOST_WAITING} requests wait here already: ask again later, or with wait_s 0",
                retry_after_s=5,
            )

    def check_room_to_listen(self) -> None:
        if self.stopping.is_set():
            raise RequestRefused(503, "stopping", "the service stops: connect again in a moment", retry_after_s=1)
        if len(self.feed) >= MOST_STREAMS:
            raise RequestRefused(
                429, "too_many_waiting", f"{MOST_STREAMS} streams are open already: connect later", retry_after_s=5
            )

    async def _look_around(self) -> None:
        """Find dead holders and act on deadlines, as waiting processes do elsewhere; notice a new config file."""
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            await self.gate.run_checks()
            stamp = _stamp()
            if stamp != self._config_seen:
                self._config_seen = stamp
                await self._read_config()

    async def _read_config(self) -> None:
        try:
            loaded = load(config_path())
            if loaded is not None:
                await self.gate.core.use(loaded)
                self.loaded = loaded
                await self.jobs.use(loaded)
        except (ConfigError, FleetgateError) as error:
            self.counters.complain(f"config.toml has an error, keeping the previous settings: {error}")


def _stamp() -> tuple[int, int] | None:
    """A value that changes when the config file is written."""
    try:
        found = os.stat(config_path())
    except (OSError, ConfigError):
        return None
    return found.st_mtime_ns, found.st_ino
