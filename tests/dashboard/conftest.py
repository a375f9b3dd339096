"""A service, a browser and a page signed in to it. Where there is no Chromium, these tests are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.dashboard.browser import NAMES, find_chromium, launched
from tests.dashboard.service import Server

ROOT = Path(__file__).resolve().parents[2]
AXE = "4.14.0"
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
READY = "html[data-phase=ready] #live[data-tone=live]"


_open = ExitStack()
_browsers: list[Browser] = []


@pytest.fixture
def browser() -> Browser:
    """One for all tests of this folder, and no longer: while it lives, nobody else in this process can use asyncio."""
    if find_chromium() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(NAMES)} in PATH; tools/browser can install one")
    if not _browsers:
        _browsers.append(_open.enter_context(launched()))
    return _browsers[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
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


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


@pytest.fixture
def open_page(context: BrowserContext, server: Server) -> Callable[[], Page]:
    """Sign in and wait until the page is live. What the page complains about fails the test."""

    def opened() -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: pytest.fail(f"the page threw: {error}"))
        page.goto(server.link())
        page.wait_for_selector(READY)
        return page

    return opened


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
