"""A service, a browser and a page signed in to it. Where there is no Chromium, these tests are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.dashboard.browser import NAMES, find_chromium, launched
from tests.dashboard.service import Server

ROOT = Path(__file__).resolve().parents[2]
AXE = "4.14.0"
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
READY = "html[data-phase=ready] #live[data-tone=live]"
SCREEN: ViewportSize = {"width": 1440, "height": 900}
# As if it had just been opened: nothing is searched, chosen or open, and the state is read again.
AS_NEW = """() => {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  for (const button of document.querySelectorAll("#toasts .toast .icon-button")) button.click();
  document.adoptedStyleSheets = [];
  document.activeElement?.blur();
  location.hash = "#/";
  const put = (node, value, event) => {
    if (node.value === value) return;
    node.value = value;
    node.dispatchEvent(new Event(event));
  };
  for (const id of ["search", "pool-search"]) put(document.getElementById(id), "", "input");
  for (const id of ["queue-pool", "chart-pool"]) put(document.getElementById(id), "", "change");
  document.querySelector("#job-states button[aria-pressed=false]:first-child")?.click();
  scrollTo(0, 0);
  document.dispatchEvent(new Event("visibilitychange"));
}"""


_open = ExitStack()
_browsers: list[Browser] = []
_pages: list[Page] = []  # the one that tests share; none after a test that failed


@pytest.fixture
def browser() -> Browser:
    """One for all tests of this folder, and no longer: while it lives, nobody else in this process can use asyncio."""
    if find_chromium() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(NAMES)} in PATH; tools/browser can install one")
    if not _browsers:
        _browsers.append(_open.enter_context(launched()))
    return _browsers[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _pages:
        _pages.pop().context.close()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _pages.clear()
        _browsers.clear()
        _open.close()


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all: to start a service for each test would take most of the time."""
    server = Server(tmp_path_factory.mktemp("dashboard") / "home")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(one_server: Server) -> Server:
    one_server.wipe()
    return one_server


def new_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport=SCREEN, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser without a session, for tests that need one of their own."""
    context = new_context(browser)
    try:
        yield context
    finally:
        context.close()


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Callable[[], Page]:
    """A page that is signed in and shows the state of now. Tests share it: to load it takes most of a test's time."""

    def opened() -> Page:
        if not _pages:
            _pages.append(_load(browser, server))
        page = _pages[0]
        if not page.url.startswith(server.url) or not page.locator(READY).count():
            page.goto(server.link())
            page.wait_for_selector(READY)
        page.unroute_all()
        page.set_viewport_size(SCREEN)
        page.emulate_media(color_scheme="light")
        page.evaluate(AS_NEW)
        seq = server.gate.read().seq
        page.wait_for_function("seq => Number(document.documentElement.dataset.seq) >= seq", arg=seq)
        return page

    return opened


def _load(browser: Browser, server: Server) -> Page:
    """What the page complains about fails the test."""
    page = new_context(browser).new_page()
    page.on("pageerror", lambda error: pytest.fail(f"the page threw: {error}"))
    page.goto(server.link())
    page.wait_for_selector(READY)
    return page


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source, from npm, kept in a folder that git ignores."""
    folder = ROOT / "node_modules/axe-core"
    if not (folder / "axe.min.js").exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed, and axe-core comes by it")
        command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--no-package-lock", f"axe-core@{AXE}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"npm could not bring axe-core@{AXE}: {done.stderr.strip()[:200]}")
    return (folder / "axe.min.js").read_text()
