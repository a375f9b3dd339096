"""A queue of ten thousand does not freeze the page, and can be searched (rule D1)."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from tests.dashboard.service import Server
from tests.timed import within

Opened = Callable[[], Page]
CROWD = 10_000
LONGEST_MS = 1_000  # of one task of the page; a page that draws ten thousand rows takes many seconds

WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask", buffered: true });
}"""


def test_D1_ten_thousand_in_the_queue_do_not_freeze_the_page(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    held, *waiting = server.ask("umans/coder", "agent {number} of many", CROWD + 1)
    page = open_page()
    page.evaluate(WATCH)
    expect(page.locator("#queue-count")).to_have_text("10,000")
    expect(page.locator("#queue-list tbody tr")).to_have_count(25)

    # Changes keep coming while somebody clicks.
    server.tell(*(cmd.Cancel(ident) for ident in waiting[1:200]))
    expect(page.locator("#queue-count")).to_have_text("9,801")
    page.get_by_role("button", name="Next page of the queue").click()
    expect(page.locator(".pager-text").first).to_have_text("26–50 of 9,801")
    server.release(held)
    expect(page.locator("#lease-list")).to_contain_text("agent 2 of many")
    page.locator("#queue-list .command").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")

    # A search looks at all of them.
    page.keyboard.press("/")
    page.keyboard.type("9876 many")
    expect(page.locator("#queue-list tbody tr").nth(5)).to_have_count(0)  # a random id may have these digits, too
    expect(page.locator("#queue-list tbody tr", has_text="agent 9876 of many")).to_have_count(1)
    expect(page.locator("#queue-count")).to_have_text(re.compile("^[1-5] of 9,80"))
    page.keyboard.press("Escape")
    expect(page.locator("#queue-list tbody tr")).to_have_count(25)
    longest = max(page.evaluate("longTasks"), default=0)
    within(longest, LONGEST_MS, "ms that one task of the page took")


def test_D1_the_queue_is_filtered_by_words_and_by_pool(server: Server, open_page: Opened) -> None:
    server.caps(umans=1, acme=1)
    server.ask("umans/coder", "umans {number}", 4, project="shop")
    server.ask("acme/big", "acme {number}", 3, project="docs")
    page = open_page()
    rows = page.locator("#queue-list tbody tr")
    expect(rows).to_have_count(5)
    page.get_by_label("Search the queue").fill("shop coder")
    expect(rows).to_have_count(3)
    page.get_by_label("Search the queue").fill("no such thing")
    expect(page.locator("#queue-list")).to_contain_text("No matches in the queue")
    page.get_by_label("Search the queue").fill("")
    page.get_by_role("button", name="2 waiting for acme: show them").click()
    expect(rows).to_have_count(2)
    expect(page.locator("#queue-count")).to_have_text("2 of 5")
    # A pool with room is not what anybody waits for, even if those in the queue need it too.
    server.caps("agents", host=9, beta=1)
    server.ask("beta/x", "beta {number}", 3, kind="agents")
    host = page.locator(".pool", has_text="host:")
    expect(host).to_contain_text("2 waiting for something else")
    page.get_by_label("Blocked by").select_option("Any pool")
    expect(rows).to_have_count(7)
