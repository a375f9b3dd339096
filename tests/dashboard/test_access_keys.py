"""Signing in with an access key, what each role finds on the page, and the page of keys (rules E1 to E4)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from tests.dashboard.conftest import READY, new_context
from tests.dashboard.service import Server
from tests.dashboard.test_access import check_dark, check_widths, violations

CHANGES = "Cancel|Bump|Move|Pause|Change cap|New budget|Release|Stop"


@pytest.fixture
def server(server: Server) -> Iterator[Server]:
    yield server
    for key in server.http("GET", "/v1/keys")["keys"]:
        server.http("DELETE", f"/v1/keys/{key['name']}")


def create(server: Server, name: str, *options: str) -> str:
    return str(json.loads(server.run("key", "create", name, *options, "--json"))["key"])


def sign_in(page: Page, key: str) -> None:
    page.get_by_role("button", name="Sign in with a key…").click()
    page.get_by_label("Access key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def signed_in(context: BrowserContext, server: Server, key: str) -> Page:
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector(READY)
    sign_in(page, key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    return page


def changes(page: Page) -> int:
    """How many buttons that change something there are."""
    return page.get_by_role("button", name=re.compile(CHANGES)).count()


def test_e2_a_viewer_signs_in_and_finds_no_button_that_changes_something(
    server: Server, context: BrowserContext
) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 3)
    page = signed_in(context, server, create(server, "wall", "--role", "viewer"))
    banner = page.locator("[data-key=read-only]")
    expect(banner).to_contain_text("The key wall has the role viewer. Changes need the role operator or admin.")
    expect(page.locator("#queue-list tbody tr")).to_have_count(2)
    assert changes(page) == 0
    expect(page.locator("#keys-link")).to_be_hidden()
    page.evaluate("location.hash = '#/keys'")
    expect(page.locator("#keys-body")).to_contain_text("Access keys need the role admin; you have the role viewer.")
    expect(page.get_by_role("button", name="New key…")).to_be_hidden()
    page.evaluate("location.hash = '#/'")
    expect(page.locator("#signed-in")).to_have_text("Signed in with the key wall, viewer")
    page.reload()
    expect(page.locator("#signed-in")).to_have_text("Signed in with the key wall, viewer")
    page.get_by_role("button", name="Sign out").click()
    expect(banner).to_contain_text("sign in with a key")
    expect(page.locator("#signed-in")).to_have_text("")


def test_e2_an_operator_changes_caps_in_its_own_name_and_sees_no_keys(server: Server, context: BrowserContext) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 3)
    page = signed_in(context, server, create(server, "ops", "--role", "operator"))
    expect(page.locator("[data-key=read-only]")).to_have_count(0)
    expect(page.locator("#keys-link")).to_be_hidden()
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    page.get_by_role("dialog").get_by_label(re.compile("^Cap")).fill("2")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#event-list")).to_contain_text("(by key ops)")
    assert server.pool("umans")["cap"] == 2


def test_e2_an_admin_manages_keys_on_the_page(server: Server, context: BrowserContext, axe: str) -> None:
    page = signed_in(context, server, create(server, "root", "--role", "admin"))
    page.locator("#keys-link").click()
    expect(page.locator(".key-list tbody tr")).to_have_count(1)
    page.get_by_role("button", name="New key…").click()
    dialog = page.get_by_role("dialog")
    check_widths(page, 320)
    page.set_viewport_size({"width": 1440, "height": 900})
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_label("Project").fill("web")
    dialog.get_by_label("At once").fill("2")
    dialog.get_by_label("Dollars per day").fill("5")
    dialog.get_by_label("Valid for").fill("90d")
    page.get_by_role("button", name="Create").click()
    shown = dialog.get_by_label("The key")
    expect(shown).to_have_value(re.compile("^fgk_"))
    key = shown.input_value()
    check_widths(page, 320)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert key not in page.content()
    page.get_by_role("button", name="Done").click()
    expect(dialog).to_have_count(0)

    row = page.locator(".key-list tbody tr", has_text="ci")
    for words in ("agent", "for web", "0 of 2", "$0 of $5 per day", "in 8"):
        expect(row).to_contain_text(words)
    lease = server.http("POST", "/v1/leases", models=["umans/coder"])
    server.http("POST", f"/v1/leases/{lease['lease']}/release")
    assert violations(page, axe, "main") == []
    check_dark(page, axe, "main")
    check_widths(page, 320, 390, 768, 1440)

    row.get_by_role("button", name="Rotate ci").click()
    page.get_by_role("button", name="Rotate the key").click()
    expect(shown).to_have_value(re.compile("^fgk_"))
    assert shown.input_value() != key
    page.get_by_role("button", name="Done").click()
    row.get_by_role("button", name="Remove ci").click()
    expect(dialog).to_contain_text("This cannot be undone")
    page.get_by_role("button", name="Remove the key").click()
    expect(row).to_have_count(0)
    assert [each["by"] for each in server.http("GET", "/v1/history?types=key_removed")["events"]][-1] == "key root"


def test_w6_the_page_of_keys_has_the_part_of_each_key_and_the_fair_share_of_its_project(
    server: Server, open_page: Callable[[], Page], axe: str
) -> None:
    server.caps(umans=4)
    lead, helper = (Spec(("umans/coder",), "requests", project="web", access_key=name) for name in ("lead", "helper"))
    for name in ("lead", "helper"):
        create(server, name, "--project", "web")
    server.tell(*(cmd.Acquire(f"lead{number}", lead, process_identity.this_process()) for number in range(3)))
    server.tell(cmd.Acquire("helper1", helper, process_identity.this_process()))
    server.ask("umans/coder", "call", kind="requests", project="docs")
    page = open_page()
    page.evaluate("location.hash = '#/keys'")
    share = page.locator(".key-list tbody tr", has_text="lead").locator("td.share")
    expect(share).to_have_text("75 %, fair 50 %")
    expect(share).to_have_attribute("title", "umans (requests): 3 of the 4 slots in use, fair share 50 %")
    expect(page.locator(".key-list tbody tr", has_text="helper").locator("td.share")).to_have_text("25 %, fair 50 %")
    assert violations(page, axe, "main") == []
    check_widths(page, 320, 390, 768, 1440)


def test_e2_a_key_that_is_removed_signs_the_page_out(server: Server, context: BrowserContext) -> None:
    page = signed_in(context, server, create(server, "gone", "--role", "operator"))
    expect(page.locator("#signed-in")).to_contain_text("gone")
    server.http("DELETE", "/v1/keys/gone")
    expect(page.locator("[data-key=read-only]")).to_contain_text("sign in with a key")
    expect(page.locator("#signed-in")).to_have_text("")


def test_e2_a_wrong_key_signs_no_one_in_and_the_dialog_says_why(server: Server, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector(READY)
    sign_in(page, "fgk_wrong")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("this is not a valid access key")
    check_widths(page, 320)
    page.keyboard.press("Escape")
    expect(page.locator("[data-key=read-only]")).to_be_visible()


def test_e2_an_agents_key_sees_its_project_alone_and_cancels_its_own_requests(
    server: Server, context: BrowserContext, axe: str
) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "their agent", 2, project="docs")
    (mine,) = server.ask("umans/coder", "my agent", project="web")
    server.run("submit", "--project", "docs", "--", "echo", "theirs")
    server.run("submit", "--project", "web", "--name", "my job", "--", "echo", "mine")
    page = signed_in(context, server, create(server, "robot", "--project", "web"))
    expect(page.locator("[data-key=read-only]")).to_contain_text("The key robot has the role agent")
    expect(page.locator("#signed-in")).to_have_text("Signed in with the key robot, agent")
    rows = page.locator("#queue-list tbody tr")
    expect(rows).to_have_count(2)  # a job waits, too
    queue = rows.filter(has_text="my agent")
    expect(queue).to_have_count(1)
    expect(page.locator("#jobs")).to_contain_text("my job")
    known = ("#history-card", "#events", "#backoffs", "#keys-link", "[data-figure=limits]")
    for hidden in (*known, "#pages a[data-page=accounts]"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("body")).not_to_contain_text(re.compile("their agent|theirs"))
    assert "docs" not in page.locator("#main").inner_text()
    buttons = page.get_by_role("button", name=re.compile("Move|Pause|Change cap|New budget|Release|Bump"))
    expect(buttons.filter(visible=True)).to_have_count(0)
    assert violations(page, axe, "main") == []
    check_widths(page, 320, 390, 768, 1440)
    for address, text in (("#/projects", "web"), ("#/usage", "Usage"), ("#/budgets", "Budgets")):
        page.evaluate("to => { location.hash = to; }", address)
        expect(page.locator("#main")).to_contain_text(text)
        assert "docs" not in page.locator("#main").inner_text()
    page.evaluate("location.hash = '#/'")
    queue.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Cancel the ticket|Cancel it")).click()
    expect(queue).to_have_count(0)
    assert mine not in {each["id"] for each in server.http("GET", "/v1/tickets")["tickets"]}
    assert [each["by"] for each in server.http("GET", "/v1/history?types=cancelled")["events"]][-1] == "key robot"
    server.ask("umans/coder", "a later agent", project="web")
    expect(rows.filter(has_text="a later agent")).to_have_count(
        1
    )  # without a stream of events, it is read again and again
    page.get_by_role("button", name="Sign out").click()
    expect(rows.filter(has_text="their agent")).to_have_count(1)
    expect(page.locator("#events")).to_be_visible()


def test_e2_the_owner_manages_keys_too(server: Server, context: BrowserContext) -> None:
    create(server, "ci", "--project", "web")
    page = context.new_page()
    page.goto(server.link())
    page.wait_for_selector(READY)
    page.keyboard.press("k")
    expect(page.locator(".key-list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="ci").click()
    expect(page.locator("#usage-by")).to_have_value("key")


def test_the_names_of_all_pages_fit_on_a_phone_also_for_those_who_manage_keys(
    server: Server, context: BrowserContext
) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(server.link())
    page.wait_for_selector(READY)
    expect(page.locator("#keys-link")).to_be_visible()
    cut = """[...document.querySelectorAll(".pages a span:first-of-type")]
        .filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.textContent)"""
    assert page.evaluate(cut) == []


def test_e4_a_user_of_a_reverse_proxy_needs_no_sign_in(browser: Browser, server: Server) -> None:
    secret = server.home / "proxy-secret"
    secret.write_text("a-secret-of-the-reverse-proxy")
    secret.chmod(0o600)
    config = f"""[serve.trust_user_header]
