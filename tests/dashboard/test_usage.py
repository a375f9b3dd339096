"""The Usage page: its sums are the service's, rows open their runs, and any number of rows can be read (rule U4)."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.dashboard import spending
from tests.dashboard.fleet import OPUS
from tests.dashboard.service import Server
from tests.dashboard.test_access import check_dark, check_widths, violations

Opened = Callable[[], Page]


def _go(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = address; }", address)


def _row(page: Page, name: str) -> Locator:
    return page.locator("#usage-body .usage-list:visible tr", has_text=name)


def _exact(row: Locator) -> list[int]:
    """The numbers of a row in full, as the titles of its cells have them."""
    titles = [row.locator(f"td.{name}").get_attribute("title") or "" for name in ("calls", "input", "out")]
    return [int(title.replace(",", "")) for title in titles]


def _cost(row: Locator) -> float | None:
    title = row.locator("td.cost > span").first.get_attribute("title")
    return None if title is None else float(title.replace("$", "").replace(",", ""))


def test_U4_sums_are_those_of_the_service_and_a_row_opens_its_runs(server: Server, open_page: Opened) -> None:
    spending.hours_ago(server)
    run = spending.run_ended(server, OPUS, "drilled")
    page = open_page()
    _go(page, "#/usage?by=model&period=7d")
    expect(_row(page, OPUS)).to_be_visible()
    answer = server.http("GET", "/v1/usage?by=model&since=7d")
    for each in [*answer["rows"], {**answer["total"], "model": "Total"}]:
        row = _row(page, each["model"] or "no model")
        assert _exact(row) == [each["calls"], each["input"], each["output"]], each
        assert _cost(row) == each["cost_usd"], each
    expect(_row(page, "umans/coder").locator("td.cost")).to_contain_text("unknown")
    expect(_row(page, "Total").locator("td.cost")).to_contain_text(re.compile("≥ .*part unknown"))
    estimated = server.http("GET", "/v1/usage?by=model&since=7d")["total"]["estimated_calls"]
    expect(_row(page, "Total").locator("td.cost")).to_contain_text(f"{estimated} estimated")

    # Another dimension by the page's own control; then the runs of a row, which is an address of its own.
    page.get_by_label("Usage by").select_option("By project")
    expect(page).to_have_url(re.compile(r"by=project&period=7d$"))
    _row(page, "drilled").get_by_role("button", name="Show the runs of drilled").click()
    expect(page).to_have_url(re.compile(r"of=drilled$"))
    expect(_row(page, run)).to_contain_text("$0.25")
    expect(_row(page, run)).to_contain_text(OPUS)
    expect(page.locator("#usage-page .usage-figures")).to_contain_text("$0.25")

    # It is live, and the browser's Back leads to the table again.
    other = spending.run_ended(server, OPUS, "drilled", cost=500_000)
    expect(_row(page, other)).to_contain_text("$0.50")
    expect(page.locator("#usage-page .usage-figures")).to_contain_text("$0.75")
    page.go_back()
    expect(page.locator(".usage-trail")).to_be_hidden()
    expect(_row(page, "drilled").locator("td.cost")).to_contain_text("$0.75")


def test_U4_sixty_models_in_the_chart_the_table_and_on_every_screen(server: Server, open_page: Opened) -> None:
    models = [f"vendor{n % 9}/some-model-{n}-with-a-rather-long-name" for n in range(60)]
    spending.hours_ago(server, models, hours=range(1, 30))
    page = open_page()
    _go(page, "#/usage?by=model&show=tokens")
    expect(page.locator(".usage-legend li")).to_have_count(8)
    expect(page.locator(".usage-legend")).to_contain_text(re.compile(r"\d+ others"))
    expect(page.locator(".usage-list:visible tbody tr")).to_have_count(50)
    chart = page.get_by_role("slider", name="Usage over time")
    chart.focus()
    chart.press("End")
    chart.press("ArrowLeft")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d–\d\d:\d\d: .* tokens, "))
    page.get_by_text("The chart as a table").click()
    expect(page.locator(".usage-times tbody tr").nth(23)).to_be_visible()
    check_widths(page, 320, 390, 768, 1440)


def test_U4_axe_finds_nothing_serious_on_the_usage_page(server: Server, open_page: Opened, axe: str) -> None:
    spending.hours_ago(server)
    page = open_page()
    _go(page, "#/usage?by=model")
    expect(_row(page, OPUS)).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page, axe, "main") == []
    check_dark(page, axe, "main")


def test_U4_without_usage_the_page_says_where_it_comes_from(server: Server, open_page: Opened) -> None:
    page = open_page()
    nothing = {**server.http("GET", "/v1/usage?since=1h"), "rows": []}
    page.route("**/v1/usage*", lambda route: route.fulfill(json=nothing))
    _go(page, "#/usage")
    expect(page.locator("#usage-nothing")).to_contain_text("fleetgate run")
    page.route("**/v1/usage*", lambda route: route.fulfill(status=503, json={"error": "the store cannot be used"}))
    _go(page, "#/usage?period=7d")
    expect(page.locator("#usage-nothing")).to_contain_text("the store cannot be used")
    again = page.locator("#usage-nothing").get_by_role("button", name="Try again")
    with page.expect_request("**/v1/usage*"):
        again.click()
    page.unroute("**/v1/usage*")
    again.evaluate_all("all => all.forEach((each) => each.click())")  # it may be gone by now: the page tries, too
    expect(page.locator("#usage-nothing")).not_to_contain_text("the store cannot be used")
