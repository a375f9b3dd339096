"""With a real browser: how it signs in, which of its tabs may change something, and what a provider's page can do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.dashboard.browser import NAMES, find_chromium, launched
from tests.dashboard.service import Server

PATIENCE_MS = 60_000
SIGNED_IN = "#sign-out:visible"

ATTACK = """
const body = JSON.stringify({ command: ["touch", "%(proof)s"], cwd: "/" });
const json = { "Content-Type": "application/json" };
const usual = { method: "POST", credentials: "include", body };
const post = (path, options) => fetch(path, { ...usual, ...options }).catch(() => 0);
post("%(url)s/v1/jobs", { headers: json });
post("/v1/jobs", { headers: json });
post("%(url)s/v1/jobs", { mode: "no-cors" });
post("%(url)s/concurrency/limits/fake", { method: "PUT", body: '{"limit": 99}' });
try {
  const channel = new BroadcastChannel("fleetgate.session");
  const use = (secret) => post("%(url)s/v1/jobs", { headers: { ...json, "x-fleetgate-session": secret } });
  channel.onmessage = ({ data }) => use(data.secret);
  channel.postMessage({ ask: true });
} catch {}
try { sessionStorage.getItem("fleetgate.session"); document.cookie = "fleetgate_session=x"; } catch {}
try { navigator.serviceWorker.register("/fake/v1/script.js", { scope: "/" }).catch(() => 0); } catch {}
document.title = "it ran";
"""
FORM = """<form method="POST" enctype="text/plain" action="%(url)s/v1/jobs">
<input name='{"command": ["touch", "%(proof)s"], "x": "' value='"}'></form>
<script>document.forms[0].submit()</script>"""
XML = '<x:html xmlns:x="http://www.w3.org/1999/xhtml"><x:script>%s</x:script></x:html>'


class _Provider(BaseHTTPRequestHandler):
    """A provider, or what stands behind a configured address: answers with whatever could harm."""

    protocol_version = "HTTP/1.1"
    words: ClassVar[dict[str, str]] = {"url": "", "proof": "/nowhere"}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked.append(name)
        script = ATTACK % self.words
        kind, body = {
            "page.html": ("text/html", f"<!doctype html><title>page</title><script>{script}</script>"),
            "form.html": ("text/html", f"<!doctype html><title>page</title>{FORM % self.words}"),
            "page.svg": ("image/svg+xml", f'<svg xmlns="http://www.w3.org/2000/svg"><script>{script}</script></svg>'),
            "page.xml": ("application/xml", XML % escape(script)),
            "page.mixed": (
                "multipart/x-mixed-replace; boundary=b",
                f"--b\r\nContent-Type: text/html\r\n\r\n<script>{script}</script>\r\n--b--\r\n",
            ),
            "script.js": ("text/javascript", script),
            "plain": ("text/plain", f"<script>{script}</script>"),
            "none": ("", f"<script>{script}</script>"),
            "moved": ("", ""),
        }.get(name, ("text/html", f"<title>other</title><script>{script}</script>"))
        self.send_response(302 if name == "moved" else 200)
        if name == "moved":
            self.send_header("Location", "/v1/page.html")
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", "script-src * 'unsafe-inline'")
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Set-Cookie", "fleetgate_planted=1; Path=/")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


PAGES = ("page.html", "form.html", "page.svg", "page.xml", "page.mixed", "plain", "none", "moved", "missing")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(NAMES)} in PATH; tools/browser can install one")
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, provider: str) -> Iterator[Server]:
    config = f'[providers.fake]\nbase_url = "{provider}/v1"\n'
    server = Server(tmp_path_factory.mktemp("browser") / "home", config)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


def open_signed_in(context: BrowserContext, server: Server) -> Page:
    page = context.new_page()
    page.goto(server.link())
    page.wait_for_selector(SIGNED_IN)
    return page


def may_change(page: Page) -> bool:
    """What the service says to this tab: by its own secret, as the page sends it."""
    script = """async () => {
      const { sessionHeaders } = await import("/assets/js/state/session.js");
      return (await (await fetch("/v1/session", { headers: sessionHeaders() })).json()).may_change;
    }"""
    return bool(page.evaluate(script))


def test_the_file_of_fleetgate_open_signs_a_browser_in_and_is_gone(
    context: BrowserContext, server: Server, tmp_path: Path
) -> None:
    recorded = tmp_path / "opened"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {recorded}.new && mv {recorded}.new {recorded}\n')
    script.chmod(0o755)
    server.env["BROWSER"] = f"{script} %s"
    opening = threading.Thread(target=server.run, args=("open",))
    opening.start()
    page = context.new_page()
    try:
        while not recorded.exists():
            page.wait_for_timeout(20)
        page.goto(recorded.read_text())
        page.wait_for_url(f"{server.url}/")  # without the code
        page.wait_for_selector(SIGNED_IN)
    finally:
        opening.join()
    assert may_change(page)
    assert list((server.home / "open").iterdir()) == []


def test_a_reloaded_tab_and_a_new_tab_stay_signed_in_until_one_signs_out(
    context: BrowserContext, server: Server
) -> None:
    first = open_signed_in(context, server)
    first.reload()
    first.wait_for_selector(SIGNED_IN)
    second = context.new_page()
    second.goto(server.url)
    second.wait_for_selector(SIGNED_IN)  # it asked the first tab
    (cookie,) = (each for each in context.cookies() if each["name"].startswith("fleetgate_session"))
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    second.get_by_role("button", name="Sign out").click()
    for page in (first, second):
        expect(page.locator("#banners")).to_contain_text("fleetgate open")
        expect(page.locator("#sign-out")).to_be_hidden()
        assert not may_change(page)


def test_a_newer_link_in_the_same_browser_signs_all_tabs_in_again(context: BrowserContext, server: Server) -> None:
    first = open_signed_in(context, server)
    before = first.evaluate("sessionStorage.getItem('fleetgate.session')")
    first.goto(server.link())  # the address differs in its fragment only: the page is not loaded again
    first.wait_for_function(
        "before => ![before, null].includes(sessionStorage.getItem('fleetgate.session'))", arg=before
    )
    second = open_signed_in(context, server)
    secret = second.evaluate("sessionStorage.getItem('fleetgate.session')")
    first.wait_for_function("wanted => sessionStorage.getItem('fleetgate.session') === wanted", arg=secret)
    assert may_change(first)
    assert may_change(second)


def test_a_used_link_says_so_and_changes_nothing(context: BrowserContext, server: Server, browser: Browser) -> None:
    link = server.link()
    page = context.new_page()
    page.goto(link)
    page.wait_for_selector(SIGNED_IN)
    other = browser.new_context()
    try:
        late = other.new_page()
        late.goto(link)
        expect(late.locator("#toasts")).to_contain_text("fleetgate open", timeout=PATIENCE_MS)
        assert not may_change(late)
    finally:
        other.close()


def test_another_web_server_on_this_machine_gets_a_cookie_that_is_worth_nothing(
    context: BrowserContext, server: Server, provider: str
) -> None:
    page = open_signed_in(context, server)
    cookies = "; ".join(f"{each['name']}={each['value']}" for each in context.cookies(provider))
    assert "fleetgate_session" in cookies  # cookies know no port
    asked = context.request.post(
        f"{server.url}/v1/jobs",
        data=json.dumps({"command": ["true"]}),
        headers={"Cookie": cookies, "Content-Type": "application/json"},
    )
    assert (asked.status, asked.json()["reason"]) == (401, "token_needed")
    _Provider.words.update(url=server.url)
    page.goto(f"{provider}/page.html")  # another origin: the tab's secret stays behind
    assert page.evaluate("sessionStorage.getItem('fleetgate.session')") is None


@pytest.mark.parametrize("guarded", [True, False], ids=["as it is", "in a browser without Sec-Fetch headers"])
def test_a_page_that_a_provider_answers_runs_nothing_in_a_signed_in_browser(
    context: BrowserContext, server: Server, tmp_path: Path, guarded: bool
) -> None:
    proof = tmp_path / "proof"
    _Provider.words.update(url=server.url, proof=str(proof))
    _Provider.asked.clear()
    dashboard = open_signed_in(context, server)
    jobs = len(server.http("GET", "/v1/jobs?all=true")["jobs"])
    for name in PAGES:
        page = context.new_page()
        if not guarded:
            page.route("**/fake/**", _without_fetch_metadata)
        answer = page.goto(f"{server.url}/fake/v1/{name}", wait_until="load")
        assert answer is not None
        assert answer.header_value("content-security-policy").startswith("sandbox")  # type: ignore[union-attr]
        assert answer.status == (403 if guarded else 200), name
        assert page.title() != "it ran", name
        assert page.evaluate("self.origin") == "null", name
        page.close()
    frame = """name => new Promise((resolve) => {
      const frame = Object.assign(document.createElement("iframe"), { src: name, onload: () => resolve(frame) });
      document.body.append(frame);
    }).then((frame) => frame.contentDocument?.title ?? "")"""
    assert dashboard.evaluate(frame, "/fake/v1/page.html") != "it ran"
    assert bool(_Provider.asked) is not guarded  # what a browser opens is not even sent
    dashboard.reload()
    dashboard.wait_for_selector(SIGNED_IN)
    assert not [each for each in context.cookies() if each["name"] == "fleetgate_planted"]
    assert len(server.http("GET", "/v1/jobs?all=true")["jobs"]) == jobs
    assert not proof.exists()


def _without_fetch_metadata(route: Route) -> None:
    """Ask as an old browser does, and let the browser show what the service answers."""
    headers = {name: value for name, value in route.request.headers.items() if not name.startswith("sec-fetch")}
    with urlopen(Request(route.request.url, headers=headers)) as answer:
        got = {name.lower(): value for name, value in answer.headers.items()}
        route.fulfill(status=answer.status, headers=got, body=answer.read())
