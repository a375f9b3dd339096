"""`headgate doctor`: looks at everything the gate stands on, and says what to do where something is wrong.

It looks from the outside first (folder, disk, lock, the database file read-only), so that it survives what it looks
for; the gate is opened only when all that is sound. It makes no store where there is none, and repairs nothing but
wake sockets that killed processes left behind. A check that fails itself is a finding like any other.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from fcntl import LOCK_NB, LOCK_SH, flock
from shlex import quote
from time import monotonic, sleep

import click
from msgspec import Struct

from headgate.cli import exits
from headgate.cli.drawing import Cell, Screen
from headgate.cli.listing import opened_with, say_json
from headgate.cli.opening import load_config
from headgate.config.environment import Environment
from headgate.config.errors import ConfigError
from headgate.config.load import Loaded
from headgate.config.paths import config_path, sqlite_folder, store_url
from headgate.config.units import format_size
from headgate.core.errors import HeadgateError
from headgate.core.invariants import check_invariants
from headgate.core.records import Rule
from headgate.core.state import State
from headgate.gate import processes, wake
from headgate.gate.direct import DirectGate
from headgate.log.clock import boot_id, boot_ms, wall_ms
from headgate.log.database import FORMAT
from headgate.log.explain import explain
from headgate.log.filesystems import kind_in_mountinfo, refuse_network
from headgate.log.protocol import StoreError
from headgate.present.moments import Json
from headgate.present.words import count, span

LOCK_PATIENCE_S = 1.0
_SLOW_MS = 1000
_DRIFT_MS = 5000
_LITTLE_BYTES = 200 << 20
_NOTHING_BYTES = 1 << 20
_LISTED = 5

_ELSEWHERE = "export HEADGATE_HOME=/some/folder/of/yours"
_STYLES = {"ok": "green", "warn": "yellow", "bad": "red"}
_OF_CONFIG = ("environment", "config", "store", "caps")  # what is bad here is exit 78, all else 69


class Finding(Struct):
    """What one look found. `level` is ok, warn or bad; `do` is the command that helps."""

    check: str
    level: str
    text: str
    do: str | None = None


Findings = Iterator[Finding]


@click.command(short_help="Check everything the gate stands on; say what to do.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """Check everything that the gate stands on, and say what to do where something is wrong.

    \b
    headgate doctor
    headgate doctor --json | jq '.checks[] | select(.level != "ok")'

    Exit: 0 when all is well or there are only warnings, 69 when the store is bad, 78 when the config is.
    """
    findings = examine()
    if as_json:
        levels = {finding.level for finding in findings}
        checks: list[Json] = [
            {"check": each.check, "level": each.level, "text": each.text, "do": each.do} for each in findings
        ]
        say_json({"level": next(level for level in ("bad", "warn", "ok") if level in levels), "checks": checks})
    else:
        _draw(findings)
    bad = {finding.check for finding in findings if finding.level == "bad"}
    if bad.difference(_OF_CONFIG):
        return exits.UNAVAILABLE
    return exits.CONFIG if bad else exits.OK


def examine() -> list[Finding]:
    """Every check, in the order in which one relies on the other."""
    visit = Visit()
    findings = [*visit.look(versions, environment, visit.config, visit.store)]
    if visit.home:
        findings += visit.look(visit.folder, visit.disk)
    if visit.reachable:
        findings += visit.look(visit.lock, visit.database)
    if visit.sound:
        findings += visit.look(visit.books)
    return findings


def _draw(findings: list[Finding]) -> None:
    screen = Screen()
    indent = " " * 19
    for finding in findings:
        first = [Cell(f"{finding.level:<4}", _STYLES[finding.level]), Cell(f"  {finding.check:<11}  ")]
        screen.prose(finding.text, indent, first)
        if finding.do:
            screen.line(indent, Cell(f"do: {finding.do}", "bold"))
    bad, warned = (sum(each.level == level for each in findings) for level in ("bad", "warn"))
    screen.line()
    if bad:
        screen.line(Cell(f"{bad} bad" + (f", {count(warned, 'warning')}" if warned else ""), "red"))
    else:
        screen.line(Cell(count(warned, "warning") if warned else "all is well", "yellow" if warned else "green"))
    screen.show()


class Visit:
    """One examination, and what it knows so far."""

    def __init__(self) -> None:
        self.home = ""  # the folder of the store
        self.loaded: Loaded | None = None
        self.readable = False  # the config file is valid, or there is none
        self.reachable = False  # the folder is there, and this user may read and write it
        self.locked = False  # somebody keeps the write lock
        self.anchor: int | None = None  # the offset of this boot's clock
        self.sound = False  # a database is there and can be read

    def look(self, *checks: Callable[[], Findings]) -> Findings:
        """The checks' findings; what one of them could not do is a finding, too."""
        for check in checks:
            name = check.__name__
            try:
                yield from check()
            except ConfigError as error:
                for problem in error.problems:
                    yield Finding(name, "bad", str(problem), "headgate config check" if name == "config" else None)
            except HeadgateError as error:
                yield Finding(name, "bad", str(error))
            except OSError as error:
                yield Finding(name, "bad", f"cannot be looked at: {error}")
            except Exception as error:
                text = f"this check itself failed ({type(error).__name__}: {error}): please report it"
                yield Finding(name, "bad", text)

    def config(self) -> Findings:
        path = config_path()
        self.loaded = load_config()
        self.readable = True
        if self.loaded is None:
            yield Finding("config", "ok", f"no file at {path}: the built-in caps hold")
        else:
            yield Finding("config", "ok", f"{path} is valid, with {count(len(self.loaded.settings.rules), 'cap')}")

    def store(self) -> Findings:
        url = store_url()
        folder = sqlite_folder(url)
        if folder is None:
            text = f"{url} is a gate for one process alone: what is run from here shares no cap with anybody"
            yield Finding("store", "warn", text, "unset HEADGATE_STORE")
        else:
            self.home = folder

    # The store's folder, seen from the outside.

    def folder(self) -> Findings:
        folder = self.home
        if os.path.isdir(folder):
            finding = _rights(folder)
            self.reachable = finding.level != "bad"
            yield finding
        elif os.path.lexists(folder):
            yield Finding("folder", "bad", f"{folder} is not a folder", _ELSEWHERE)
        elif os.access(above := _nearest(folder), os.W_OK | os.X_OK):
            yield Finding("folder", "ok", f"{folder}: nothing there yet; the first `headgate run` makes it")
        else:
            text = f"{folder} is not there, and cannot be made: {above} is not writable for this user"
            yield Finding("folder", "bad", text, _ELSEWHERE)

    def disk(self) -> Findings:
        refuse_network(self.home)
        there = _nearest(self.home)
        kind = _file_system(there)
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        where = f"{format_size(free)} free on {kind or 'a local file system'}"
        if free < _NOTHING_BYTES or (space.f_files and not space.f_favail):
            yield Finding("disk", "bad", f"{where}: nothing can be written any more", f"df -h {quote(there)}")
        elif free < _LITTLE_BYTES:
            yield Finding("disk", "warn", f"{where}: that is little", f"df -h {quote(there)}")
        elif kind in ("tmpfs", "ramfs"):
            text = f"{where}: the line and the caps that were set are gone when this machine restarts"
            yield Finding("disk", "warn", text, _ELSEWHERE)
        else:
            yield Finding("disk", "ok", where)

    def lock(self) -> Findings:
        """Nobody keeps the write lock for longer than a moment."""
        path = f"{self.home}/headgate.lock"
        if not os.path.isfile(path):
            return
        owners = _owners(path)
        if len(set(owners)) != 1:
            yield Finding("lock", "ok", "it changes hands" if owners else "free")
            return
        self.locked = True
        owner = owners[0]
        who = f"process {owner} ({processes.describe(owner)})" if owner else "some process"
        if owner and _is_stopped(owner):
            text = f"{who} is stopped and holds the store's lock: nobody can enter or leave until it goes on"
            yield Finding("lock", "bad", f"{text} (or ends: kill -9 {owner})", f"kill -CONT {owner}")
        else:
            text = f"{who} has held the store's lock for more than {LOCK_PATIENCE_S:g}s: others wait for it"
            yield Finding(
                "lock", "warn", f"{text}. If it stays so:", f"kill {owner}" if owner else f"fuser -v {quote(path)}"
            )

    def database(self) -> Findings:
        """The file itself, read-only and without Headgate's own code in between."""
        path = f"{self.home}/headgate.db"
        if not os.path.lexists(path):
            yield Finding("database", "ok", "none yet; the first `headgate run` makes it")
            return
        try:
            text = self._read_only(path)
        except sqlite3.Error as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise explain(error, self.home) from error
            text = str(error)
        yield Finding("database", "ok", text) if self.sound else _damaged(self.home, text)

    def _read_only(self, path: str) -> str:
        """What the database is like, or what is wrong with it; `sound` says which."""
        from urllib.parse import quote as quote_url

        conn = sqlite3.connect(f"file:{quote_url(path)}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
        try:
            (format,) = conn.execute("PRAGMA user_version").fetchone()
            if format > FORMAT:
                raise StoreError(
                    f"{path} has format {format}, of a newer headgate (this one knows {FORMAT}): upgrade it"
                )
            if format != FORMAT:
                return f"it is not a headgate store, format {format}"
            problems = [str(row[0]) for row in conn.execute("PRAGMA quick_check(3)")]
            if problems != ["ok"]:
                return "; ".join(problems)
            anchors = conn.execute("SELECT value FROM meta WHERE key = ?", (f"boot:{boot_id()}",)).fetchall()
            commits, last = conn.execute("SELECT count(*), max(seq) FROM log").fetchone()
        finally:
            conn.close()
        self.anchor = int(anchors[0][0]) if anchors else None
        self.sound = True
        size = format_size(os.stat(path).st_size)
        return f"whole, {size}, format {format}, {last or 0} events so far, {count(commits, 'commit')} kept"

    # The gate, opened.

    def books(self) -> Findings:
        if self.locked and self.anchor is None:
            text = "not looked at: the first look after a start of the machine needs the lock"
            yield Finding("books", "warn", text)
            return
        with opened_with(self.loaded) as gate:
            gate.replica.catch_up()
            inside = Inside(self, gate)
            checks = (inside.writing, inside.clock, inside.holders, inside.counts, inside.caps, inside.sockets)
            yield from self.look(*checks)


class Inside:
    """The checks for which the gate is open."""

    def __init__(self, visit: Visit, gate: DirectGate) -> None:
        self.visit = visit
        self.gate = gate

    def writing(self) -> Findings:
        """A commit of nothing, synced to disk."""
        log, replica = self.gate.log, self.gate.replica
        if self.visit.locked or not self._take_lock():
            yield Finding("writing", "warn", "not tried: the store's lock is taken")
            return
        began = monotonic()
        try:
            log.begin(durable=True)
            state = replica.catch_up()
            log.append(replica.position, max(log.now(), state.at), [], replica.due)
        finally:
            log.unlock()
        took_ms = int((monotonic() - began) * 1000)
        if took_ms > _SLOW_MS:
            text = f"a commit took {took_ms} ms to reach the disk: everybody who enters or leaves waits for it"
            yield Finding("writing", "warn", text, _ELSEWHERE)
        else:
            yield Finding("writing", "ok", f"a commit reached the disk in {took_ms} ms")

    def _take_lock(self) -> bool:
        until = monotonic() + LOCK_PATIENCE_S
        while not self.gate.log.try_lock():
            if monotonic() > until:
                return False
            sleep(0.01)
        return True

    def clock(self) -> Findings:
        anchor = self.visit.anchor
        if not boot_id():
            text = "this system names no boots, so the log goes by the wall clock: do not set it back"
            yield Finding("clock", "warn", text)
            return
        if anchor is None:
            yield Finding("clock", "ok", "anchored just now, as nobody had asked since the machine started")
            return
        now = boot_ms() + anchor
        head = self.gate.log.head()
        ahead = head.at - now if head is not None else 0
        drift = wall_ms() - now
        if ahead > _DRIFT_MS:
            text = (
                f"the log's last entry is {span(ahead)} ahead of this machine: until then no time passes in the log, "
                "and pauses and cooldowns do not end. Was it copied from a machine whose clock is ahead? Restart this "
                "one when its clock is right, or restore a backup"
            )
            yield Finding("clock", "bad", text, "date -u")
        elif abs(drift) > _DRIFT_MS:
            way = "forward" if drift > 0 else "back"
            text = f"the wall clock was set {way} by {span(abs(drift))}; harmless, and times are shown corrected"
            yield Finding("clock", "ok", text)
        else:
            yield Finding("clock", "ok", "the log and the wall agree")

    def holders(self) -> Findings:
        """Leases and tickets whose process is gone, is stopped, or cannot be seen from here."""
        state = self.gate.state
        leases = {ident: lease.lives_with for ident, lease in state.leases.items()}
        tickets = {ident: ticket.holder for ident, ticket in state.tickets.items()}
        found = [
            *_judged(leases, "lease", "headgate release {} --force"),
            *_judged(tickets, "ticket", "headgate cancel {}"),
            *_stopped({*leases.values(), *tickets.values()}),
        ]
        yield from found
        if not found:
            text = f"{count(len(leases), 'lease')} and {count(len(tickets), 'ticket')}, of processes that live"
            yield Finding("holders", "ok", text if leases or tickets else "nothing is lent, and nobody waits")

    def counts(self) -> Findings:
        state = self.gate.state
        try:
            check_invariants(state)
        except HeadgateError as error:
            yield Finding(
                "counts", "bad", f"{error}: a bug in Headgate, please report it with `headgate history --json`"
            )
            return
        yield Finding("counts", "ok", f"leases, tickets and {count(len(state.pools), 'pool')} add up")

    def caps(self) -> Findings:
        """Whether the file is in force, and what of it is hidden by run-time values (SPEC C2)."""
        state, loaded = self.gate.state, self.visit.loaded
        if loaded is None:
            if state.rules.file and self.visit.readable:
                path = config_path()
                text = f"the caps of {state.file_path} are still in force, though there is no file at {path}"
                how = f"mkdir -p {quote(os.path.dirname(path))} && touch {quote(path)}"
                yield Finding("caps", "warn", f"{text}. An empty one takes them back:", how)
            return
        if loaded.digest == state.file_digest:
            hidden = list(_hidden(state, loaded))
            yield from hidden or [Finding("caps", "ok", f"{loaded.path} is in force")]
        elif loaded.mtime_ms > state.file_modified:
            yield Finding("caps", "ok", f"{loaded.path} is newer than what is in force; the next command brings it in")
        else:
            other = "" if state.file_path == loaded.path else f" of {state.file_path}"
            text = f"{loaded.path} is not in force: another content{other}, written later, is"
            yield Finding("caps", "warn", text, "headgate config apply")

    def sockets(self) -> Findings:
        try:
            folder = wake.runtime_folder(self.visit.home)
        except OSError as error:
            place = str(error.filename or self.visit.home)
            text = f"{place}: {error.strerror}; until then, those who wait find out a second late"
            yield Finding("sockets", "warn", text, f"rm -r {quote(place)}")
            return
        swept = wake.sweep(folder)
        text = f"removed {count(swept, 'wake socket')} that killed processes had left" if swept else "none is left over"
        yield Finding("sockets", "ok", text)


# Single looks.


def versions() -> Findings:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("headgate")
    except PackageNotFoundError:
        own = "(not installed)"
    python = f"Python {platform.python_version()} ({sys.executable})"
    yield Finding("versions", "ok", f"headgate {own}, SQLite {sqlite3.sqlite_version}, {python}")


def environment() -> Findings:
    found = Environment.read()
    if found.bypass:
        text = "HEADGATE_BYPASS is set: what is run from here asks nobody, and no cap holds for it"
        yield Finding("environment", "warn", text, "unset HEADGATE_BYPASS")
        return
    caps = [f"{selector}={cap}" for selector, cap in (*found.agents, *found.requests)]
    if found.opus_cap is not None:
        caps.append(f"opus={found.opus_cap}")
    text = f"has caps for what is run from here: {', '.join(caps)}" if caps else "changes no cap"
    yield Finding("environment", "ok", text)


def _rights(folder: str) -> Finding:
    seen = os.stat(folder)
    mode = seen.st_mode
    closed = [path for path in (folder, *_files(folder)) if not os.access(path, os.R_OK | os.W_OK)]
    if closed and seen.st_uid == os.geteuid():
        text = f"this user cannot read and write {', '.join(closed[:_LISTED])}"
        return Finding("folder", "bad", text, f"chmod -R u+rwX {quote(folder)}")
    if closed:
        text = f"{folder} belongs to {_user(seen.st_uid)}, and this user cannot read and write it: use another"
        return Finding("folder", "bad", text, _ELSEWHERE)
    if mode & 0o007:
        can = "write to" if mode & 0o002 else "look into"
        text = f"every user of this machine can {can} {folder}, where the agents' command lines are kept"
        return Finding("folder", "warn", text, f"chmod o-rwx {quote(folder)}")
    who = "its owner and its group" if mode & 0o020 else "its owner"
    return Finding("folder", "ok", f"{folder} is open to {who} alone")


def _owners(path: str) -> list[int]:
    """Who held the lock each time that it was looked at for a while; nobody if it was free once."""
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
    database, aside = f"{folder}/headgate.db", f"{folder}/damaged"
    text = (
        f"{database} is damaged ({what}). Restore a backup; or, when no agent runs, start with an empty store: "
        "move this one away"
    )
    return Finding("database", "bad", text, f"mkdir {quote(aside)} && mv {quote(database)}* {quote(aside)}/")


def _judged(books: dict[str, str], what: str, remedy: str) -> Findings:
    """What is in the books for processes that are gone, and for those that nobody here can see."""
    judged = {process: processes.is_gone(process) for process in set(books.values())}
    gone = [ident for ident, process in books.items() if judged[process]]
    unseen = [ident for ident, process in books.items() if judged[process] is None]
    if gone:
        text = f"{_named(gone, what)} of processes that are gone: the next request clears that up by itself"
        yield Finding("holders", "warn", text, remedy.format(gone[0]))
    if unseen:
        hosts = ", ".join(sorted({processes.host_of(books[ident]) for ident in unseen}))
        text = f"{_named(unseen, what)} that cannot be judged from here (another machine or container: {hosts})"
        yield Finding("holders", "warn", f"{text}. If it is gone for good:", remedy.format(unseen[0]))


def _stopped(holders: set[str]) -> Findings:
    pids = {pid for holder in holders if processes.is_gone(holder) is False and (pid := processes.local_pid(holder))}
    for pid in sorted(pid for pid in pids if _is_stopped(pid)):
        text = f"process {pid} ({processes.describe(pid)}) is stopped, and keeps its seats or its place"
        yield Finding("holders", "warn", text, f"kill -CONT {pid}")


def _hidden(state: State, loaded: Loaded) -> Findings:
    """Caps of the file over which something else was set."""
    for rule in loaded.settings.rules:
        over = state.rules.runtime.get((rule.kind, rule.selector))
        if over is None or not (over.cap is not None or over.auto or over.unlimited) or _cap(over) == _cap(rule):
            continue
        text = (
            f"{rule.selector} ({rule.kind}): the file says {_cap(rule)}; {_cap(over)} was set at run time and hides it"
        )
        yield Finding("caps", "warn", text, f"headgate cap reset '{rule.selector}' --kind {rule.kind}")


def _cap(rule: Rule) -> str:
    return "auto" if rule.auto else "no cap" if rule.cap is None else str(rule.cap)


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
    return [os.path.join(folder, name) for name in sorted(names) if name.startswith("headgate.")]


def _file_system(path: str) -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return kind_in_mountinfo(file.read(), os.path.realpath(path))
    except OSError:
        return ""


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by Ctrl-Z or a debugger."""
    try:
        data = processes.read(f"/proc/{pid}/stat")
    except OSError:
        return False
    return data[data.rindex(b")") + 1 :].split(None, 1)[0] in (b"T", b"t")


def _named(idents: list[str], what: str) -> str:
    listed = ", ".join(idents[:_LISTED])
    more = f" and {len(idents) - _LISTED} more" if len(idents) > _LISTED else ""
    return f"{count(len(idents), what)} ({listed}{more})"
