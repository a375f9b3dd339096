"""The pages by their address, and the fleet's page with many pools (rule D1)."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.dashboard import jobs
from tests.dashboard.service import Server
from tests.dashboard.test_access import check_widths

Opened = Callable[[], Page]


def test_D1_a_job_and_a_page_have_an_address(server: Server, open_page: Opened) -> None:
    jobs.forget(server)
    ident = jobs.submit(server, "true", name="nightly")
    page = open_page()
    page.evaluate("id => { location.hash = `#/jobs/${id}`; }", ident)
    expect(page.get_by_role("dialog")).to_contain_text(f"Job {ident}")
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"#/$"))
    page.locator("#job-list").get_by_role("button", name="nightly", exact=True).click()
    expect(page).to_have_url(re.compile(f"#/jobs/{ident}$"))
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text(f"Job {ident}")
    page.keyboard.press("Escape")

    page.evaluate("location.hash = '#/jobs/nosuch'")
    expect(page.locator(".toast.bad")).to_contain_text("nosuch")

    # On a phone, too, every page and every section can be reached.
    page.set_viewport_size({"width": 390, "height": 844})
    pages = page.get_by_role("navigation", name="Pages")
    pages.get_by_role("link", name="Usage").click()
    expect(page.locator("#usage-page")).to_be_visible()
    expect(page.locator("#fleet-page")).to_be_hidden()
    pages.get_by_role("link", name="Fleet").click()
    page.get_by_label("Go to section").select_option("Events")
    expect(page.locator("#events")).to_be_focused()
    expect(page.locator("#events")).to_be_in_viewport()


def test_D1_many_pools_are_a_table_by_provider_and_idle_ones_stand_below_the_queue(
    server: Server, open_page: Opened
) -> None:
    rules = [Rule("requests", f"vendor{n % 5}/model-{n}", cap=1 + n, on_429="step") for n in range(20)]
    server.tell(*(cmd.SetRule(rule) for rule in rules))
    server.ask("vendor0/model-0", "agent {number}", 3)
    server.ask("vendor3/model-3", "another agent")
    page = open_page()
    upper = page.locator("#pool-list tbody tr:not(.group)")
    lower = page.locator("#idle-list tbody tr:not(.group)", has_text="vendor")  # the pool of the host may be there, too
    expect(upper).to_have_count(2)
    assert lower.count() < 18
    page.get_by_role("button", name="Show all 19 pools").click()
    expect(lower).to_have_count(18)
    expect(page.locator("#idle-list .group", has_text="vendor")).to_have_count(5)
    expect(upper.first).to_contain_text("1 / 1")
    queue, idle = page.locator("#queue").bounding_box(), page.locator("#idle").bounding_box()
    assert queue is not None
    assert idle is not None
    assert queue["y"] < idle["y"]
    check_widths(page, 320, 768)
    page.set_viewport_size({"width": 1440, "height": 900})

    page.get_by_label("Filter pools").fill("vendor3 requests")
    expect(page.locator("#pools-count")).to_have_text(re.compile("^4 of "))
    expect(upper).to_have_count(1)
    page.get_by_label("Filter pools").fill("no such pool")
    expect(page.locator("#pool-list")).to_contain_text("No matching pools")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Cards").click()
    expect(page.locator("#pool-cards .pool")).to_have_count(2)
    page.locator("#idle-cards .pool", has_text="vendor4/model-9").get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#pool-cards .pool").first).to_contain_text(
        "paused until resumed"
    )  # trouble is above the queue
