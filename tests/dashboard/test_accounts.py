"""The Accounts page: accounts side by side, trouble first (rule M4); and projects with their share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from fleetgate.core.plans.reading import DAY_MS, HOUR_MS, PlanReading
from tests.dashboard.service import Server
from tests.dashboard.test_access import check_dark, check_widths, violations

Opened = Callable[[], Page]
CONFIG = """
[requests]
anthropic = { cap = 4, on_429 = "pause" }
[agents]
"anthropic/claude-opus-*" = 2
[budgets]
anthropic = { usd = 20, per = "day" }
[projects]
web = { weight = 3 }
[providers."anthropic@work"]
key_env = "NO_SUCH_KEY"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One for each test: plan windows cannot be taken back."""
    server = Server(tmp_path / "home")
    try:
        yield server
    finally:
        server.stop()


def _go(page: Page, count: int) -> None:
    page.evaluate("location.hash = '#/accounts'")
    expect(page.locator(".account-list tbody tr")).to_have_count(count)


def three_accounts(server: Server) -> None:
    """One is used and nearly at its limits, one has no login, one is backed off."""
    server.configure(CONFIG)
    windows = (PlanReading("5h", 6_300, 4 * HOUR_MS, 5 * HOUR_MS), PlanReading("7d", 2_000, 2 * DAY_MS, 7 * DAY_MS))
    server.tell(
        cmd.ObservePlan("anthropic", windows),
        cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 1_000, 2 * HOUR_MS, 5 * HOUR_MS),)),
        cmd.BackOff("anthropic@spare", "quota", 40 * 60_000),
    )
    server.ask("anthropic/claude-opus-4-6", "call", 6, kind="requests", project="web")
    server.ask("anthropic/claude-opus-4-6", "agent", kind="agents", project="docs")


def many_accounts(server: Server, number: int) -> None:
    server.configure("[requests]\nanthropic = 4\n")
    for at in range(number):
        account = f"anthropic@seat-{at:02}"
        used = (at * 331) % 10_000
        server.tell(cmd.ObservePlan(account, (PlanReading("5h", used, (1 + at % 4) * HOUR_MS, 5 * HOUR_MS),)))
        server.ask(f"{account}/claude-opus-4-6", "call", at % 6 or 1, kind="requests")


def test_m4_accounts_are_side_by_side_with_trouble_first(server: Server, open_page: Opened, axe: str) -> None:
    three_accounts(server)
    page = open_page()
    _go(page, 3)
    rows = page.locator(".account-list tbody tr")
    expect(rows.nth(0)).to_contain_text("anthropic@spare")
    expect(rows.nth(0)).to_contain_text("quotafor 39 min")
    expect(rows.nth(1)).to_contain_text("anthropic@work")
    expect(rows.nth(1)).to_contain_text("no login")
    busy = rows.nth(2)
    expect(busy.locator("td.name")).to_contain_text("1 agent, 4 calls running")
    expect(busy.locator("td.account-slots")).to_contain_text("requests4 / 4")
    expect(busy.locator("td.account-slots")).to_contain_text("claude-opus-* agents1 / 2")
    expect(busy.locator("td.waits")).to_have_text("2")
    expect(busy.locator("td.windows")).to_contain_text("63 % of 5 h, resets ")
    expect(busy.locator("td.windows")).to_contain_text("20 % of 7 d, resets ")
    expect(busy.locator("td.account-budgets")).to_contain_text("usd/day")
    assert violations(page, axe, "main") == []
    check_dark(page, axe, "main")
    check_widths(page, 320, 390, 768, 1440)
    page.set_viewport_size({"width": 1440, "height": 900})
    busy.locator("td.account-slots a").first.click()
    expect(page.locator("#pool-page")).to_be_visible()


def test_m4_the_page_follows_what_happens(server: Server, open_page: Opened) -> None:
    three_accounts(server)
    page = open_page()
    _go(page, 3)
    server.tell(cmd.EndBackoff("anthropic@spare"))
    spare = page.locator(".account-list tbody tr", has_text="anthropic@spare")
    expect(spare.locator("td.state")).not_to_contain_text("quota")
    server.tell(cmd.ObservePlan("anthropic@spare", (PlanReading("5h", 9_900, 2 * HOUR_MS, 5 * HOUR_MS),)))
    expect(spare.locator("td.windows")).to_contain_text("99 % of 5 h")


def test_m4_many_accounts_are_searched(server: Server, open_page: Opened, axe: str) -> None:
    many_accounts(server, 30)
    page = open_page()
    _go(page, 30)
    check_widths(page, 320, 390, 768, 1440)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("Search accounts").fill("seat-07")
    expect(page.locator(".account-list tbody tr")).to_have_count(1)
    expect(page.locator("#accounts-count")).to_have_text("1 of 30")
    page.get_by_label("Search accounts").fill("nothing like this")
    expect(page.locator("#accounts-body")).to_contain_text("No account matches.")
    assert violations(page, axe, "main") == []
    page.get_by_label("Search accounts").fill("")
    expect(page.locator(".account-list tbody tr")).to_have_count(30)


def test_m4_without_accounts_the_page_says_when_there_are_some(server: Server, open_page: Opened) -> None:
    page = open_page()
    page.evaluate("location.hash = '#/accounts'")
    expect(page.locator("#accounts-body")).to_contain_text("No accounts yet")
    expect(page.get_by_label("Search accounts")).to_be_hidden()


def test_w6_projects_have_their_part_of_a_shared_pool_their_fair_share_and_their_weight(
    server: Server, open_page: Opened, axe: str
) -> None:
    three_accounts(server)
    server.ask("anthropic/claude-sonnet-4-6", "call", kind="requests", project="docs")
    page = open_page()
    page.evaluate("location.hash = '#/projects'")
    web = page.locator(".project-list tbody tr", has_text="web")
    expect(web.locator("td.share")).to_have_text("100 %, fair 75 %, weight 3")
    docs = page.locator(".project-list tbody tr", has_text="docs").locator("td.share")
    expect(docs).to_have_text("0 %, fair 25 %")
    expect(docs).to_have_attribute("data-tone", "queue")
    check_widths(page, 320, 768, 1440)
    page.evaluate("location.hash = '#/projects/docs'")
    expect(page.locator(".project-shares")).to_contain_text(
        "anthropic (requests): 0 of the 4 slots in use, fair share 25 %"
    )
    assert violations(page, axe, "main") == []
    check_dark(page, axe, "main")
    check_widths(page, 320, 390, 1440)
    server.tell(cmd.RemoveCap("requests", "anthropic"))
    expect(page.locator(".project-shares")).to_be_hidden()


def test_m4_the_accounts_of_a_set_say_so(server: Server, open_page: Opened, axe: str) -> None:
    server.configure(
        '[accounts]\nanthropic = { use = ["default", "work"], then = ["api"] }\n[requests]\nanthropic = 2\n'
    )
    server.ask("anthropic/claude-opus-4-6", "call", 7, kind="requests")
    page = open_page()
    _go(page, 3)
    rows = page.locator(".account-list tbody tr")
    for name, chip in (("anthropic", "in the set"), ("anthropic@api", "spill"), ("anthropic@work", "in the set")):
        row = rows.filter(has=page.get_by_text(name, exact=True))
        expect(row).to_contain_text(chip)
        expect(row.locator("td.account-slots")).to_contain_text("2 / 2")
        expect(row.locator("td.waits")).to_have_text("1")  # it may use any of them
    assert violations(page, axe, "main") == []
    check_widths(page, 320, 1440)
