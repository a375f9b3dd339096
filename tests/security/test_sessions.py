"""A browser's session is a cookie and a secret of the tab: either alone is worth nothing. Signing in needs a code that
only its owner gets to see."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from time import monotonic, time
from types import SimpleNamespace

import pytest

from fleetgate.api.security import session_routes
from fleetgate.api.security.link_files import NoLinkFile, remove_old_link_files, write_link_file
from fleetgate.api.security.one_time_marks import MarkFiles, Marks, MarksInMemory
from fleetgate.api.security.sessions import CODE_S, SESSION_S, Sessions
from fleetgate.api.security.tokens import Tokens
from tests.api.served import Answer, Served
from tests.security.test_callers import STRANGER, Caller, as_root

CAP = {"selector": "safe", "cap": 2}
TOKEN = b"a-token-of-a-test-1"


def pair_of(answer: Answer) -> dict[str, str]:
    """The headers that a signed-in page sends."""
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return {"Cookie": cookie, "x_fleetgate_session": answer.json["secret"]}


def sign_in(served: Served, **headers: str) -> Answer:
    code = served.ok("POST", "/v1/login-links")["url"].partition("#code=")[2]
    return served.request("POST", "/v1/session", {"code": code}, token="", **headers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


def test_cookie_and_secret_together_may_change_something_and_either_alone_may_not(fresh: Served):
    first, second = pair_of(sign_in(fresh)), pair_of(sign_in(fresh))

    def status(headers: dict[str, str]) -> int:
        return fresh.request("PUT", "/v1/caps", CAP, token="", **headers).status

    assert status(first) == 200
    assert status({"Cookie": first["Cookie"]}) == 401
    assert status({"x_fleetgate_session": first["x_fleetgate_session"]}) == 401
    assert status({"Cookie": first["Cookie"], "x_fleetgate_session": second["x_fleetgate_session"]}) == 401
    assert status({"Cookie": first["Cookie"], "x_fleetgate_session": ""}) == 401
    value = first["Cookie"].partition("=")[2]
    assert status({"Cookie": first["Cookie"], "x_fleetgate_session": value}) == 401
    assert (
        status({"Cookie": first["Cookie"].replace("=", "=9", 1), "x_fleetgate_session": first["x_fleetgate_session"]})
        == 401
    )
    # Another web server on 127.0.0.1 may have set a cookie of the same name.
    name = first["Cookie"].partition("=")[0]
    assert status({**first, "Cookie": f"{name}=junk; other=1; {first['Cookie']}"}) == 200
    for path in ("/v1/session", "/v1/overview?tickets=0"):
        answer = fresh.get(path, Cookie=first["Cookie"]).json
        assert (answer.get("session") or answer)["may_change"] is False
    fresh.stop()
    fresh.start()
    assert status(first) == 200
    assert fresh.request("DELETE", "/v1/session", token="", **first).json == {"signed_out": True}
    assert status(first) == 401
    assert status(second) == 200
    fresh.stop()
    fresh.start("--new-token")
    assert status(second) == 401


def test_the_cookie_is_short_lived_and_kept_from_scripts_and_other_sites(served: Served):
    cookie = SimpleCookie(sign_in(served).headers["set-cookie"])
    ((name, morsel),) = cookie.items()
    assert name.startswith("fleetgate_session")
    assert 0 < int(morsel["max-age"]) <= 12 * 3600
    assert (morsel["httponly"], morsel["samesite"], morsel["path"], morsel["domain"]) == (True, "Strict", "/", "")
    assert not morsel["secure"]


def test_behind_tls_the_cookie_is_bound_to_the_host_and_to_tls(served: Served):
    answer = sign_in(served, Origin=f"https://127.0.0.1:{served.port}", Sec_Fetch_Site="same-origin")
    set_cookie = answer.headers["set-cookie"]
    assert set_cookie.startswith("__Host-fleetgate_session")
    assert "; Secure" in set_cookie
    assert "; Path=/;" in set_cookie
    assert served.request("GET", "/v1/session", token="", **pair_of(answer)).json["may_change"] is True


def test_a_code_signs_in_once_and_only_over_post(served: Served):
    link = served.ok("POST", "/v1/login-links")
    assert link["valid_s"] == 300
    base, _, code = link["url"].partition("#code=")
    assert base == f"http://127.0.0.1:{served.port}/"
    for wrong in (f"/login?code={code}", f"/?code={code}", f"/v1/session?code={code}"):
        assert "set-cookie" not in served.get(wrong).headers
    foreign = served.request("POST", "/v1/session", {"code": code}, token="", Origin="http://evil.example")
    assert foreign.status == 403
    assert served.request("POST", "/v1/session", {"code": "wrong"}, token="").json["reason"] == "code_wrong"
    assert served.request("POST", "/v1/session", {"code": code}, token="").status == 200
    again = served.request("POST", "/v1/session", {"code": code}, token="")
    assert (again.status, again.json["reason"]) == (403, "code_wrong")
    assert "set-cookie" not in again.headers
    assert served.request("POST", "/v1/login-links", token="").status == 401


def test_sessions_and_codes_end(monkeypatch: pytest.MonkeyPatch):
    sessions = Sessions(TOKEN, MarksInMemory())
    session, code = sessions.begin(), sessions.new_code()
    cookies, secret = f"{sessions.cookie}={session.cookie}".encode(), session.secret.encode()
    assert sessions.find(cookies, secret) is not None
    assert Sessions(TOKEN, MarksInMemory()).find(cookies, secret) is not None  # after a restart
    other = Sessions(TOKEN + b"2", MarksInMemory())
    assert other.cookie != sessions.cookie  # two services on one machine do not sign each other out
    assert other.find(cookies.replace(sessions.cookie.encode(), other.cookie.encode()), secret) is None
    now, later = time(), monotonic()
    monkeypatch.setattr("fleetgate.api.security.sessions.time", lambda: now + SESSION_S + 2)
    monkeypatch.setattr("fleetgate.api.security.one_time_marks.monotonic", lambda: later + CODE_S + 1)
    assert sessions.find(cookies, secret) is None
    assert not sessions.redeem(code)
    for junk in (b"", b"=", b"a.b", b";;;", cookies[:-1], cookies + b"\xff"):
        assert sessions.find(junk, secret) is None
        assert sessions.find(junk, b"\xff") is None


def test_off_loopback_the_page_is_public_and_data_needs_both_halves(tmp_path: Path):
    served = Served(tmp_path)
    try:
        served.start("--host", "0.0.0.0", "--new-token")
        for path in ("/", "/assets/js/app.js", "/assets/css/base.css", "/favicon.ico", "/docs", "/openapi.json"):
            assert served.get(path).status == 200, path
        pair = pair_of(sign_in(served))
        for path in ("/v1/status", "/v1/overview", "/metrics", "/concurrency/status", "/v1/config"):
            assert served.get(path).status == 401, path
            assert served.get(path, Cookie=pair["Cookie"]).status == 401, path
            assert served.get(path, **pair).status == 200, path
        assert served.request("POST", "/assets/js/app.js", {}, token="").status == 401
        assert served.request("DELETE", "/v1/session", token="").status == 401
    finally:
        served.kill()


# `fleetgate open`.

RECORD = """#!/bin/sh
printf '%s\\n' "$@" > "$HOME/opened"
"""


def test_open_gives_the_browser_a_file_and_no_secret_on_a_command_line(tmp_path: Path):
    browser = tmp_path / "browser"
    browser.write_text(RECORD)
    browser.chmod(0o755)
    with Served(tmp_path, HOME=str(tmp_path), BROWSER=f"{browser} %s") as served:
        opening = served.spawn("open")
        opened = tmp_path / "opened"
        served.wait_until(lambda: opened.exists() and opened.read_text(), "the browser was started")
        (argument,) = opened.read_text().split()
        assert argument.startswith(f"file://{served.home}/")
        file = Path(argument.removeprefix("file://"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        page = file.read_text()
        code = page.partition("#code=")[2].partition('"')[0]
        assert code
        assert code not in argument
        assert code not in Path(f"/proc/{opening.pid}/cmdline").read_text()
        assert f'content="0;url=http://127.0.0.1:{served.port}/#code={code}"' in page
        assert served.request("POST", "/v1/session", {"code": code}, token="").status == 200
        out, err = opening.communicate(timeout=60)
        assert (opening.returncode, out) == (0, "")
        assert "signed in" in err
        assert not file.exists()  # it was removed after its use


def test_open_without_a_browser_says_what_to_type_and_leaves_no_file(tmp_path: Path):
    with Served(tmp_path, BROWSER="/nowhere/browser %s", PATH="/nowhere", DISPLAY="", WAYLAND_DISPLAY="") as served:
        done = served.cli("open")
        assert done.returncode == 69
        assert "fleetgate open --print" in done.stderr
        assert "code" not in done.stdout + done.stderr
        assert list((served.home / "open").iterdir()) == []
        printed = served.cli("open", "--print")
        assert printed.stdout.startswith(f"http://127.0.0.1:{served.port}/#code=")
        assert "secret" in printed.stderr


def test_a_link_file_is_never_put_where_another_user_could_read_it(tmp_path: Path):
    (tmp_path / "open").mkdir(mode=0o700)
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(NoLinkFile, match="--print"):
        write_link_file(str(tmp_path), "http://127.0.0.1/#code=a", "a")
    (tmp_path / "open").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "open").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoLinkFile):
        write_link_file(str(tmp_path), "http://127.0.0.1/#code=a", "a")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_link_files_that_were_not_used_are_removed_when_their_codes_have_ended(tmp_path: Path):
    old = write_link_file(str(tmp_path), "http://127.0.0.1/#code=a", "a")
    new = write_link_file(str(tmp_path), "http://127.0.0.1/#code=b", "b")
    os.utime(old, (1, 1))
    remove_old_link_files(str(tmp_path))
    assert list((tmp_path / "open").iterdir()) == [Path(new)]


def test_the_service_removes_the_file_of_a_code_that_was_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETGATE_HOME", str(tmp_path))
    monkeypatch.setattr(session_routes, "CODE_S", 0.0)
    monkeypatch.setattr(session_routes, "_MARGIN_S", 0.0)
    old = Path(write_link_file(str(tmp_path), "http://127.0.0.1/#code=a", "a"))
    os.utime(old, (1, 1))
    service = SimpleNamespace(
        url="http://127.0.0.1", access=SimpleNamespace(tokens=Tokens(TOKEN.decode(), MarksInMemory()))
    )

    async def make_link() -> None:
        await session_routes.login_link.handler(service)
        async with asyncio.timeout(60):
            while old.exists():
                await asyncio.sleep(0.01)

    asyncio.run(make_link())


@as_root
def test_a_code_is_worth_nothing_to_another_user_of_the_machine_unless_it_is_shared(served: Served):
    stranger = Caller(served.port, STRANGER)
    try:
        for command in ("--print", "--json"):
            code = served.cli("open", command).stdout.partition("#code=")[2].strip().partition('"')[0]
            refused = stranger.ask("POST", "/v1/session", {"code": code})
            assert (refused.status, refused.json["reason"]) == (403, "stranger")
            assert "--share" in refused.json["error"]
            assert "set-cookie" not in refused.headers
            assert served.request("POST", "/v1/session", {"code": code}, token="").status == 200  # it was not used up
            assert stranger.ask("POST", "/v1/session", {"code": code}).json["reason"] == "code_wrong"
        shared = served.cli("open", "--share")
        assert "secret" in shared.stderr
        code = shared.stdout.partition("#code=")[2].strip()
        answer = stranger.ask("POST", "/v1/session", {"code": code})
        assert answer.status == 200
        pair = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "x_fleetgate_session": answer.json["secret"]}
        assert stranger.ask("GET", "/v1/session", **pair).json["may_change"] is True
        assert stranger.ask("GET", "/v1/session").status == 401
        assert stranger.ask("GET", "/").status == 200  # the page, without its data
    finally:
        stranger.end()


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_mark_counts_once_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    marks: Marks = MarksInMemory() if kind == "memory" else MarkFiles(str(tmp_path))
    same: Marks = marks if kind == "memory" else MarkFiles(str(tmp_path))  # as another process has it
    marks.put("code abc", "shared", 60)
    marks.put("ended x", "", 60)
    assert same.get("code abc") == "shared"
    assert same.get("ended x") == ""
    assert same.take("code abc") == "shared"
    assert marks.take("code abc") is None
    marks.put("code def", "", 60)
    now = monotonic()
    monkeypatch.setattr("fleetgate.api.security.one_time_marks.monotonic", lambda: now + 61)
    assert same.get("code def") is None
    assert marks.take("code def") is None
    marks.put("code ghi", "", 60)
    assert same.take("code ghi") == ""
    assert not any(b"abc" in each.read_bytes() or "abc" in each.name for each in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 0, "old ones are removed"
