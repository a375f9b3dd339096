"""H5: who may do what. A page that the user visits cannot drive the gate; nobody changes anything without the token."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from tests.api.served import Served

CAP = {"selector": "safe", "cap": 2}


def whole(raw: socket.socket) -> bytes:
    """An answer with its body of JSON, however it comes in."""
    answer = b""
    while not answer.endswith(b"}") and (more := raw.recv(4096)):
        answer += more
    return answer


def test_h5_anybody_on_loopback_may_read_and_nobody_changes_without_the_token(served: Served):
    assert served.get("/v1/status").status == 200
    assert served.get("/v1/session").json["may_change"] is False
    for token in ("", "wrong-wrong-wrong-wrong", served.token[:-1]):
        answer = served.request("PUT", "/v1/caps", CAP, token=token)
        assert answer.status == 401
        assert answer.json["reason"] == ("token_wrong" if token else "token_needed")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "safe" not in served.get("/v1/caps").body.decode()
    assert served.request("GET", "/v1/session").json["may_change"] is True


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:4180", "", "127.0.0.1.evil.example"]
)
def test_h5_a_name_that_is_not_ours_is_refused(served: Served, host: str):
    answer = served.request("GET", "/v1/status", Host=host)
    assert (answer.status, answer.json["reason"]) == (403, "wrong_host")
    assert served.request("PUT", "/concurrency/limits/x", {"limit": 1}, token="", Host=host).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:4180", "[::1]:4180", "192.168.1.5"]
)
def test_h5_addresses_and_localhost_are_ours(served: Served, host: str):
    assert served.request("GET", "/v1/status", Host=host).status == 200


def test_h5_two_hosts_are_none(served: Served):
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b"403" in raw.recv(1024).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_h5_a_page_of_another_origin_reads_and_changes_nothing(served: Served, headers: dict[str, str]):
    for method, path, body in (
        ("GET", "/v1/status", None),
        ("GET", "/v1/events", None),
        ("PUT", "/concurrency/limits/x", {"limit": 1}),
        ("OPTIONS", "/v1/caps", None),
    ):
        answer = served.request(method, path, body, **headers)
        assert (answer.status, answer.json["reason"]) == (403, "foreign_origin"), path
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_h5_our_own_page_may(served: Served):
    own = f"http://127.0.0.1:{served.port}"
    assert served.request("GET", "/v1/status", Origin=own, Sec_Fetch_Site="same-origin").status == 200


def test_h5_a_link_from_elsewhere_may_lead_to_the_page_but_not_to_data(served: Served):
    assert served.get("/", Sec_Fetch_Site="cross-site").status == 200
    assert served.get("/v1/status", Sec_Fetch_Site="cross-site").status == 403


def test_h5_the_token_file_is_for_its_owner_alone(served: Served):
    mode = (served.home / "token").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert served.token not in served.cli("config", "show").stdout
    assert served.token.encode() not in served.get("/v1/config").body


def test_h5_the_environment_replaces_the_token(tmp_path: Path):
    with Served(tmp_path, FLEETGATE_TOKEN="a-token-of-my-own-choice") as served:
        assert not (served.home / "token").exists()
        assert served.request("PUT", "/v1/caps", CAP, token="a-token-of-my-own-choice").status == 200


def test_h5_elsewhere_than_loopback_without_a_token_it_does_not_start_and_says_how(tmp_path: Path):
    served = Served(tmp_path)
    refused = served.cli("serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 64
    assert "--new-token" in refused.stderr
    assert "FLEETGATE_TOKEN" in refused.stderr
    assert not (served.home / "token").exists()


def test_h5_elsewhere_than_loopback_everything_but_health_and_the_empty_page_needs_the_token(tmp_path: Path):
    served = Served(tmp_path)
    try:
        served.start("--host", "0.0.0.0", "--new-token")
        assert served.get("/healthz").status == 200
        assert served.get("/readyz").status == 200
        for path in ("/v1/status", "/v1/session", "/metrics", "/concurrency/status", "/v1/events", "/login"):
            assert served.get(path).status == 401, path
        assert served.request("GET", "/v1/status").status == 200
        assert served.request("PUT", "/concurrency/limits/x", {"limit": 1}, token="").status == 401
    finally:
        served.kill()


@pytest.mark.parametrize("chunked", [False, True])
def test_h5_a_body_that_is_too_large_is_refused(served: Served, chunked: bool):
    body = b'{"text": "' + b"x" * 100_000 + b'"}'
    head = f"POST /v1/caps/import HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token}\r\n"
    head += "Content-Type: application/json\r\n"
    if chunked:
        sent = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    else:
        sent = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", served.port)) as raw:
        try:
            raw.sendall(sent)
        except ConnectionError:
            pass  # it need not read all of it
        answer = whole(raw)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"reason":"too_large"' in answer


def test_h5_headers_and_addresses_that_are_too_long_are_refused(served: Served):
    answer = served.get("/v1/status", X_Long="x" * 17_000)
    assert (answer.status, answer.json["reason"]) == (431, "too_large")
    answer = served.get("/v1/select?models=" + "x" * 5_000)
    assert (answer.status, answer.json["reason"]) == (414, "too_large")


def test_h5_a_head_without_an_end_is_cut_off(served: Served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        try:
            for _ in range(100):
                raw.sendall(b"x" * 1_000)
        except ConnectionError:
            pass
        answer = whole(raw)
    assert answer.startswith(b"HTTP/1.1 431")


def test_h5_a_body_that_is_not_json_by_its_type_is_refused(served: Served):
    answer = served.request("PUT", "/v1/caps", b"selector=x", Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, answer.json["reason"]) == (415, "not_json")


def test_d1_pages_have_a_policy_that_lets_nothing_out(served: Served):
    for path in ("/", "/docs"):
        answer = served.get(path)
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].startswith("text/html")
        assert b"http://" not in answer.body.replace(b"http://www.w3.org", b"")
        assert b"https://" not in answer.body
        assert served.get(path, If_None_Match=answer.headers["etag"]).status == 304


@pytest.mark.parametrize(
    "path", ["../api/tokens.py", "..%2Fapi%2Ftokens.py", "%2e%2e/py.typed", "/etc/passwd", "nope.js", ""]
)
def test_d1_only_the_dashboards_own_files_are_served(served: Served, path: str):
    answer = served.get(f"/assets/{path}")
    assert answer.status == 404
    assert answer.json["reason"] == "not_found"
