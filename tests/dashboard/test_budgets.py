"""The Budgets page: what is used, reserved and left, trouble first; and what a person changes there (rule V7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from fleetgate.core.usage import Usage
from tests.dashboard.fleet import OPUS
from tests.dashboard.service import Server, wait_until
from tests.dashboard.test_access import check_dark, check_widths, violations

Opened = Callable[[], Page]
WEB, DOCS, CALLS = "project:web usd/day", "project:docs usd/day", "umans calls/1m"


def _budgets(server: Server) -> dict[str, Any]:
    return {each["name"]: each for each in server.http("GET", "/v1/budgets")["budgets"]}


def _set_up(server: Server) -> None:
    """A budget that is used up, one that is nearly so, and a rate."""
    server.http("POST", "/v1/budgets", selector="project:web", unit="usd", amount=1, per="day")
    server.http("POST", "/v1/budgets", selector="project:docs", unit="usd", amount=2, per="day", when_empty="warn")
    server.http("POST", "/v1/budgets", selector="umans", unit="calls", amount=60, per="1m")
    for project, cost in (("web", 1_200_000), ("docs", 1_800_000)):
        (ident,) = server.ask(OPUS, "agent", kind="agents", project=project)
        server.release(ident, usage=Usage(3, 1_000, 0, 0, 500, cost, "record"))


def _open(page: Page) -> Locator:
    page.evaluate("location.hash = '#/budgets'")
    cards = page.locator(".budget")
    expect(cards).to_have_count(3)
    return cards


def test_V7_budgets_are_shown_as_the_service_has_them_and_trouble_comes_first(
    server: Server, open_page: Opened, axe: str
) -> None:
    _set_up(server)
    server.ask(OPUS, "waits for money", kind="agents", project="web")
    page = open_page()
    row = page.locator("#queue-list tbody tr", has_text="waits for money")
    expect(row).to_contain_text("budget")
    expect(row).to_contain_text(f"{WEB} has")
    expect(page.locator(".trouble", has_text=WEB)).to_contain_text("is used up: 1 request waiting. It resets in")
    page.locator(".trouble", has_text=WEB).get_by_role("link", name=WEB).click()

    cards = page.locator(".budget")
    expect(cards.nth(0)).to_contain_text("project:web")
    expect(cards.nth(0)).to_contain_text("$1.20/ $1 per day")
    expect(cards.nth(0)).to_contain_text("used up1 waiting")
    expect(cards.nth(0)).to_contain_text("$0.20 more than allowed")
    expect(cards.nth(1)).to_contain_text("project:docs")
    expect(cards.nth(1)).to_contain_text("90 % used")
    expect(cards.nth(1)).to_contain_text("when used up: only a warning · set at run time")
    expect(cards.nth(2)).to_contain_text("refills 60 a minute")
    assert (_budgets(server)[WEB]["used"], _budgets(server)[DOCS]["used"]) == (1.2, 1.8)

    check_widths(page, 320, 390, 768, 1440)
    assert violations(page, axe, "main") == []
    check_dark(page, axe, "main")
    cards.nth(0).get_by_role("button", name="1 waiting for").click()
    expect(page.locator("#queue-count")).to_have_text("1 of 1")


def test_V7_a_budget_is_set_changed_raised_reset_and_removed(server: Server, open_page: Opened) -> None:
    _set_up(server)
    server.ask(OPUS, "waits for money", kind="agents", project="web")
    page = open_page()
    cards = _open(page)
    web = page.locator(".budget", has_text="project:web")
    toasts = page.locator("#toasts")

    web.get_by_role("button", name=f"Add to {WEB}").click()
    page.get_by_label("How much more, in dollars").fill("4")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(toasts).to_contain_text(f"Added $4 to {WEB}. 1 agent started.")
    assert _budgets(server)[WEB]["amount"] == 5
    expect(web).to_contain_text("/ $1 per day+ $4 for now")
    expect(web).to_contain_text("none waiting")

    # What was added is no part of the budget: a change of something else does not make it permanent.
    web.get_by_role("button", name=f"Change {WEB}").click()
    expect(page.get_by_label("Amount per day, in dollars")).to_have_value("1")
    expect(page.get_by_role("dialog")).to_contain_text("$4 were added for now")
    page.get_by_label("When it is used up").select_option("only a warning")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(toasts).to_contain_text("The budget of project:web is now $1 per day.")
    changed = _budgets(server)[WEB]
    assert (changed["base"], changed["added"], changed["when_empty"]) == (1, 4, "warn")

    web.get_by_role("button", name=f"Reset {WEB}").click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert _budgets(server)[WEB]["used"] == 1.2
    web.get_by_role("button", name=f"Reset {WEB}").click()
    page.get_by_role("button", name="Reset the budget", exact=True).click()
    expect(toasts).to_contain_text(f"Reset the budget {WEB}")
    assert _budgets(server)[WEB]["used"] == 0

    docs = page.locator(".budget", has_text="project:docs")
    docs.get_by_role("button", name=f"Change {DOCS}").click()
    page.get_by_label("Amount per day, in dollars").fill("3.5")
    page.get_by_label("When it is used up").select_option("new requests wait")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(toasts).to_contain_text("The budget of project:docs is now $3.50 per day (was $2).")
    changed = _budgets(server)[DOCS]
    assert (changed["amount"], changed["when_empty"]) == (3.5, "hold")
    page.locator(".toast", has_text="project:docs is now").get_by_role("button", name="Undo").click()
    wait_until("the amount is as before", lambda: _budgets(server)[DOCS]["amount"] == 2)

    docs.get_by_role("button", name=f"Change {DOCS}").click()
    page.get_by_role("button", name="Remove it…").click()
    page.get_by_role("button", name="Remove the budget", exact=True).click()
    expect(cards).to_have_count(2)
    assert DOCS not in _budgets(server)

    page.get_by_role("button", name="New budget…").click()
    page.get_by_label("For", exact=True).fill("project:night")
    page.get_by_label("Amount").fill("5")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(toasts).to_contain_text("The budget of project:night is now $5 per day.")
    assert _budgets(server)["project:night usd/day"]["amount"] == 5

    # What the service refuses is said in its words; without the right to change, there is nothing to press.
    page.get_by_role("button", name="New budget…").click()
    page.get_by_label("For", exact=True).fill("project:night")
    page.get_by_label("Amount").fill("5")
    page.get_by_label("Per", exact=True).fill("a while")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("Not done:")
    reader = page.context.browser.new_page()  # type: ignore[union-attr]
    try:
        reader.goto(f"{server.url}/#/budgets")
        expect(reader.locator(".budget")).to_have_count(3)
        expect(reader.locator("#budgets-page button:visible")).to_have_count(0)
    finally:
        reader.close()


def test_V7_a_budget_returns_to_what_the_config_file_says(server: Server, open_page: Opened) -> None:
    server.configure('[budgets]\n"project:web" = { usd = 3, per = "day" }\n')
    try:
        server.http("POST", "/v1/budgets", selector="project:web", unit="usd", amount=1, per="day")
        page = open_page()
        page.evaluate("location.hash = '#/budgets'")
        web = page.locator(".budget", has_text="project:web")
        expect(web).to_contain_text("set at run time")
        web.get_by_role("button", name=f"Change {WEB}").click()
        page.get_by_role("button", name="Use the config file's value").click()
        expect(page.locator("#toasts")).to_contain_text(
            "The budget of project:web is $3 per day again, from the config file."
        )
        expect(web).to_contain_text("from the config file")
        page.locator(".toast", has_text="from the config file").get_by_role("button", name="Undo").click()
        wait_until("it is as before", lambda: _budgets(server)[WEB]["source"] == "run time")
    finally:
        server.configure("")


def test_V7_without_budgets_the_page_says_how_to_set_one(server: Server, open_page: Opened) -> None:
    page = open_page()
    page.evaluate("location.hash = '#/budgets'")
    expect(page.locator("#budgets-nothing")).to_contain_text("fleetgate budget set")
