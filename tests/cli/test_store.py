"""`fleetgate store`, and the other commands on a PostgreSQL store (rules C2, C3, Q2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.replica.side_rows import JOB_ENDS, TICKET_NEWS
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.log.postgres import copy_store, migrations
from fleetgate.log.postgres import url as postgres_url
from fleetgate.log.protocol import START, SideWrite, StoreError
from fleetgate.log.sqlite.log import SqliteLog
from tests.cli.command_line import Cli, opened
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store

pytestmark = pytest.mark.postgres

SPEC = Spec(models=("umans/coder",), kind="requests")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture
def url(postgres: Server) -> str:
    return fresh_store(postgres)


@pytest.fixture
def on_postgres(cli: Cli, url: str) -> Cli:
    cli.env("FLEETGATE_STORE", url)
    return cli


# Commands.


def test_C3_every_listing_and_change_works_on_a_postgresql_store(on_postgres: Cli) -> None:
    cli = on_postgres
    cli.ok("cap", "set", "umans", "1", "--kind", "requests")
    lease = cli.json("acquire", "-m", "umans/coder", "--kind", "requests", "--pid", "1")["lease"]
    refused = cli("acquire", "-m", "umans/coder", "--kind", "requests", "--no-wait", "--pid", "1")
    assert refused.code == 75
    assert [one["id"] for one in cli.json("ps")["leases"]] == [lease]
    assert cli.json("status")["pools"]
    for command in ("queue", "jobs", "backoff ls", "session ls", "config show", "metrics", "capacity -m umans/coder"):
        cli(*command.split())
    cli.ok("release", lease)
    assert cli.json("ps")["leases"] == []
    told = [line for line in cli.ok("history", "--json").splitlines() if "released" in line]
    assert len(told) == 1


def test_C2_a_machines_own_file_sets_no_cap_but_that_of_its_host(on_postgres: Cli, url: str) -> None:
    cli = on_postgres
    cli.config.write_text("[agents]\nhost = 1\n'umans/*' = 7\n")
    assert "umans/*" not in {one["selector"] for one in cli.json("cap", "ls")["caps"]}
    cli.ok("acquire", "-m", "umans/coder", "--pid", "1")
    refused = cli("acquire", "-m", "umans/coder", "--no-wait", "--pid", "1")
    assert refused.code == 75
    assert "host" in refused.out + refused.err
    cli.ok("config", "apply", str(cli.config))
    assert "umans/*" in {one["selector"] for one in cli.json("cap", "ls")["caps"]}


def test_doctor_looks_at_the_database(on_postgres: Cli) -> None:
    checks = {one["check"]: one for one in on_postgres.json("doctor")["checks"] if one["level"] != "warn"}
    assert "PostgreSQL" in checks["store"]["text"]
    assert checks["writing"]["level"] == checks["clock"]["level"] == checks["caps"]["level"] == "ok"
    assert "database" not in checks


def test_doctor_says_that_waiters_poll_where_listening_does_not_work(
    on_postgres: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetgate.log.postgres.inspect.reaches", lambda address, namespace: False)
    told = [one["text"] for one in on_postgres.json("doctor")["checks"] if one["level"] == "warn"]
    assert any("LISTEN does not work," in text for text in told)
    assert "by polling" in on_postgres.ok("store")
    assert on_postgres.json("store", "status")["listens"] is False


# The store and its tables.


def test_the_store_says_what_it_is(cli: Cli, url: str) -> None:
    assert cli.json("store", "status")["kind"] == "sqlite"
    assert "SQLite" in cli.ok("store")
    cli.env("FLEETGATE_STORE", "memory://")
    assert "a single process" in cli.ok("store")
    cli.env("FLEETGATE_STORE", url)
    seen = cli.json("store", "status")
    assert (seen["kind"], seen["version"], seen["listens"]) == ("postgresql", migrations.VERSION, True)
    assert "woken at once" in cli.ok("store")


def test_Q1_a_database_without_tables_or_namespace_says_what_to_do(cli: Cli, postgres: Server) -> None:
    bare = postgres.url(postgres.new_database())
    cli.env("FLEETGATE_STORE", bare)
    for command in ("status", "store", "run -- true"):
        said = cli(*command.split())
        assert said.code == 69
        assert "run `fleetgate store migrate`" in said.err
    assert cli.json("store", "migrate") == {
        "store": postgres_url.parse(bare).shown,
        "before": 0,
        "after": migrations.VERSION,
        "namespace_made": True,
    }
    assert "up to date" in cli.ok("store", "migrate")
    cli.ok("status")
    cli.env("FLEETGATE_STORE", f"{bare}&namespace=taem-a")
    said = cli("status")
    assert said.code == 69
    assert "there is no namespace 'taem-a'" in said.err
    cli.ok("store", "migrate")
    cli.ok("status")


def test_only_a_postgresql_store_is_migrated(cli: Cli) -> None:
    assert "needs no migration" in cli.refused("store", "migrate")


def test_Q1_releases_and_tables_that_do_not_fit_say_which_to_upgrade(cli: Cli, postgres: Server) -> None:
    url = postgres.url(postgres.new_database())
    migrations.migrate(postgres_url.parse(url))
    cli.env("FLEETGATE_STORE", url)
    with admin(url) as operator:
        operator.execute("UPDATE fleetgate.meta SET value = 99 WHERE key = 'version'")
        cli.ok("status")  # a newer release has added to it, and left `oldest` alone
        assert "schema version 99" in cli.ok("store", "migrate")
        operator.execute("UPDATE fleetgate.meta SET value = 99 WHERE key = 'oldest'")
        assert "upgrade fleetgate" in cli("status").err
        operator.execute("UPDATE fleetgate.meta SET value = 0")
        said = cli("status")
        assert (said.code, "run `fleetgate store migrate`" in said.err) == (69, True)


def test_a_role_with_the_rights_of_the_docs_can_do_everything_but_migrate(cli: Cli, postgres: Server) -> None:
    url = postgres.url(postgres.new_database())
    migrations.migrate(postgres_url.parse(url))
    with admin(url) as operator:
        operator.execute("CREATE ROLE worker LOGIN")
        operator.execute("GRANT USAGE ON SCHEMA fleetgate TO worker")
        operator.execute("GRANT SELECT ON fleetgate.meta TO worker")
        operator.execute("GRANT SELECT, UPDATE ON fleetgate.namespaces TO worker")
        operator.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON fleetgate.log, fleetgate.side, fleetgate.snapshots TO worker"
        )
    cli.env("FLEETGATE_STORE", url.replace("//fleetgate@", "//worker@"))
    cli.ok("cap", "set", "host", "4")
    cli.ok("status")
    assert cli.json("doctor")["level"] in ("ok", "warn")
    with admin(url) as operator:
        operator.execute("UPDATE fleetgate.meta SET value = 0 WHERE key = 'version'")
    assert "may not make tables" in cli("store", "migrate").err


def test_namespaces_are_gates_of_their_own(postgres: Server) -> None:
    one, two = (DirectGate(open_log(fresh_store(postgres))) for _ in range(2))
    one.one(cmd.SetRule(Rule("requests", "umans", cap=1)))
    assert one.log.head() is not None
    assert two.log.head() is None
    assert two.log.try_lock()
    one.one(cmd.SetRule(Rule("requests", "umans", cap=2)))  # whoever decides in the other one is not waited for
    two.log.unlock()
    one.close()
    two.close()


# Moving a gate.


def contents(log: object) -> tuple[list[object], dict[str, list[tuple[str, bytes]]], object]:
    assert hasattr(log, "read")
    return (
        log.read(START),
        {table: log.side_items(table) for table in (TICKET_NEWS, JOB_ENDS, "mine")},  # type: ignore[attr-defined]
        log.snapshot(),  # type: ignore[attr-defined]
    )


def filled(folder: Path) -> DirectGate:
    gate = DirectGate(open_log(f"sqlite://{folder}"), folder=str(folder))
    gate.one(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="step")))
    gate.decide([cmd.Acquire("held", SPEC, gate.me), cmd.Acquire("waits", SPEC, gate.me)])
    gate.decide([], side=[SideWrite("mine", "naïve →", b"\x00\xff"), SideWrite("mine", "b", b"")])
    gate.log.save_snapshot(msgspec.json.encode(gate.state.export()), gate.replica.position)
    return gate


def test_L2_a_copied_gate_is_the_same_to_the_last_byte_and_the_old_one_is_closed(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    gate = filled(tmp_path / "old")
    before = contents(gate.log)
    told = cli.json("store", "copy", str(tmp_path / "old"), url)
    assert (told["commits"], told["to"]) == (len(before[0]), postgres_url.parse(url).shown)
    new = open_log(url)
    assert contents(new) == before
    new.close()
    for use in (gate.replica.catch_up, lambda: gate.decide([cmd.Release("held")]), lambda: gate.log.head()):
        with pytest.raises(StoreError, match="was moved to postgresql://"):
            use()
    gate.close()
    cli.env("FLEETGATE_STORE", f"sqlite://{tmp_path / 'old'}")
    said = cli("status")
    assert said.code == 69
    assert "was moved to postgresql://" in said.err
    assert cli("doctor").code == 69
    kept = SqliteLog(str(tmp_path / "old" / "moved"))
    assert kept.read(START) == before[0], "the old files are kept"
    kept.close()


def test_L2_a_gate_is_copied_while_it_is_in_use_and_nothing_that_was_told_is_lost(url: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    filled(old).close()
    told: list[str] = []
    ended: list[str] = []
    started = threading.Event()

    def work(name: str) -> None:
        gate = DirectGate(open_log(f"sqlite://{old}"))
        number = 0
        try:
            while True:
                number += 1
                ident = f"{name}{number}"
                gate.decide([], side=[SideWrite("mine", ident, b"x")])
                told.append(ident)
                if len(told) > 200:
                    started.set()
        except FleetgateError as error:
            ended.append(str(error))
        finally:
            started.set()
            gate.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    started.wait(60)
    copied = copy_store.copy(f"sqlite://{old}", postgres_url.parse(url))
    for thread in threads:
        thread.join(60)
    assert len(ended) == 3
    assert all("was moved to" in sentence for sentence in ended)
    new = open_log(url)
    there = {key for key, _ in new.side_items("mine")}
    assert set(told) <= there
    assert len(there - set(told) - {"naïve →", "b"}) == 0
    assert copied.commits >= len(told)
    new.close()


def test_Q1_a_gate_is_copied_into_nothing_but_an_empty_one(cli: Cli, url: str, tmp_path: Path) -> None:
    gate = filled(tmp_path / "old")
    used = open_log(url)
    used.lock()
    used.begin()
    used.append(START, used.now(), [], None)
    used.unlock()
    said = cli("store", "copy", str(tmp_path / "old"), url)
    assert (said.code, "is not empty" in said.err) == (69, True)
    gate.decide([cmd.Release("held")])  # goes on
    assert "the target must be a PostgreSQL database" in cli.refused(
        "store", "copy", str(tmp_path / "old"), "memory://"
    )
    assert cli("store", "copy", str(tmp_path / "none"), url).code == 69
    used.close()
    gate.close()


@pytest.mark.parametrize("dies_at", ["_copy_sides", "open"])
def test_L2_a_copy_that_died_is_done_again(
    url: str, tmp_path: Path, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    gate = filled(old)
    before = contents(gate.log)

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copy_store._Filler, dies_at, die)
    with pytest.raises(KeyboardInterrupt):
        copy_store.copy(f"sqlite://{old}", postgres_url.parse(url))
    with pytest.raises(StoreError, match="being filled"):
        open_log(url)
    if dies_at == "open":
        with pytest.raises(StoreError, match="was moved"):
            gate.replica.catch_up()
    else:
        gate.replica.catch_up()
    monkeypatch.undo()
    copy_store.copy(f"sqlite://{old}", postgres_url.parse(url))
    new = open_log(url)
    assert contents(new) == before
    new.close()
    gate.close()


def test_a_gate_moves_from_one_namespace_to_another(url: str, postgres: Server) -> None:
    other = fresh_store(postgres)
    old = open_log(url)
    old.lock()
    old.begin()
    position = old.append(START, old.now(), [], None, [SideWrite("mine", "a", b"1")])
    old.unlock()
    assert copy_store.copy(url, postgres_url.parse(other)) == copy_store.Copied(1, 1)
    new = open_log(other)
    assert new.read(START)[0].position == position
    assert new.side_value("mine", "a") == b"1"
    new.close()
    with pytest.raises(StoreError, match="was moved to postgresql://"):
        old.lock()
    with pytest.raises(StoreError, match="was moved to postgresql://"):
        open_log(url)
    old.close()
