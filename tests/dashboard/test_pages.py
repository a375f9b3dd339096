"""The pages by their address: one pool, one project, events, jobs, leases; and the fleet with many pools (rule D1)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.dashboard import crowd, jobs, spending
from tests.dashboard.conftest import READY
from tests.dashboard.fleet import OPUS
from tests.dashboard.service import FLEETGATE, Server, wait_until
from tests.dashboard.test_access import check_widths, violations

Opened = Callable[[], Page]
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(autouse=True)
def _without_jobs(server: Server) -> None:
    jobs.forget(server)


def _go(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = address; }", address)


def test_D1_a_job_and_a_page_have_an_address(server: Server, open_page: Opened) -> None:
    ident = jobs.submit(server, "true", name="nightly")
    page = open_page()
    _go(page, f"#/jobs/{ident}")
    expect(page.get_by_role("dialog")).to_contain_text(f"Job {ident}")
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"#/$"))
    page.locator("#job-list").get_by_role("button", name="nightly", exact=True).click()
    expect(page).to_have_url(re.compile(f"#/jobs/{ident}$"))
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text(f"Job {ident}")
    page.keyboard.press("Escape")

    _go(page, "#/jobs/nosuch")
    expect(page.locator(".toast.bad")).to_contain_text("nosuch")

    # On a phone, too, every page and every section can be reached, also while a message is shown.
    page.set_viewport_size({"width": 390, "height": 844})
    pages = page.get_by_role("navigation", name="Pages")
    for name in ("Usage", "Projects", "Events", "Budgets"):
        pages.get_by_role("link", name=name).click()
        expect(page.locator(f"#{name.lower()}-page")).to_be_visible()
        expect(pages.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    expect(page.locator("#fleet-page")).to_be_hidden()
    page.go_back()
    expect(page.locator("#events-page")).to_be_visible()
    pages.get_by_role("link", name="Fleet").click()
    page.get_by_label("Go to section").select_option("Events")
    expect(page.locator("#events")).to_be_focused()
    expect(page.locator("#events")).to_be_in_viewport()


def test_D1_leases_and_tickets_have_an_address_which_leads_on_when_they_are_over(
    server: Server, open_page: Opened
) -> None:
    server.caps(umans=1)
    held, waits = server.ask("umans/coder", "agent {number}", 2, project="web")
    page = open_page()
    _go(page, f"#/leases/{held}")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Lease {held}")
    dialog.get_by_role("link", name="umans", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/pools/umans\?kind=requests$"))
    expect(dialog).to_have_count(0)
    _go(page, f"#/tickets/{waits}")
    expect(dialog).to_contain_text(f"Ticket {waits}, position 1 of 1 for umans")
    page.go_back()
    expect(dialog).to_have_count(0)
    server.release(held)
    wait_until("it has the slot", lambda: waits in server.gate.read().leases)
    _go(page, f"#/tickets/{waits}")
    expect(dialog).to_contain_text(f"Lease {waits}")
    dialog.get_by_role("link", name="web", exact=True).click()
    expect(page.locator("#projects-title")).to_have_text("web")
    _go(page, f"#/leases/{held}")  # it is over
    expect(page.locator("#toasts")).to_contain_text(f"{held} is neither waiting nor running. These are its events.")
    expect(page.locator(".found .event").first).to_contain_text(held)


def test_D1_a_pool_has_a_page_with_its_history_its_agents_and_its_queue(
    server: Server, open_page: Opened, axe: str
) -> None:
    server.caps(umans=1, acme=1)
    server.ask("umans/coder", "runs here")
    server.ask("umans/coder", "waits here {number}", 2)
    server.ask("acme/big", "somewhere else {number}", 2)
    page = open_page()
    page.locator(".pool", has_text="umans").get_by_role("link", name="umans").click()
    expect(page.locator("#pool-title")).to_have_text("umans")
    expect(page.locator("#pool-running tbody tr")).to_have_count(1)
    expect(page.locator("#pool-running")).to_contain_text("runs here")
    expect(page.locator("#pool-waiting tbody tr")).to_have_count(2)
    expect(page.locator("#pool-waiting")).not_to_contain_text("somewhere else")
    expect(page.locator("#pool-chart .key.limit")).to_contain_text("Limit1")
    expect(page.locator("#pool-summary")).to_contain_text("1/ 1 in usefull")
    page.get_by_role("button", name="Pause umans").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#pool-summary")).to_contain_text("paused until resumed")
    expect(page.locator("#trouble-badge")).to_have_text("1")
    assert violations(page, axe, "main") == []
    check_widths(page, 320, 768)
    _go(page, "#/pools/nosuch")
    expect(page.locator("#pool-summary")).to_contain_text("There is no such pool")
    _go(page, "#/")
    expect(page.locator("#overview #history-card")).to_be_visible()
    expect(page.get_by_label("Pool in the chart")).to_have_value("")


def test_D1_a_project_has_a_page_and_names_are_text(server: Server, open_page: Opened, axe: str) -> None:
    server.caps(umans=1)
    server.http("POST", "/v1/budgets", selector="project:shop", unit="usd", amount=2, per="day")
    server.ask("umans/coder", "runs", project="shop")
    server.ask("umans/coder", "waits", project="shop")
    server.ask("umans/coder", "other", project=EVIL)
    jobs.submit(server, "true", name="a job of shop", project="shop")
    spending.run_ended(server, OPUS, "shop")
    page = open_page()
    page.get_by_role("link", name="Projects").click()
    row = page.locator(".project-list tbody tr", has_text="shop")
    expect(row).to_contain_text("$0.25")
    expect(row.locator("td.waiting")).to_have_text("2")  # the job waits, too
    expect(page.locator(".project-list tbody tr", has_text=EVIL)).to_be_visible()
    row.get_by_role("link", name="shop").click()
    expect(page).to_have_url(re.compile("#/projects/shop$"))
    body = page.locator("#projects-body")
    expect(body.locator("table.leases tbody tr")).to_have_count(1)
    expect(body.locator("table.tickets tbody tr")).to_have_count(2)
    expect(body.locator("table.jobs")).to_contain_text("a job of shop")
    expect(body.locator(".project-budgets")).to_contain_text("project:shop usd/day")
    expect(body.locator(".project-figures")).to_contain_text("$0.25")
    expect(body).not_to_contain_text("other")
    assert violations(page, axe, "main") == []
    check_widths(page, 320)
    _go(page, f"#/projects/{quote(EVIL, safe='')}")
    expect(page.locator("#projects-title")).to_have_text(EVIL)
    _go(page, "#/projects")
    check_widths(page, 320, 768)
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()


def test_D1_events_are_searched_by_time_type_and_name(server: Server, open_page: Opened, axe: str) -> None:
    server.caps(umans=1)
    held, waits = server.ask("umans/coder", f"{EVIL} {{number}}", 2, project="searched-project")
    server.http("POST", "/v1/pause", target="umans", kind="requests")
    page = open_page()
    page.get_by_role("link", name="Search all events").click()
    found = page.locator(".found .event")
    expect(found.first).to_contain_text("umans (requests) is paused")
    page.get_by_label("Search events").fill(f"searched-project {waits}")
    expect(found).to_have_count(1)
    expect(page).to_have_url(re.compile(r"#/events\?text=searched-project"))
    page.get_by_label("Search events").fill("searched-project")
    page.get_by_label("Type of event").select_option("granted")
    expect(found).to_have_count(1)
    expect(found).to_contain_text(held)
    page.locator("#event-span").select_option("Last hour")
    expect(page).to_have_url(re.compile("type=granted&since=1h"))
    expect(found).to_have_count(1)
    found.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("granted")
    dialog.get_by_role("link", name=held, exact=True).click()
    expect(dialog).to_contain_text(f"Lease {held}")
    page.keyboard.press("Escape")

    _go(page, "#/events?since=2001-01-01T00:00&until=2001-01-02T00:00")
    expect(page.locator("#event-from")).to_have_value("2001-01-01T00:00")
    expect(page.locator("#event-found")).to_contain_text("No matching events")
    assert violations(page, axe, "main") == []
    check_widths(page, 320)
    _go(page, "#/events?type=nosuch")
    expect(page.locator("#event-found")).to_contain_text("cannot be searched")
    _go(page, "#/events")
    expect(found.nth(3)).to_be_visible()
    check_widths(page, 320, 768)
    assert page.locator("img").count() == 0


def test_D1_a_running_agent_shows_its_output_and_is_stopped(server: Server, open_page: Opened) -> None:
    page = open_page()
    agent = subprocess.Popen(
        [FLEETGATE, "run", "--log", "--name", "review", "--", "sh", "-c", "echo hello from the run; sleep 600"],
        env=server.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        row = page.locator("#lease-list tbody tr")
        expect(row).to_contain_text("review: sh -c echo hello")
        row.get_by_role("link", name="output: review").press("Enter")  # the page is still moving
        expect(page.get_by_role("log", name="Output")).to_contain_text("hello from the run")
        page.keyboard.press("Escape")
        row.get_by_role("button", name="Stop: review").click()
        page.get_by_role("button", name="Cancel", exact=True).click()
        assert agent.poll() is None
        row.get_by_role("button", name="Stop: review").click()
        page.get_by_role("button", name="Stop the agent", exact=True).click()
        expect(page.locator("#toasts")).to_contain_text("Stopping: review")
        agent.wait(60)
        expect(row).to_have_count(0)
    finally:
        agent.kill()
        agent.wait()


def test_D1_the_lease_of_a_job_leads_to_the_job_and_stops_it(server: Server, open_page: Opened) -> None:
    ident = jobs.submit(server, "sh", "-c", "echo hello from the job; sleep 600", name="endless")
    page = open_page()
    with jobs.worker(server):
        row = page.locator("#lease-list tbody tr")
        expect(row).to_contain_text("endless")
        row.get_by_role("link", name="job, output: endless").click()
        expect(page).to_have_url(re.compile(f"#/jobs/{ident}$"))
        expect(page.get_by_role("log", name="Output")).to_contain_text("hello from the job")
        page.keyboard.press("Escape")
        row.get_by_role("button", name="Stop: endless").click()
        page.get_by_role("button", name="Stop the agent", exact=True).click()
        expect(row).to_have_count(0)
        wait_until("it is over", lambda: server.http("GET", f"/v1/jobs/{ident}")["state"] == "cancelled")


def test_D1_many_pools_are_a_table_by_provider_and_idle_ones_stand_below_the_queue(
    server: Server, open_page: Opened
) -> None:
    rules = [Rule("requests", f"vendor{n % 5}/model-{n}", cap=1 + n, on_429="step") for n in range(20)]
    server.tell(*(cmd.SetRule(rule) for rule in rules))
    server.ask("vendor0/model-0", "agent {number}", 3)
    server.ask("vendor3/model-3", "another agent")
    page = open_page()
    # The pool of the host is in one of the two.
    upper = page.locator("#pool-list tbody tr:not(.group)", has_text="vendor")
    lower = page.locator("#idle-list tbody tr:not(.group)", has_text="vendor")
    expect(upper).to_have_count(2)
    assert lower.count() < 18
    page.locator("#idle").get_by_role("button", name="Show all").click()
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
    expect(page.locator("#pool-cards .pool", has_text="vendor")).to_have_count(2)
    page.locator("#idle-cards .pool", has_text="vendor4/model-9").get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    # Trouble is above the queue, and above everything.
    expect(page.locator("#pool-cards .pool").first).to_contain_text("paused until resumed")
    expect(page.locator(".trouble")).to_contain_text("vendor4/model-9 (requests) is paused by a person")
    _forget_choices(page)


def _forget_choices(page: Page) -> None:
    page.evaluate("localStorage.clear()")
    page.reload()
    page.wait_for_selector(READY)


def test_D1_the_queue_stands_above_pools_that_are_all_idle(server: Server, open_page: Opened) -> None:
    crowd.gather(server, 0, 3)  # they wait for a model, not for a pool
    page = open_page()
    page.evaluate("() => { const real = Date.now; Date.now = () => real() + 120_000; }")  # idle for a while
    expect(page.locator("#queue-list tbody tr")).to_have_count(3)
    expect(page.locator("#pools")).to_be_hidden()
    expect(page.locator("#idle")).to_contain_text("host:")
    page.reload()
    page.wait_for_selector(READY)
    expect(page.locator("#idle")).to_contain_text("host:")


def test_D1_sixty_pools_and_six_hundred_waiting_are_grouped_sorted_and_drawn_at_once(
    server: Server, open_page: Opened
) -> None:
    crowd.gather(server, 60, 600)
    page = open_page()
    expect(page.locator("#queue-count")).to_have_text("600")
    expect(page.locator("#queue-list tbody tr")).to_have_count(25)
    expect(page.locator("#queue-list td.pos").nth(3)).to_contain_text(re.compile(r"^\d+ of \d+ for \S+"))
    expect(page.locator(".trouble")).to_have_count(4)
    expect(page.locator(".trouble").first).to_contain_text("anthropic@spare was refused by its provider")
    page.get_by_role("button", name="Show all", exact=False).first.click()
    assert page.locator(".trouble").count() > 5

    heads = page.locator("#pool-list .group")
    page.get_by_label("Group pools").select_option("By account")
    expect(heads.filter(has_text="@work").first).to_be_visible()
    page.get_by_label("Group pools").select_option("By model")
    expect(heads.filter(has_text="coder-").first).to_be_visible()
    page.get_by_label("Group pools").select_option("No groups")
    expect(heads).to_have_count(0)
    names = page.locator("#pool-list td.name .pool-name")
    for head, wanted in (("Pool", "ascending"), ("Waiting", "descending"), ("In use", "descending")):
        page.locator("#pool-list").get_by_role("button", name=head, exact=True).click()
        column = page.locator("#pool-list").get_by_role("columnheader", name=head, exact=True)
        expect(column).to_have_attribute("aria-sort", wanted)
        if head == "Pool":
            shown = names.all_inner_texts()
            assert shown == sorted(shown)
    page.reload()  # the browser remembers the choice
    page.wait_for_selector(READY)
    expect(page.get_by_label("Sort pools")).to_have_value("use")
    expect(heads).to_have_count(0)
    expect(page.locator("#pool-list td.use").first).to_be_visible()

    # An update of everything takes no longer than a frame or two: rows that stay are not drawn again.
    page.locator("#pool-list").get_by_role("button", name="Show all", exact=False).click()
    kept = page.evaluate_handle("document.querySelector('#pool-list tbody tr:nth-child(5)')")
    server.release(next(iter(server.gate.read().leases)))
    expect(page.locator("#queue-count")).to_have_text("599")
    assert page.evaluate("row => row.isConnected", kept)
    check_widths(page, 320)
    _forget_choices(page)


def test_D1_back_closes_a_dialog_and_then_leads_to_the_page_before(server: Server, open_page: Opened) -> None:
    ident = jobs.submit(server, "true", name="nightly")
    page = open_page()
    dialog = page.get_by_role("dialog")
    pages = page.get_by_role("navigation", name="Pages")
    pages.get_by_role("link", name="Usage").click()
    pages.get_by_role("link", name="Fleet").click()
    expect(page.locator("#fleet-page")).to_be_visible()

    def show_keys() -> None:
        page.keyboard.press("?")
        expect(dialog).to_be_visible()

    # One without an address.
    show_keys()
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page.locator("#fleet-page")).to_be_visible()
    page.go_forward()
    expect(dialog).to_have_count(0)

    # One with an address.
    page.locator("#job-list").get_by_role("button", name="nightly", exact=True).click()
    expect(page).to_have_url(re.compile(f"#/jobs/{ident}$"))
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"#/$"))
    page.go_forward()
    expect(dialog).to_contain_text(f"Job {ident}")
    page.go_back()
    expect(dialog).to_have_count(0)

    # Those that are closed otherwise leave nothing behind that Back would have to pass.
    for _ in range(3):
        show_keys()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    page.locator("#job-list").get_by_role("button", name="nightly", exact=True).click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.evaluate("history.back()")  # two steps of the history: `go_back` would wait for one only
    expect(page.locator("#usage-page")).to_be_visible()
    expect(page.locator("#fleet-page")).to_be_hidden()


def test_D1_back_leaves_a_question_that_a_dialog_led_to(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    (held,) = server.ask("umans/coder", "agent")
    page = open_page()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Events").click()
    _go(page, f"#/leases/{held}")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Lease {held}")
    dialog.get_by_role("button", name="Free the slot").click()
    expect(dialog).to_contain_text("Cancel")
    page.go_back()
    expect(dialog).to_have_count(0)
    assert held in server.gate.read().leases
    page.go_back()
    expect(page.locator("#events-page")).to_be_visible()
