"""What a PostgreSQL store's URL says, and that its password is never shown."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from fleetgate.log import open_log
from fleetgate.log.postgres.connection import ConnectionLost, connect
from fleetgate.log.postgres.url import parse
from fleetgate.log.protocol import StoreError
from fleetgate.log.store_url import local_folder, shown

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("postgresql://h/d", "postgresql://h/d?namespace=default"),
        ("postgresql://me@h:6432/d?namespace=team-a", "postgresql://me@h:6432/d?namespace=team-a"),
        (f"postgresql://me:{SECRET}@h/d", "postgresql://me@h/d?namespace=default"),
        (f"postgresql://me:{SECRET}@one:5432,two:5433/d", "postgresql://me@one:5432,two:5433/d?namespace=default"),
        (f"postgresql://h/d?password={SECRET}&user=me", "postgresql://h/d?namespace=default"),
        (f"postgresql://h/d?sslpassword={SECRET}", "postgresql://h/d?namespace=default"),
        ("postgresql:///d?host=/run/pg&port=6000", "postgresql:///run/pg:6000/d?namespace=default"),
        (f"postgresql:///host=h%20password={SECRET}", "postgresql:///...?namespace=default"),
    ],
)
def test_c3_a_url_is_shown_without_what_is_secret_in_it(url: str, as_shown: str) -> None:
    address = parse(url)
    assert address.shown == shown(url) == as_shown
    assert SECRET not in repr(address)
    if SECRET in url and address.secrets:
        assert SECRET not in address.hide(f'password authentication failed: "{SECRET}"\n  LINE 1: {SECRET}')


def test_c3_the_namespace_is_ours_and_the_rest_is_for_libpq() -> None:
    address = parse("postgresql://me@h/d?sslmode=require&namespace=team-a&connect_timeout=9")
    assert address.namespace == "team-a"
    assert address.url == "postgresql://me@h/d?sslmode=require&connect_timeout=9"
    assert parse("postgresql://h/d?namespace=x").url == "postgresql://h/d"


@pytest.mark.parametrize("name", ["", "Team", "a b", "-a", "a" * 64, "a'b", "a%00b", "ü"])
def test_Q1_a_namespace_that_cannot_be_one_is_refused_with_what_is_valid(name: str) -> None:
    with pytest.raises(StoreError, match=r"not a namespace: .*valid are up to 63 of a-z"):
        parse(f"postgresql://h/d?namespace={name}")


@pytest.mark.parametrize("url", ["postgresql://me:hunter2@h h:1,2/d", "mysql://me:hunter2@h:x/d"])
def test_Q1_what_is_no_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreError, match="valid is postgresql://") as caught:
        parse(url)
    assert SECRET not in str(caught.value)


def test_Q1_an_option_that_libpq_does_not_know_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"not a store that can be used .*nonsense") as caught:
        open_log(f"postgresql://me:{SECRET}@h/d?nonsense=1")
    assert SECRET not in str(caught.value)


def test_Q1_without_the_driver_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **said: object) -> object:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError("No module named 'psycopg'")
        return real(name, *args, **said)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StoreError, match=r"needs the `postgres` extra .*install .*\[postgres\]"):
        open_log("postgresql://h/d")


def test_each_gate_of_a_database_has_a_folder_of_its_own_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETGATE_HOME", str(tmp_path / "s"))
    one = local_folder(f"postgresql://me:{SECRET}@h/d?namespace=a")
    assert one.startswith(str(tmp_path / "s" / "stores" / "a-"))
    assert Path(one).stat().st_mode & 0o777 == 0o700
    assert one == local_folder("postgresql://you@h/d?namespace=a"), "whoever connects, it is the same gate"
    assert one != local_folder("postgresql://h/d?namespace=b")
    assert one != local_folder("postgresql://h/e?namespace=a")
    assert local_folder("sqlite:///x") == "/x"
    assert local_folder("memory://") == ""


def test_q2_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLEETGATE_HOME", str(tmp_path / "file" / "s"))
    with pytest.raises(StoreError, match="set FLEETGATE_HOME"):
        local_folder("postgresql://h/d")


def test_c3_what_libpqs_own_variables_say_stands_and_the_url_is_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    asked: list[dict[str, object]] = []

    def note(**settings: object) -> None:
        asked.append(settings)
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(psycopg, "connect", note)
    for variable, url in (("", ""), ("9", ""), ("9", "?connect_timeout=4")):
        monkeypatch.setenv("PGCONNECT_TIMEOUT", variable)
        with pytest.raises(ConnectionLost, match="no server"):
            connect(parse(f"postgresql://h/d{url}"))
    assert [settings.get("connect_timeout") for settings in asked] == ["3", None, "4"]
    assert all(settings["tcp_user_timeout"] == "10000" for settings in asked)
