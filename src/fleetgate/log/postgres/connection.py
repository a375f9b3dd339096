"""One connection to a PostgreSQL server: a round trip, what may go wrong with it, and connecting again.

A round trip is one string of statements, sent at once and without prepared statements: so it works behind every
connection pooler, and it is the fastest that was measured but for prepared pipelines (docs/decisions/0012). The wait
for the answer is a `poll`, so that signals are heard meanwhile.

The rule: `ConnectionLost` means that the connection is gone, and that it is unknown whether the last round trip was
done. What follows from that is for the caller to say. `StatementRefused` means that the server said no, and the
connection is good.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.log import fork_safety
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreAway, StoreError

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGresult

PATIENCE_S = 5.0  # how long to try to connect before the store is called gone
REFUSED_S = 1.0  # the same for a store that was never reached from here, where no server listens
ANSWER_S = 60.0  # a server that is silent for this long is gone
HURRIED_S = 0.5  # the same for a thread that must not wait, such as an event loop's
_CONNECT_S = 3
_FIRST_PAUSE_S = 0.05
_TRIES = 3  # of a round trip whose connection was lost: at least this many,
_TRIES_S = 3.0  # and for this long
_AGAIN_S = 0.02
_LONGEST_PAUSE_S = 1.0
_FATAL, _TUPLES, _DONE = 7, 2, 1  # libpq's ExecStatusType
_SQLSTATE = ord("C")

# The server ended the connection, or is not one that can be written to: it is made again.
_GONE = ("57P01", "57P02", "57P03", "25P03", "25P04", "25006", "08")

# What is said where a server, or the lack of one, answered: unlike silence, or a server that is just starting.
_NO_NAME = ("resolve host", "translate host name")
_NO_SERVER = ("Connection refused", "No such file or directory", *_NO_NAME)
_NEVER = ("password", "authentication failed", "pg_hba.conf", "does not exist", "not permitted to log in")

# Where neither the URL nor the user's environment says otherwise.
_DEFAULTS = {
    "connect_timeout": str(_CONNECT_S),
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
}
_VARIABLES = {"connect_timeout": "PGCONNECT_TIMEOUT", "target_session_attrs": "PGTARGETSESSIONATTRS"}


class ConnectionLost(Exception):
    """The connection is gone; whether the last round trip was done is not known."""


class StatementRefused(Exception):
    """The server refused a statement."""

    def __init__(self, code: str, said: str, *, committed: bool = False) -> None:
        super().__init__(f"{said} ({code})")
        self.code, self.said = code, said
        self.committed = committed  # a transaction of the same round trip, before this statement


class ServerConnection:
    """A connection that is made when it is needed, and again when it was lost. `greet` is called each time."""

    upkept_by_node = False  # the node of this host does the upkeep of the store

    def __init__(self, address: Address, greet: Callable[[], None]) -> None:
        self.address = address
        self._greet = greet
        self._conn: Connection[Any] | None = None
        self.serial = 0  # how often it was made
        self._escape: Callable[[bytes], bytes]
        self._poll = select.poll()
        self._forked = False
        self._closed = False
        self.hurried: int | None = None  # a thread that must not wait long, nor connect
        self._down: tuple[float, StoreError] | None = None  # when to try again, and what to say until then
        fork_safety.on_fork(self, ServerConnection._leave)

    @property
    def alive(self) -> bool:
        return self._conn is not None

    @property
    def in_transaction(self) -> bool:
        return self._conn is not None and self._conn.pgconn.transaction_status != 0

    def ask(self, sql: str, *, on: int = 0, meanwhile: Callable[[], None] | None = None) -> list[PGresult]:
        """One round trip: the results of its statements. With `on`, only on the connection of that serial number.

        `meanwhile` is called when they were sent, and not at all where the node sends them.
        """
        self.check(on)
        pgconn = self._ready()
        return self._exchange(lambda: pgconn.send_query(sql.encode()), meanwhile)

    def check(self, on: int) -> None:
        """ConnectionLost unless the connection is the one of that serial number; 0: any will do."""
        if on and (on != self.serial or not self.alive):
            raise ConnectionLost("the connection is another one")

    def ask_with(self, sql: str, values: Sequence[bytes | None], *, binary: bool = False) -> PGresult:
        """One statement with values beside it, for large ones. With `binary` both ways are."""
        pgconn = self._ready()
        formats = [int(binary)] * len(values)
        send = lambda: pgconn.send_query_params(  # noqa: E731
            sql.encode(), values, param_formats=formats, result_format=int(binary)
        )
        return self._exchange(send)[-1]

    def literal(self, text: str) -> str:
        """Text as a literal for `ask`."""
        if "\0" in text:
            raise StoreError("PostgreSQL cannot keep text with a NUL in it: nothing was changed")
        self._ready()
        return self._escape(text.encode()).decode()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Let go of the connection as it is; the server rolls back what was not committed."""
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                self._poll.unregister(conn.pgconn.socket)
            except Exception:
                pass  # the socket is gone already
            conn.close()

    def _leave(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._forked, self._conn = True, None

    # One exchange.

    def _exchange(self, send: Callable[[], None], meanwhile: Callable[[], None] | None = None) -> list[PGresult]:
        conn = self._conn
        assert conn is not None
        import psycopg

        try:
            send()
            self._flush(conn.pgconn)
            if meanwhile is not None:
                meanwhile()
            results = self._results(conn.pgconn)
        except psycopg.Error as error:
            self.drop()
            raise ConnectionLost(self.address.hide(str(error))) from error
        except BaseException:
            self.drop()  # in the middle of an answer
            raise
        for result in results:
            if result.status == _FATAL:
                self._refused(result, committed=any(before.command_status == b"COMMIT" for before in results))
        return results

    def _flush(self, pgconn: Any) -> None:
        """A large question does not go out at once, and the server may have something to say before it has it all."""
        if not pgconn.flush():
            return
        patience_s = HURRIED_S if self.hurried == get_ident() else ANSWER_S
        self._poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
        try:
            while pgconn.flush():
                ready = self._poll.poll(patience_s * 1000)
                if not ready:
                    self.drop()
                    raise ConnectionLost(f"the server took nothing for {patience_s:g} s")
                if ready[0][1] & ~select.POLLOUT:
                    pgconn.consume_input()
        finally:
            if self._conn is not None:
                self._poll.modify(pgconn.socket, select.POLLIN)

    def _results(self, pgconn: Any) -> list[PGresult]:
        results: list[PGresult] = []
        while True:
            while pgconn.is_busy():
                patience_s = HURRIED_S if self.hurried == get_ident() else ANSWER_S
                if not self._poll.poll(patience_s * 1000):
                    self.drop()
                    raise ConnectionLost(f"the server said nothing for {patience_s:g} s")
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return results
            results.append(result)

    def _refused(self, result: PGresult, *, committed: bool) -> None:
        code = (result.error_field(_SQLSTATE) or b"").decode()
        said = self.address.hide(result.error_message.decode("utf-8", "replace"))
        if not code or code.startswith(_GONE):
            self.drop()
            raise ConnectionLost(said)
        raise StatementRefused(code, said, committed=committed)

    # Connecting.

    def connect(self) -> None:
        """Connect if need be, trying for a while; StoreError when the server cannot be reached."""
        if self._forked:
            raise FleetgateError(fork_safety.BEFORE_FORK)
        if not self.alive:
            self._connect()

    def _ready(self) -> Any:
        self.connect()
        assert self._conn is not None
        return self._conn.pgconn

    def _connect(self) -> None:
        if self._closed:
            raise InternalError(f"the store at {self.address.shown} was closed")
        if self.hurried == get_ident():
            raise self._down[1] if self._down else explain_lost(self.address, "the connection was lost")
        began = monotonic()
        if self._down is not None and monotonic() < self._down[0]:
            raise self._down[1]
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                self._try()
                self._down = None
                return
            except ConnectionLost as lost:
                if monotonic() + pause_s > began + self._patience_s(str(lost)):
                    error = explain_lost(self.address, str(lost))
                    self._down = monotonic() + _LONGEST_PAUSE_S / 2, error
                    raise error from lost
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _patience_s(self, said: str) -> float:
        """For how long to try: not again where it was just given up, and hardly where the answer is a plain no.

        A server that was reached before is being restarted, more likely than not.
        """
        if self._down is not None or any(word in said for word in _NEVER):
            return 0.0
        if not self.serial and any(word in said for word in _NO_SERVER):
            return REFUSED_S
        return PATIENCE_S

    def _try(self) -> None:
        self._open()
        self.serial += 1
        try:
            self._greet()
        except StatementRefused as refused:
            self.drop()
            raise explain(self.address, refused) from refused
        except BaseException:
            self.drop()
            raise

    def _open(self) -> None:
        """Make the connection; ConnectionLost when there is none to be had now."""
        conn = connect(self.address)
        self._conn = conn
        self._escape = escaping(conn)
        self._poll.register(conn.pgconn.socket, select.POLLIN)


def connect(address: Address) -> Connection[Any]:
    """A bare connection, in autocommit; ConnectionLost when there is none to be had now, StoreError when there never
    will be.
    """
    psycopg = import_psycopg()
    try:
        options = psycopg.conninfo.conninfo_to_dict(address.url)
    except psycopg.Error as error:
        raise StoreError(f"not a store that can be used ({address.hide(str(error))}): {address.shown}") from None
    name = f"fleetgate {os.getpid()}@{os.uname().nodename}"[:63]
    settings = {**_defaults(), "application_name": name, **options}
    try:
        conn: Connection[Any] = psycopg.connect(**settings, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise ConnectionLost(address.hide(str(error))) from None
    fork_safety.on_fork(conn, _leave_open)
    return conn


def _leave_open(conn: Connection[Any]) -> None:
    """In a forked child: let go of the copy without a word to the server, which would end the parent's connection."""
    fork_safety.keep(conn)
    if conn.pgconn.status == 0:  # not closed yet
        fork_safety.hide(conn.pgconn.socket)


def _defaults() -> dict[str, str]:
    return {key: value for key, value in _DEFAULTS.items() if not os.environ.get(_VARIABLES.get(key, ""))}


def escaping(conn: Connection[Any]) -> Callable[[bytes], bytes]:
    """What makes a literal of text, for this connection."""
    escape: Callable[[bytes], bytes] = import_psycopg().pq.Escaping(conn.pgconn).escape_literal
    return escape


@contextmanager
def short_connection(address: Address, otherwise: str = "") -> Iterator[ServerConnection]:
    """A connection for a few statements. What goes wrong with it is a StoreError, which says `otherwise` as well."""
    link = ServerConnection(address, lambda: None)
    try:
        yield link
    except StatementRefused as refused:
        raise explain(address, refused) from refused
    except ConnectionLost as lost:
        raise explain_lost(address, f"{lost}; {otherwise}" if otherwise else str(lost)) from lost
    finally:
        link.close()


class Tries:
    """The tries of a round trip that may be repeated. Connections may be ended faster than we can make them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._began = monotonic()
        self._lost = 0

    def again(self, lost: ConnectionLost) -> None:
        """Its connection was lost: once more, at once and then after a moment. StoreAway when that is no use."""
        self._lost += 1
        if self._lost >= _TRIES and monotonic() > self._began + _TRIES_S:
            raise explain_lost(self._address, str(lost)) from lost
        if self._lost > 1:
            sleep(_AGAIN_S)


def import_psycopg() -> Any:
    """The driver, of the extra `postgres`."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        from fleetgate.config.install_hint import install_command

        raise StoreError(
            f"a PostgreSQL store needs the `postgres` extra ({error}): {install_command('postgres')}"
        ) from error
    return psycopg


# What the server says, as sentences.


def explain_lost(address: Address, said: str) -> StoreError:
    """For a server that cannot be reached: StoreAway where that may pass by itself."""
    kind = StoreError
    said = said.partition(" Is the server running")[0]  # libpq's own question, which is asked below
    if "password" in said or "authentication" in said or "pg_hba" in said:
        do = "check the user and the password (~/.pgpass, PGPASSWORD or the URL)"
    elif "does not exist" in said:
        do = "make the database, or correct FLEETGATE_STORE"
    elif "too many" in said or "remaining connection slots" in said:
        do = "raise max_connections, or put a pooler before the server"
    elif "read-only" in said or "not read-write" in said:
        do = "name the primary, or all servers: postgresql://user@one,two/database"
    elif any(word in said for word in _NO_NAME):
        do = "is the name right, and does this machine know it?"
    else:
        do = "is it running, and can this machine reach it?"
        kind = StoreAway
    return kind(f"the store at {address.shown} cannot be reached ({said}): {do}")


def explain(address: Address, refused: StatementRefused) -> FleetgateError:
    """For a statement that the server refused."""
    code, where = refused.code, f"the store at {address.shown}"
    if code in ("42P01", "3F000", "42703"):
        return StoreError(f"{where} does not have this version's tables: run `fleetgate store migrate`")
    if code == "42501":
        return StoreError(f"{where} does not allow this ({refused}): grant the role its rights (docs/postgres.md)")
    if code.startswith("53"):
        return StoreError(f"{where} has run out of something ({refused}): nothing was changed; see to the server")
    if code.startswith(("XX", "58")):
        return StoreError(f"{where} is damaged or its disk failed ({refused}): see to the server's log")
    return StoreError(f"{where} refused ({refused}): nothing was changed; run `fleetgate doctor`")
