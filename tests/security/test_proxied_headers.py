"""What a provider answers cannot act on the service's own origin, which is the dashboard's: raw requests and headers.

tests/security/test_browser.py does the same with a real browser.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from fleetgate.proxy.headers import passed_back
from tests.api.served import Answer
from tests.proxy.proxied import Proxied

HARMFUL = {
    "Set-Cookie": "fleetgate_session=stolen; Path=/",
    "Set-Cookie2": "a=b",
    "Clear-Site-Data": '"*"',
    "Strict-Transport-Security": "max-age=99999999",
    "Service-Worker-Allowed": "/",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Expose-Headers": "*",
    "Access-Control-Allow-Private-Network": "true",
    "Content-Security-Policy": "default-src *",
    "Content-Security-Policy-Report-Only": "default-src *; report-uri https://evil.example",
    "X-Content-Type-Options": "none",
    "Refresh": "0;url=/",
    "Link": "</assets/js/app.js>; rel=preload",
    "Report-To": "{}",
    "Reporting-Endpoints": 'a="https://evil.example"',
    "NEL": "{}",
    "Alt-Svc": 'h3=":443"',
    "Public-Key-Pins": "a",
    "Origin-Trial": "a",
    "Accept-CH": "Sec-CH-UA",
    "Timing-Allow-Origin": "*",
    "Speculation-Rules": '"/rules"',
}
NEEDED = {
    "Request-Id": "req_1",
    "X-Request-Id": "req_2",
    "Retry-After": "7",
    "Anthropic-Ratelimit-Requests-Remaining": "5",
    "X-Ratelimit-Remaining-Tokens": "9",
    "Openai-Organization": "org",
    "Etag": '"a"',
    "Cache-Control": "no-cache",
    "Www-Authenticate": "Bearer",
    "Content-Disposition": "attachment",
}
GONE = '[providers.gone]\nbase_url = "http://127.0.0.1:1"\n'


class _Provider(BaseHTTPRequestHandler):
    """Answers every GET by its path: with HTML, a redirect or an error, and with headers that harm."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status = {"/moved": 302, "/wrong": 400}.get(self.path.removeprefix("/v1"), 200)
        body = b"<script>1</script>"
        self.send_response(status)
        for name, value in (HARMFUL | NEEDED).items():
            self.send_header(name, value)
        if status == 302:
            self.send_header("Location", "/v1/elsewhere")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with Proxied(
            tmp_path_factory.mktemp("proxied"), url, more='[providers.gone]\nbase_url = "http://127.0.0.1:1"\n'
        ) as made:
            yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check_isolated(answer: Answer) -> None:
    assert answer.headers["content-security-policy"].startswith("sandbox;")
    assert "allow" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/page", "/moved", "/wrong"])
def test_every_answer_of_a_provider_is_isolated_and_keeps_what_agents_need(proxied: Proxied, path: str):
    answer = proxied.get(f"/fake/v1{path}")
    check_isolated(answer)
    assert answer.body == b"<script>1</script>"
    for name, value in NEEDED.items():
        assert answer.headers[name.lower()] == value, name
    for name, value in HARMFUL.items():
        assert answer.headers.get(name.lower()) != value, name
    assert answer.headers.get("location") == ("/fake/v1/elsewhere" if path == "/moved" else None)


def test_errors_that_the_proxy_makes_itself_are_isolated_too(proxied: Proxied):
    answer = proxied.get("/gone/v1/models")
    assert answer.status == 502
    check_isolated(answer)
    bad = proxied.get("/fake/v1/models", x_fleetgate_hold="soon")
    assert bad.status == 400
    check_isolated(bad)
    foreign = proxied.get("/fake/v1/models", Origin="http://evil.example")
    assert foreign.status == 403
    check_isolated(foreign)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document", "Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script", "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Dest": "iframe", "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Dest": "serviceworker", "Sec_Fetch_Mode": "same-origin"},
        {"Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Dest": "style"},
        {"Sec_Fetch_Dest": "object"},
        {"Sec_Fetch_Dest": ""},
        {"Sec_Fetch_Mode": "websocket", "Sec_Fetch_Dest": "websocket"},
        {"Sec_Purpose": "prefetch", "Sec_Fetch_Mode": "navigate"},
    ],
)
def test_a_browser_cannot_open_or_embed_what_a_provider_answers(proxied: Proxied, headers: dict[str, str]):
    _Provider.asked.clear()
    for path in ("/fake/v1/page", "/p/blue/fake/v1/page"):
        answer = proxied.get(path, **headers)
        assert (answer.status, answer.json["reason"]) == (403, "browser_page")
        check_isolated(answer)
    posted = proxied.request("POST", "/fake/v1/chat/completions", {"model": "m1"}, token="", **headers)
    assert posted.status == 403
    assert _Provider.asked == []  # nothing was sent


def test_programs_that_use_fetch_are_answered(proxied: Proxied):
    assert proxied.get("/fake/v1/page", Sec_Fetch_Mode="cors").status == 200  # Node's fetch says this much
    assert proxied.get("/fake/v1/page", Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty").status == 200


def test_a_provider_never_gets_the_browsers_session(proxied: Proxied):
    _Provider.asked.clear()
    cookie = "a=1; fleetgate_session_12ab=secret; __Host-fleetgate_session_12ab=secret;fleetgate_session=old; b=2"
    proxied.get("/fake/v1/page", Cookie=cookie, x_fleetgate_session="secret of the tab")
    proxied.get("/fake/v1/page", Cookie="fleetgate_session=only")
    (_, first), (_, second) = _Provider.asked
    assert first["cookie"] == "a=1; b=2"
    assert "cookie" not in second
    assert not any("secret" in value for value in first.values())


def test_names_of_headers_are_dropped_however_they_are_written():
    head = passed_back([(b"SET-COOKIE", b"a"), (b"clear-Site-DATA", b"b"), (b"X-Thing", b"c")], bodiless=False)
    assert head.lines == [b"x-thing: c\r\n"]


def test_headers_that_a_connection_header_names_are_for_one_hop():
    raw = [(b"Connection", b"close, X-Hop"), (b"X-Hop", b"a"), (b"x-kept", b"b"), (b"Content-Length", b"3")]
    assert passed_back(raw, bodiless=False) == ([b"x-kept: b\r\n", b"content-length: 3\r\n"], 3, False, "")
    assert passed_back(raw, bodiless=True) == ([b"x-kept: b\r\n"], None, False, "")
    raw = [(b"Content-Encoding", b"gzip"), (b"content-encoding", b"br"), (b"Content-Type", b"Text/Event-Stream; x=y")]
    assert passed_back(raw, bodiless=False)[1:] == (None, True, "gzip, br")
