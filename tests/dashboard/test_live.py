"""What happens at the gate is on the page at once, and goes on after the service was gone (rules D1, H2)."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from tests.dashboard.service import Server

Opened = Callable[[], Page]
SOON_MS = 10_000  # on an idle machine well within a second; CI is busy


def test_D1_a_grant_is_on_the_page_within_a_moment(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    (held,) = server.ask("umans/coder", "first agent")
    (waits,) = server.ask("umans/coder", "second agent")
    page = open_page()
    expect(page.locator("#queue-list tbody tr")).to_contain_text("second agent")
    server.release(held)
    expect(page.locator("#lease-list tbody tr")).to_contain_text("second agent", timeout=SOON_MS)
    expect(page.locator("#queue-list tbody tr")).to_have_count(0, timeout=SOON_MS)
    expect(page.locator("#events")).to_contain_text(waits)


def test_D1_a_pool_shows_its_slots_by_what_takes_them(server: Server, open_page: Opened) -> None:
    server.caps(umans=4)
    server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    card = page.locator(".pool", has_text="umans")
    expect(card.locator(".slot.used")).to_have_count(3)
    expect(card.locator(".slot.free")).to_have_count(1)
    expect(card.get_by_role("img", name="3 of 4 slots in use")).to_be_visible()
    server.ask("umans/coder", "agent {number}", 3)
    expect(card.locator(".slot.used")).to_have_count(4)
    expect(card).to_contain_text("2 waiting")


def test_D1_with_nothing_running_the_page_says_what_to_type(server: Server, open_page: Opened) -> None:
    page = open_page()
    expect(page.locator("#welcome")).to_contain_text("fleetgate run -m")
    server.ask("umans/coder", "first agent")
    expect(page.locator("#welcome")).to_be_hidden()
    expect(page.locator("#lease-list")).to_contain_text("first agent")


def test_D1_H2_the_stream_goes_on_after_the_service_was_killed(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "before the crash")
    page = open_page()
    server.kill()
    banner = page.locator("[data-key=cut-off]")
    expect(banner).to_contain_text("The service is not responding.")
    expect(page.locator("html")).to_have_attribute("data-stale", "true")
    expect(page.locator("#lease-list")).to_contain_text("before the crash")  # what was known stays
    (waits,) = server.ask("umans/coder", "while it was gone")

    server.start()
    expect(page.locator("#queue-list")).to_contain_text("while it was gone")
    expect(banner).to_have_count(0)
    expect(page.locator("#events")).to_contain_text(waits)  # told although nobody was there to tell
    server.tell(cmd.Cancel(waits))
    expect(page.locator("#queue-list tbody tr")).to_have_count(0)


def test_D1_a_page_that_finds_no_service_says_so_and_comes_alive(server: Server, open_page: Opened) -> None:
    page = open_page()
    page.route("**/v1/overview*", lambda route: route.fulfill(status=503, json={"error": "the store cannot be used"}))
    page.reload()
    expect(page.locator("#problem")).to_contain_text("the store cannot be used")
    page.unroute("**/v1/overview*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Live")


def test_D1_a_store_in_trouble_is_said_and_what_was_known_stays(server: Server, open_page: Opened) -> None:
    server.ask("umans/coder", "still here")
    page = open_page()
    expect(page.locator("#lease-list")).to_contain_text("still here")
    page.route("**/v1/overview*", lambda route: route.fulfill(status=503, json={"error": "the disk is full"}))
    server.ask("umans/coder", "not seen yet")
    expect(page.locator("[data-key=trouble]")).to_contain_text("the disk is full")
    expect(page.locator("#lease-list")).to_contain_text("still here")
    page.unroute("**/v1/overview*")
    expect(page.locator("#lease-list")).to_contain_text("not seen yet")
    expect(page.locator("[data-key=trouble]")).to_have_count(0)


def test_D1_commands_of_agents_are_text_and_nothing_else(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    server.ask("umans/coder", evil, 2, project="<b>bold</b>")
    (failed,) = server.ask("evil/model", evil)
    server.release(failed, outcome="overloaded", evidence=evil)
    page = open_page()
    expect(page.locator("#queue-list .command")).to_have_text(evil)
    expect(page.locator("#lease-list .command")).to_have_text(evil)
    expect(page.locator(".evidence")).to_contain_text("<img src=x")
    page.locator("#queue-list .command").click()
    expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(evil)
    assert page.locator("img, script:not([src]), b:has-text('bold')").count() == 0
    assert "owned" not in page.title()


def test_D1_H5_the_page_asks_nothing_of_any_other_machine(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.reload()
    expect(page.locator("#queue-list tbody tr")).to_have_count(2)
    assert asked
    assert [url for url in asked if not url.startswith(server.url)] == []
    assert refused == []  # nothing that the policy or the server refused


def test_D1_the_history_chart_tells_moments_by_key(server: Server, open_page: Opened) -> None:
    server.caps(umans=2)
    server.ask("umans/coder", "agent {number}", 5)
    page = open_page()
    page.get_by_label("Pool in the chart").select_option("requests umans")
    chart = page.get_by_role("slider", name="Time in the history")
    expect(page.locator("#chart .key.used")).to_contain_text("Running2")
    expect(page.locator("#chart .key.limit")).to_contain_text("Limit2")
    expect(page.locator("#chart .key.queued")).to_contain_text("Waiting3")
    chart.focus()
    chart.press("Home")
    assert chart.get_attribute("aria-valuenow") == "0"
