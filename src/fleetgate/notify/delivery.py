"""Delivery of messages: it reads the log and sends each target the events it wants. One process at a time holds the
lock.

Delivery takes no lock of the store and writes nothing to it: the position of each target in the log is kept in a file
beside it. A new target starts with the events from then on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from time import sleep, time

import msgspec
from msgspec import Struct, field

from fleetgate.config.settings import Notify
from fleetgate.core.errors import FleetgateError
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.gate.outage_log import Trouble
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.protocol import Commit, LogReplaced, Position, StoreError
from fleetgate.log.store_files import make_file, write_all
from fleetgate.notify.messages import Message, messages_of, wanted
from fleetgate.notify.senders import Document, sender
from fleetgate.notify.targets import Saved, Target
from fleetgate.present.json.events import event_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.usage.period import zone_of

POLL_S = 1.0
_AT_ONCE = 200  # commits
_SAVE_EVERY = 500  # commits without a message, after which the position is saved anyway

Say = Callable[[str], None]


class _SavedTargets(Struct, omit_defaults=True):
    targets: dict[str, Saved] = field(default_factory=dict)


class Notifier:
    """All targets of a config file."""

    def __init__(
        self,
        gate: DirectGate,
        say: Say,
        current: Callable[[], tuple[Notify, ...]] | None = None,
        upkeep: Callable[[], None] = lambda: None,
    ) -> None:
        """`current` returns the targets; without it, those of the gate's settings. `upkeep` is called in each round."""
        if not gate.folder:
            raise FleetgateError("a store in memory has no notifications")
        self._gate = gate
        self._say = say
        self._path = f"{gate.folder}/notify.json"
        self._lock = -1
        self._unsaved = 0
        self._upkeep = upkeep
        self._current = current or (lambda: gate.settings.notify)
        self.targets: list[Target] = []

    def take_lock(self) -> bool:
        """Take the lock for the life of this process. Returns whether we have it: then no other process delivers."""
        if self._lock < 0:
            self._lock = make_file(f"{self._gate.folder}/notify.lock", exclusive=False)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def open(self, begins: Position | None = None) -> None:
        """Load the position of each target. A new target starts at `begins`, or at the end of the log."""
        known = self._read().targets
        if begins is None:
            self._gate.replica.catch_up()
            begins = self._gate.replica.position
        before = {target.config.name: target for target in self.targets}
        self.targets = []
        for config in self._current():
            old = before.get(config.name)
            if old is not None and old.config == config:
                self.targets.append(old)
                continue
            saved = known.get(config.name) or Saved(begins.commit, begins.id, begins.seq, begins.seq)
            self.targets.append(Target(config, saved if old is None else old.saved, self._deliverer(config), self._say))
        self._save()

    def _deliverer(self, config: Notify) -> Callable[[Message], None]:
        send = sender(config)
        return lambda message: send(self.title(message), self.document(message))

    def run(self, until: Callable[[], bool] = lambda: False, begins: Position | None = None) -> None:
        """Deliver messages until `until` returns true."""
        while not until():
            if self.take_lock():
                break
            sleep(POLL_S)
        else:
            return
        self.open(begins)
        trouble = Trouble(self._say)
        while not until():
            try:
                if self._current() != tuple(target.config for target in self.targets):
                    self.open()
                self._upkeep()
                busy = self.step(time())
                trouble.worked()
            except (StoreError, LogReplaced, OSError) as error:
                trouble.failed(error)
                busy = False
            if not busy:
                sleep(POLL_S)

    def step(self, now: float) -> bool:
        """Deliver some messages to each target. Returns whether there is more to do at once."""
        busy = False
        for target in self.targets:
            if now >= target.retry_at:
                busy = self._deliver_next(target, now) or busy
            if target.sum_up(now):
                self._save()
        return busy

    def _deliver_next(self, target: Target, now: float) -> bool:
        saved = target.saved
        try:
            commits = self._gate.log.read(Position(saved.commit, saved.id, saved.seq), _AT_ONCE)
        except LogReplaced:
            self._gate.replica.catch_up()
            here = self._gate.replica.position
            saved.commit, saved.id, saved.seq, saved.done = here.commit, here.id, here.seq, here.seq
            self._say(f"{target.config.name}: the log was replaced or pruned; continuing with new events")
            self._save()
            return False
        for commit in commits:
            if not self._deliver_commit(target, commit, now):
                return False
            saved.commit, saved.id, saved.seq, saved.done = commit.number, commit.id, commit.seq, commit.seq
            self._unsaved += 1
        if self._unsaved >= _SAVE_EVERY:
            self._save()
        return len(commits) == _AT_ONCE

    def _deliver_commit(self, target: Target, commit: Commit, now: float) -> bool:
        for message in wanted(messages_of(commit, self._position_of, self._clock), target.config.events):
            before = len(target.saved.sent)
            done = target.offer(message, now)
            if len(target.saved.sent) != before or not done:
                self._save()
            if not done:
                return False
        return True

    def _position_of(self, ident: str) -> int | None:
        view = ticket_view(self._gate.replica.catch_up(), ident, self._gate.now())
        return None if view is None else view.position

    def _clock(self, at: int) -> str:
        return LogTimes(self._gate).clock(at, zone_of(self._gate.settings))

    # What is sent.

    def title(self, message: Message) -> str:
        return f"Fleetgate on {self._gate.host}: {message.kind.replace('_', ' ')}"

    def document(self, message: Message) -> Document:
        moments = LogTimes(self._gate)
        event = message.event
        return {
            "event": message.kind,
            "text": message.text,
            "host": self._gate.host,
            "at": moments.utc(message.at) if message.at else moments.utc(moments.now),
            "seq": message.seq or None,
            "detail": None if event is None else event_json(message.seq, message.at, event, moments),
        }

    # The positions of the targets.

    def _read(self) -> _SavedTargets:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=_SavedTargets)
        except FileNotFoundError:
            return _SavedTargets()
        except msgspec.MsgspecError:
            self._say(f"{self._path} cannot be read: starting with new events")
            return _SavedTargets()

    def _save(self) -> None:
        kept = self._read().targets | {target.config.name: target.saved for target in self.targets}
        draft = f"{self._path}.new"
        fd = make_file(draft, exclusive=False, like=self._gate.folder)
        try:
            os.ftruncate(fd, 0)
            write_all(fd, msgspec.json.encode(_SavedTargets(kept)))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, self._path)
        self._unsaved = 0
