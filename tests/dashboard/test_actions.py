"""What a person does on the page happens at the gate, and the page says so (rule D1)."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.dashboard.service import Server, wait_until

Opened = Callable[[], Page]


def _queue(server: Server) -> list[str]:
    return [ticket["id"] for ticket in server.http("GET", "/v1/tickets")["tickets"]]


def _said(page: Page, words: str) -> None:
    expect(page.locator("#toasts .toast").last).to_contain_text(words)
    expect(page.locator("#say")).to_contain_text(words)


def test_D1_cancel_asks_first_then_takes_the_ticket_out_of_the_queue(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    _, first, second = server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    row = page.locator("#queue-list tbody tr", has_text="agent 2")
    row.get_by_role("button", name="Cancel: agent 2").click()
    page.get_by_role("button", name="Keep it").click()
    assert _queue(server) == [first, second]

    row.get_by_role("button", name="Cancel: agent 2").click()
    page.get_by_role("button", name="Cancel the ticket").click()
    _said(page, "Cancelled: agent 2")
    expect(row).to_have_count(0)
    assert _queue(server) == [second]


def test_D1_bump_moves_to_the_front_and_undo_moves_back(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    _, first, second = server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    page.get_by_role("button", name="Move to the front: agent 3").click()
    _said(page, "Now at position 1 of 2 for umans: agent 3")
    assert _queue(server) == [second, first]
    expect(page.locator("#queue-list tbody tr").first).to_contain_text("agent 3")

    page.get_by_role("button", name="Undo").click()
    _said(page, "Priority 0, position 2")
    assert _queue(server) == [first, second]


def test_D1_a_priority_is_set_in_the_details_of_a_ticket(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    _, first, second = server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    page.get_by_role("button", name="agent 3", exact=True).click()
    page.get_by_label("Priority").fill("50")
    page.get_by_role("button", name="Set priority").click()
    _said(page, "Priority 50, position 1")
    assert _queue(server) == [second, first]


def test_W5_a_reserve_is_set_in_the_dialog_of_a_pool_and_can_be_undone(server: Server, open_page: Opened) -> None:
    server.caps(umans=4)
    page = open_page()
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    page.get_by_label("Reserve: slots kept for interactive work").fill("2")
    page.get_by_role("button", name="Save", exact=True).click()
    _said(page, "The cap of umans (requests) is now 4, 2 of it kept for interactive work (was 4).")
    assert (server.pool("umans")["cap"], server.pool("umans")["kept"]) == (4, 2)
    page.locator(".toast", has_text="The cap of").get_by_role("button", name="Undo").click()
    _said(page, "Undone: the cap of umans (requests) is 4 again.")
    assert server.pool("umans")["kept"] == 0


def test_D1_cap_and_cooldown_are_set_and_the_cap_can_be_undone(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 2)
    page = open_page()
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    page.get_by_label("Cap: maximum slots in use at once").fill("5")
    page.get_by_label("Cooldown in milliseconds").fill("1500")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("The cap of umans (requests) is now 5 (was 1). 1 agent started.")
    expect(page.locator("#toasts")).to_contain_text("is now 1.5 s (was 350 ms)")
    assert (server.pool("umans")["cap"], server.pool("umans")["cooldown_ms"]) == (5, 1500)

    page.locator(".toast", has_text="The cap of").get_by_role("button", name="Undo").click()
    _said(page, "Undone: the cap of umans (requests) is 1 again.")
    assert server.pool("umans")["cap"] == 1


def test_D1_a_bad_cap_is_not_sent(server: Server, open_page: Opened) -> None:
    server.caps(umans=2)
    page = open_page()
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    page.get_by_label("Cap: maximum slots in use at once").fill("0")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert server.pool("umans")["cap"] == 2


def test_D1_a_cap_is_removed_after_a_question_and_comes_back_by_undo(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 3)
    page = open_page()
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    page.get_by_role("button", name="Remove the cap…").click()
    page.get_by_role("button", name="Remove the cap", exact=True).click()
    _said(page, "umans (requests) is now unlimited (its cap was 1). 2 agents started.")
    assert _queue(server) == []
    page.get_by_role("button", name="Undo").click()
    _said(page, "is 1 again")
    assert server.pool("umans")["cap"] == 1


def test_D1_pause_and_resume_say_what_they_did(server: Server, open_page: Opened) -> None:
    server.caps(umans=2)
    page = open_page()
    page.get_by_role("button", name="Pause umans").click()
    page.get_by_label("15 minutes").check()
    page.get_by_role("button", name="Pause", exact=True).click()
    _said(page, "Paused umans (requests) for 15 min: no new agents start.")
    assert server.pool("umans")["paused"]
    card = page.locator(".pool", has_text="umans")
    expect(card).to_contain_text("paused, resumes in 14 min")

    card.get_by_role("button", name="Resume umans").click()
    _said(page, "Resumed umans (requests).")
    expect(card).to_contain_text("idle")
    assert not server.pool("umans")["paused"]
    page.locator(".toast", has_text="Resumed").get_by_role("button", name="Undo").click()
    wait_until("paused again", lambda: server.pool("umans")["paused"])


def test_D1_a_reduction_needs_attention_until_it_is_restored(server: Server, open_page: Opened) -> None:
    server.caps(umans=4)
    page = open_page()
    banner = page.locator(".trouble.warn", has_text="was reduced")
    expect(banner).to_have_count(0)
    server.http("POST", "/v1/report", target="umans", kind="requests", retry_after_s=1)
    expect(banner).to_contain_text("umans (requests) was reduced to 3 after a rate limit. Its cap is 4")
    banner.get_by_role("button", name="Restore 4 as the limit of umans").click()
    _said(page, "Restored: the limit of umans (requests) is 4 again.")
    expect(banner).to_have_count(0)
    assert server.pool("umans")["limit"] == 4


def test_D1_a_backoff_is_cleared_and_comes_back_by_undo(server: Server, open_page: Opened) -> None:
    server.http("PUT", "/v1/backoffs", key="umans/coder", reason="rate_limited", for_s=600)
    page = open_page()
    expect(page.locator(".backoff")).to_contain_text("9 min")
    page.get_by_role("button", name="Clear the backoff of umans/coder").click()
    page.get_by_role("button", name="Clear the backoff", exact=True).click()
    _said(page, "Cleared the backoff of umans/coder.")
    assert server.http("GET", "/v1/status")["backoffs"] == []
    page.get_by_role("button", name="Undo").click()
    wait_until("backed off again", lambda: server.http("GET", "/v1/status")["backoffs"])


def test_D1_a_lease_is_taken_back_after_a_question(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    (held,) = server.ask("umans/coder", "agent 1")
    page = open_page()
    page.get_by_role("button", name="Free the slot: agent 1").click()
    page.get_by_role("button", name="Free the slot", exact=True).click()
    _said(page, "Freed: agent 1")
    assert server.http("GET", "/v1/leases")["leases"] == []
    assert held in server.run("history", "--type", "reclaimed")


def test_D1_a_refusal_is_said_in_the_services_own_words(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 2)
    page = open_page()
    page.route("**/v1/tickets/*/bump", lambda route: route.fulfill(status=409, json={"error": "it has a slot already"}))
    page.get_by_role("button", name="Move to the front: agent 2").click()
    expect(page.locator(".toast.bad")).to_contain_text("Not done: it has a slot already.")
    expect(page.locator("#say-now")).to_contain_text("Not done")


def test_D1_H5_without_the_token_the_page_only_looks(
    server: Server, context: BrowserContext, open_page: Opened
) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 2)
    signed_in = open_page()
    reader = context.new_page()
    reader.goto(server.url)
    expect(reader.locator(".banner.info")).to_contain_text("fleetgate open")
    expect(reader.locator("#queue-list tbody tr")).to_have_count(1)
    expect(reader.locator("#queue-list tbody td.do button:visible")).to_have_count(0)
    expect(reader.locator(".pool-actions button:visible")).to_have_count(0)
    expect(signed_in.locator("#queue-list tbody td.do button:visible")).to_have_count(2)
