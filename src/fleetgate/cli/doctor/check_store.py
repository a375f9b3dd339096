"""The checks of `fleetgate doctor` before the gate is open: config file, state folder, disk, lock and database.

The rule: nothing here opens the gate or creates a store, so that it survives the problems that it is looking for.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from fcntl import LOCK_NB, LOCK_SH, flock
from shlex import quote
from time import monotonic, sleep

from fleetgate.cli.doctor.finding import ELSEWHERE, LISTED, Finding, Findings
from fleetgate.cli.open_gate import load_config
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import Loaded
from fleetgate.config.paths import config_path, sqlite_folder, store_url
from fleetgate.config.units import format_size
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.liveness import process_identity
from fleetgate.log.checksum import is_whole, of_value
from fleetgate.log.clock import boot_id
from fleetgate.log.protocol import StoreError
from fleetgate.log.sqlite.connection import FORMAT, MOVED
from fleetgate.log.sqlite.error_messages import explain
from fleetgate.log.sqlite.filesystems import mounted_kind, refuse_network
from fleetgate.log.sqlite.moved_store import moved
from fleetgate.log.store_url import POSTGRES, local_folder, shown
from fleetgate.present.text import count

LOCK_PATIENCE_S = 1.0
_LITTLE_BYTES = 200 << 20
_NOTHING_BYTES = 1 << 20
_SLOW_TRIP_MS = 20.0


def _writers_of(path: str) -> Findings:
    """Other users who could change the config file: it decides what runs with every agent and where keys go."""
    seen = os.stat(path)
    if seen.st_uid not in (os.geteuid(), 0):
        text = f"{path} belongs to another user, who can make you run commands (`run.wrap`)"
        yield Finding("warn", text, f"ls -l {quote(path)}")
    elif seen.st_mode & 0o022:
        text = f"other users can write to {path}, and make you run commands (`run.wrap`)"
        yield Finding("warn", text, f"chmod go-w {quote(path)}")


class Visit:
    """One run of doctor, and what it knows so far."""

    def __init__(self) -> None:
        self.home = ""  # the folder of the store
        self.loaded: Loaded | None = None
        self.readable = False  # the config file is valid, or there is none
        self.reachable = False  # the folder exists, and this user may read and write it
        self.locked = False  # another process holds the write lock
        self.anchor: int | None = None  # the offset of this boot's clock
        self.sound = False  # a database exists and can be read
        self.remote = False  # the database is on a server
        self.ahead_ms = 0  # how far the server's clock is ahead of this machine's

    def look(self, *checks: Callable[[], Findings]) -> Findings:
        """The findings of some checks, by the names of the checks."""
        for check in checks:
            for finding in _found(check):
                finding.check = finding.check or check.__name__.replace("_", " ")
                yield finding

    def config(self) -> Findings:
        path = config_path()
        self.loaded = load_config()
        self.readable = True
        if self.loaded is None:
            yield Finding("ok", f"no file at {path}: the built-in caps apply")
        else:
            yield Finding("ok", f"{path} is valid, with {count(len(self.loaded.settings.rules), 'cap')}")
            yield from _writers_of(path)

    def store(self) -> Findings:
        url = store_url()
        folder = sqlite_folder(url)
        if url.startswith(POSTGRES):
            yield from self._postgres(url)
        elif folder is None:
            text = f"{url} is a gate for a single process: agents started from here share no cap with others"
            yield Finding("warn", text, "unset FLEETGATE_STORE")
        else:
            self.home = folder

    def _postgres(self, url: str) -> Findings:
        """The database, and the connection to it."""
        from fleetgate.log.postgres.inspect import look
        from fleetgate.log.postgres.url import parse

        seen = look(parse(url))
        self.home = local_folder(url)
        self.remote = self.sound = True
        self.ahead_ms = seen.clock_ms
        text = (
            f"{shown(url)}: PostgreSQL {seen.server}, tables of version {seen.version}, "
            f"{format_size(seen.size_bytes)}, {seen.events} events so far, {count(seen.commits, 'commit')} kept, "
            f"{count(seen.connections, 'connection')}, a round trip takes {seen.trip_ms:g}ms"
        )
        yield Finding("ok", text)
        if seen.trip_ms > _SLOW_TRIP_MS:
            text = f"a round trip takes {seen.trip_ms:g}ms: each decision takes two, while others wait"
            yield Finding("warn", text, "move the database closer to the machines that use it")
        if seen.fsync == "off":
            text = "the server has fsync off: a crash of its machine may damage the whole database"
            yield Finding("warn", text, "ALTER SYSTEM SET fsync = on")
        if not seen.listens:
            text = (
                "LISTEN does not work, as behind a pooler in transaction mode: agents that wait on other machines "
                "notice a free slot by polling, up to a second later"
            )
            yield Finding("warn", text, "connect to the server directly, or to a pooler in session mode")

    # The store's folder, seen from the outside.

    def folder(self) -> Findings:
        folder = self.home
        if os.path.isdir(folder):
            finding = _rights(folder)
            self.reachable = finding.level != "bad"
            yield finding
        elif os.path.lexists(folder):
            yield Finding("bad", f"{folder} is not a folder", ELSEWHERE)
        elif os.access(above := _nearest(folder), os.W_OK | os.X_OK):
            yield Finding("ok", f"{folder} does not exist yet; the first `fleetgate run` creates it")
        else:
            text = f"{folder} does not exist, and this user cannot create it: {above} is not writable"
            yield Finding("bad", text, ELSEWHERE)

    def disk(self) -> Findings:
        refuse_network(self.home)
        there = _nearest(self.home)
        kind = mounted_kind(os.path.realpath(there))
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        where = f"{format_size(free)} free on {kind or 'a local file system'}"
        if free < _NOTHING_BYTES or (space.f_files and not space.f_favail):
            yield Finding("bad", f"{where}: the disk is full", f"df -h {quote(there)}")
        elif free < _LITTLE_BYTES:
            yield Finding("warn", f"{where}: almost full", f"df -h {quote(there)}")
        elif kind in ("tmpfs", "ramfs"):
            text = f"{where}: the queue and caps set at run time are lost when this machine restarts"
            yield Finding("warn", text, ELSEWHERE)
        else:
            yield Finding("ok", where)

    def lock(self) -> Findings:
        """No process holds the write lock for longer than a moment."""
        path = f"{self.home}/fleetgate.lock"
        if not os.path.isfile(path):
            return
        owners = _owners(path)
        if len(set(owners)) != 1:
            yield Finding("ok", "in use by several processes in turn" if owners else "free")
            return
        self.locked = True
        owner = owners[0]
        who = f"process {owner} ({process_identity.describe(owner)})" if owner else "a process"
        if owner and process_identity.is_stopped(owner):
            text = f"{who} is stopped and holds the store's lock: no agent can start or finish until it continues"
            yield Finding("bad", f"{text} (or is killed: kill -9 {owner})", f"kill -CONT {owner}")
        else:
            text = f"{who} has held the store's lock for more than {LOCK_PATIENCE_S:g}s: others are waiting for it"
            yield Finding(
                "warn",
                f"{text}. If that does not change:",
                f"kill {owner}" if owner else f"fuser -v {quote(path)}",
            )

    def database(self) -> Findings:
        """The database file, read-only and without Fleetgate's own code."""
        path = f"{self.home}/fleetgate.db"
        if not os.path.lexists(path):
            yield Finding("ok", "none yet; the first `fleetgate run` creates it")
            return
        try:
            text = self._read_only(path)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # no code: invalid text
            if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise explain(error, self.home) from error
            text = str(error)
        yield Finding("ok", text) if self.sound else _damaged(self.home, text)

    def _read_only(self, path: str) -> str:
        """A description of the database, or of what is wrong with it if it is not `sound`."""
        from urllib.parse import quote as quote_url

        conn = sqlite3.connect(f"file:{quote_url(path)}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
        try:
            (format,) = conn.execute("PRAGMA user_version").fetchone()
            if format > FORMAT:
                if format == MOVED:
                    raise moved(self.home, conn)
                raise StoreError(
                    f"{path} has format {format}, of a newer fleetgate (this one knows {FORMAT}): upgrade it"
                )
            if format != FORMAT:
                return f"not a fleetgate store, format {format}"
            problems = [str(row[0]) for row in conn.execute("PRAGMA quick_check(3)")]
            if problems != ["ok"]:
                return "; ".join(problems)
            changed = _changed(conn)
            if changed:
                return changed
            anchors = conn.execute("SELECT value FROM meta WHERE key = ?", (f"boot:{boot_id()}",)).fetchall()
            commits, last = conn.execute("SELECT count(*), max(seq) FROM log").fetchone()
        finally:
            conn.close()
        self.anchor = int(anchors[0][0]) if anchors else None
        self.sound = True
        size = format_size(os.stat(path).st_size)
        return f"intact, {size}, format {format}, {last or 0} events so far, {count(commits, 'commit')} kept"


def _found(check: Callable[[], Findings]) -> Findings:
    """What a check finds; an error of the check is a finding, too."""
    try:
        yield from check()
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("bad", str(problem), "fleetgate config check" if check.__name__ == "config" else None)
    except FleetgateError as error:
        yield Finding("bad", str(error))
    except OSError as error:
        yield Finding("bad", f"cannot be checked: {error}")
    except Exception as error:
        yield Finding("bad", f"this check itself failed ({type(error).__name__}: {error}): please report it")


def _changed(conn: sqlite3.Connection) -> str:
    """What in the database does not match its checksum; "" if everything does."""
    commits = [
        str(row[0])
        for row in conn.execute("SELECT number, id, at, seq, due, events FROM log ORDER BY number")
        if not is_whole(*row)
    ]
    if commits:
        return f"checksum mismatch: commit {', '.join(commits[:LISTED])}, {len(commits)} in total"
    if not any(column[1] == "checksum" for column in conn.execute("PRAGMA table_info(side)").fetchall()):
        return ""  # written by an older release
    for table, key, value, checksum in conn.execute("SELECT tbl, key, value, checksum FROM side"):
        if checksum is not None and checksum != of_value(table, key, value):
            return f"checksum mismatch: the value of {key!r} in {table!r}"
    return ""


def _rights(folder: str) -> Finding:
    seen = os.stat(folder)
    mode = seen.st_mode
    closed = [path for path in (folder, *_files(folder)) if not os.access(path, os.R_OK | os.W_OK)]
    if closed and seen.st_uid == os.geteuid():
        text = f"this user cannot read and write {', '.join(closed[:LISTED])}"
        return Finding("bad", text, f"chmod -R u+rwX {quote(folder)}")
    if closed:
        text = f"{folder} belongs to {_user(seen.st_uid)}, and this user cannot read and write it: use another folder"
        return Finding("bad", text, ELSEWHERE)
    if mode & 0o007:
        can = "write to" if mode & 0o002 else "look into"
        text = f"every user of this machine can {can} {folder}, which contains the command lines of agents"
        return Finding("warn", text, f"chmod o-rwx {quote(folder)}")
    who = "its owner and its group" if mode & 0o020 else "its owner"
    return Finding("ok", f"only {who} can read {folder}")


def _owners(path: str) -> list[int]:
    """The process that held the lock each time that it was checked; [] if it was free once."""
    owners: list[int] = []
    until = monotonic() + LOCK_PATIENCE_S
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while monotonic() < until:
            try:
                flock(fd, LOCK_SH | LOCK_NB)
            except BlockingIOError:
                mark = os.pread(fd, 32, 0).strip()
                owners.append(int(mark) if mark.isdigit() else 0)
                sleep(0.05)
            else:
                return []
    finally:
        os.close(fd)
    return owners


def _damaged(folder: str, what: str) -> Finding:
    database, aside = f"{folder}/fleetgate.db", f"{folder}/damaged"
    text = (
        f"{database} is damaged ({what}). Restore a backup; or, when no agent is running, start with an empty store: "
        "move this one away"
    )
    return Finding("bad", text, f"mkdir {quote(aside)} && mv {quote(database)}* {quote(aside)}/")


def _nearest(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _files(folder: str) -> list[str]:
    """The files of a store that every user of it must be able to write."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.startswith("fleetgate.")]
