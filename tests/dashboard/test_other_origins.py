"""A page of another origin can neither read nor change anything (rule H5): a real page, in a signed-in browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from playwright.sync_api import Page

from tests.dashboard.service import Server

Opened = Callable[[], Page]


class _Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>stranger</title><p>A page that the user visits."
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


TRY_ALL = """async (url) => {
  const tried = {};
  const attempt = async (name, doing) => {
    try { tried[name] = await doing(); } catch (error) { tried[name] = "blocked"; }
  };
  const read = async (path, options) => (await (await fetch(url + path, options)).text()) || "empty";
  await attempt("read", () => read("/v1/overview"));
  await attempt("read with cookies", () => read("/v1/overview", { credentials: "include" }));
  await attempt("read what needs no token", () => read("/concurrency/status"));
  await attempt("read the metrics", () => read("/metrics"));
  const json = { "Content-Type": "application/json" };
  const put = { method: "PUT", body: '{"limit": 99}', headers: json, credentials: "include" };
  await attempt("change what needs no token", () => read("/concurrency/limits/umans", put));
  const blind = { method: "POST", mode: "no-cors", credentials: "include", headers: { "Content-Type": "text/plain" } };
  const pause = { ...blind, body: '{"target": "umans"}' };
  await attempt("pause unseen", async () => (await fetch(url + "/v1/pause", pause)).type);
  await attempt("stream", () => new Promise((resolve, reject) => {
    const source = new EventSource(url + "/v1/events?since=0", { withCredentials: true });
    source.onerror = () => { source.close(); reject(new Error("refused")); };
    source.onopen = () => { source.close(); resolve("opened"); };
    source.addEventListener("hello", () => { source.close(); resolve("opened"); });
  }));
  await attempt("script", () => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url + "/v1/overview";
    script.onload = () => resolve("loaded");
    script.onerror = reject;
    document.head.append(script);
  }));
  await attempt("frame", () => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.src = url + "/";
    frame.onload = () => { try { resolve(frame.contentDocument.title || "blocked"); } catch { resolve("blocked"); } };
    document.body.append(frame);
  }));
  return tried;
}"""

POST_A_FORM = """(url) => {
  const form = document.createElement("form");
  form.method = "POST";
  form.enctype = "text/plain";
  form.action = url + "/v1/pause";
  const input = document.createElement("input");
  input.name = '{"target": "umans", "kind": "';
  input.value = 'requests"}';
  form.append(input);
  document.body.append(form);
  form.submit();
}"""


def test_H5_D1_a_page_of_another_origin_reads_and_changes_nothing(
    server: Server, open_page: Opened, stranger: str
) -> None:
    server.caps(umans=4)
    page = open_page()  # this browser has the cookie
    before = server.http("GET", "/v1/status")["pools"]
    page.goto(stranger)
    tried = page.evaluate(TRY_ALL, server.url)
    unseen = tried.pop("pause unseen")
    assert unseen in ("opaque", "blocked")  # it may be sent, blindly; below: without effect
    assert set(tried.values()) == {"blocked"}, tried
    page.evaluate(POST_A_FORM, server.url)
    page.wait_for_url(f"{server.url}/v1/pause")
    assert "foreign_origin" in page.content()
    assert server.http("GET", "/v1/status")["pools"] == before


def test_H5_a_name_that_somebody_elses_dns_points_here_is_refused(server: Server) -> None:
    server.caps(umans=4)
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example"):
        for method, path in (
            ("GET", "/"),
            ("GET", "/v1/overview"),
            ("GET", "/v1/events"),
            ("PUT", "/concurrency/limits/umans"),
        ):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request(method, path, headers={"Host": host, "Authorization": f"Bearer {server.token}"})
            response = connection.getresponse()
            assert (response.status, b"wrong_host" in response.read()) == (403, True), (host, path)
            connection.close()


def test_H5_the_page_comes_with_a_policy_that_lets_nothing_in_or_out(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    for path in ("/", "/assets/js/app.js", "/assets/css/base.css", "/assets/favicon.svg"):
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        policy = response.headers["content-security-policy"]
        assert response.status == 200
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "https://" not in body
        if path == "/":
            assert "<style" not in body
            assert " style=" not in body
            assert "onclick" not in body
    for path in ("/assets/../api/tokens.py", "/assets/%2e%2e/api/tokens.py", "/assets/nothing.js"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == 404, path
    connection.close()
