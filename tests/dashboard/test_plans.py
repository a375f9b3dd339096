"""Plan windows on the dashboard: a card for each account, with its runway (rule W3)."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from fleetgate.core.entities import PlanRule, Spec
from fleetgate.core.plans.reading import DAY_MS, HOUR_MS, PlanReading
from tests.dashboard.service import Server
from tests.dashboard.test_access import check_widths, violations

Opened = Callable[[], Page]


def test_w3_without_windows_there_is_no_section(server: Server, open_page: Opened) -> None:
    page = open_page()
    expect(page.locator("#plans")).to_be_hidden()


def test_w3_each_account_has_a_card_with_its_windows_and_those_that_run_dry_come_first(
    server: Server, open_page: Opened, axe: str
) -> None:
    week = PlanReading("7d", 4_100, 2 * DAY_MS, 7 * DAY_MS)
    server.tell(
        cmd.LoadFile("f", "plans", 1 << 42, (), plans=(PlanRule("anthropic"),), force=True),
        cmd.ObservePlan("openai", (PlanReading("5h", 2_000, 2 * HOUR_MS, 5 * HOUR_MS),)),
        cmd.ObservePlan("anthropic", (PlanReading("5h", 6_300, 4 * HOUR_MS, 5 * HOUR_MS), week)),
        cmd.Acquire("nightly01", Spec(("anthropic/claude-opus-4-6",), work_class="batch"), "h|b|n|1|1"),
    )
    page = open_page()
    cards = page.locator(".plan")
    expect(cards).to_have_count(2)
    expect(cards.nth(0)).to_contain_text("anthropic")
    expect(cards.nth(0).locator(".plan-text").nth(0)).to_contain_text("63 % of 5 h, resets ")
    expect(cards.nth(0).locator(".plan-text").nth(0)).to_contain_text("runs dry ")
    expect(cards.nth(0).locator(".plan-text").nth(1)).to_contain_text("41 % of 7 d, resets ")
    expect(cards.nth(0).locator(".plan-held").nth(0)).to_contain_text("Batch work continues ")
    expect(cards.nth(1)).to_contain_text("20 % of 5 h")
    assert violations(page, axe) == []
    check_widths(page, 360, 1440)