header = "X-Forwarded-User"
from = ["127.0.0.1"]
secret_file = "{secret}"
users = {{ alice = "admin", carol = "viewer" }}
"""
    other = Server(server.home.parent / "behind", config)
    try:
        for user, banner in (("alice", 0), ("carol", 1)):
            context = new_context(browser)  # the browser sends what the reverse proxy would add
            context.set_extra_http_headers({"X-Forwarded-User": user, "X-Fleetgate-Proxy-Secret": secret.read_text()})
            page = context.new_page()
            page.goto(other.url)
            page.wait_for_selector(READY)
            expect(page.locator("#signed-in")).to_contain_text(f"Signed in as {user}")
            expect(page.locator("[data-key=read-only]")).to_have_count(banner)
            if not banner:
                page.keyboard.press("k")
                page.get_by_role("button", name="New key…").click()
                page.get_by_role("dialog").get_by_label("Name").fill("made")
                page.get_by_role("dialog").get_by_label("Project").fill("web")
                page.get_by_role("button", name="Create").click()
                expect(page.get_by_role("dialog").get_by_label("The key")).to_have_value(re.compile("^fgk_"))
            context.close()
        assert [each["by"] for each in other.http("GET", "/v1/history?types=key_set")["events"]] == ["user alice"]
    finally:
        other.stop()
