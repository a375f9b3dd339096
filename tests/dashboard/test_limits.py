"""The limit of a pool on its page: what is believed, how that came about, and what would change it (rules D1, P4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Page, Route, expect

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from tests.dashboard.service import Server, wait_until
from tests.dashboard.test_access import check_widths, violations

Opened = Callable[[], Page]
PROVIDER = "learner"  # of no other test: the history outlives what a test leaves behind
ADDRESS = f"#/pools/{PROVIDER}?kind=requests"
EVIL = "<img src=x onerror=\"document.title='owned'\">"


def _go(page: Page, address: str = ADDRESS) -> None:
    page.evaluate("address => { location.hash = address; }", address)


def _learn(server: Server) -> None:
    """A limit that was found: one call was accepted, the next one refused."""
    server.tell(cmd.SetRule(Rule("requests", PROVIDER, cap=8, on_429="adapt", cooldown_ms=0, max_hold_ms=0)))
    first, second = server.ask(f"{PROVIDER}/coder", count=2)
    server.tell(cmd.Active(first))

    def has_started() -> bool:
        server.tell(cmd.Tick())
        return second in server.gate.read().leases

    wait_until("the second call", has_started)
    server.release(second, outcome="rate_limited")


def _history(points: int, refusals: int, **more: Any) -> dict[str, Any]:
    """An answer of the service about a long day."""
    end = datetime.now(UTC)

    def at(part: float) -> str:
        return (end - timedelta(hours=6) + timedelta(hours=6) * part).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    limits = [20 + number * 7 % 13 for number in range(points)]
    return {
        "pool": PROVIDER,
        "kind": "requests",
        "since": at(0),
        "until": at(1),
        "points": [
            {
                "at": at((number + 0.5) / points),
                "limit": limit,
                "proven": limit - number % 4,
                "refused": limit + 1 + number % 5,
            }
            for number, limit in enumerate(limits)
        ],
        "refusals": [
            {
                "at": at((number + 0.5) / refusals),
                "level": 20 + number * 5 % 17,
                "limit": 20,
                "why": "exact",
                "times": 1 + number % 3,
            }
            for number in range(refusals)
        ],
        **more,
    }


def _answer_with(page: Page, history: dict[str, Any]) -> None:
    def fulfil(route: Route) -> None:
        route.fulfill(json=history)

    page.route("**/v1/limits/history?*", fulfil)


def test_p4_the_page_of_a_pool_says_what_is_believed_and_draws_how_that_came_about(
    server: Server, open_page: Opened, axe: str
) -> None:
    _learn(server)
    page = open_page()
    _go(page)
    card = page.locator("#limit-card")
    expect(card).to_be_visible()
    expect(card.locator(".belief")).to_have_text(
        re.compile(
            r"^Believes 1 of 8; 1 accepted \d+ s ago, 2 refused \d+ s ago; "
            r"tries 2 at \d\d:\d\d if a call is waiting then\.$"
        )
    )
    expect(card.locator("circle.refusal")).to_have_count(1)
    expect(card.locator(".key.refusal")).to_contain_text("1")
    expect(card.locator(".key.limit")).to_contain_text("1")
    card.get_by_text("Why, and what would change it").click()
    expect(card.locator(".belief-details")).to_contain_text("Up: a call with 2 in flight is accepted.")
    expect(card.locator(".belief-details")).to_contain_text("2 were one more than it allows")
    card.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(card.locator(".key.when")).not_to_have_text("now")
    assert violations(page, axe) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, axe) == []


def test_p4_the_card_follows_the_pool_and_is_not_there_where_nothing_moves_the_limit(
    server: Server, open_page: Opened
) -> None:
    _learn(server)
    server.tell(cmd.SetRule(Rule("requests", "groq", cap=3, on_429="pause")))
    page = open_page()
    _go(page)
    expect(page.locator("#limit-card")).to_be_visible()
    _go(page, "#/pools/groq?kind=requests")
    expect(page.locator("#limit-card")).to_be_hidden()
    _go(page)
    expect(page.locator("#limit-card .belief")).to_contain_text("Believes 1 of 8")
    server.tell(cmd.SetRule(Rule("requests", PROVIDER, cap=12)))
    expect(page.locator("#limit-card .belief")).to_contain_text("Believes 12 of 12")


def test_p4_the_dialog_of_a_pool_says_what_is_believed(server: Server, open_page: Opened) -> None:
    _learn(server)
    page = open_page()
    _go(page)
    page.locator("#pool-head").get_by_role("button", name=re.compile("cap", re.IGNORECASE)).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".belief")).to_contain_text("Believes 1 of 8; 1 accepted ")
    dialog.get_by_text("Why, and what would change it").click()
    expect(dialog).to_contain_text("Back to 8: a person sets the cap again")
    page.set_viewport_size({"width": 320, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_D1_an_empty_and_a_crowded_history_fit_every_screen(server: Server, open_page: Opened) -> None:
    _learn(server)
    page = open_page()
    _answer_with(page, _history(0, 0))
    _go(page)
    card = page.locator("#limit-card")
    expect(card).to_contain_text("No rate limit and no other limit in this time.")
    check_widths(page, 320, 1440)
    page.unroute_all()
    _answer_with(page, _history(400, 400))
    card.get_by_role("button", name="24 h").click()
    card.get_by_role("button", name="6 h").click()
    expect(card.locator("circle.refusal")).to_have_count(400)
    expect(card.locator(".key.refusal")).to_contain_text("799")
    check_widths(page, 320, 390, 1440)


def test_D1_what_the_service_says_is_shown_as_text(server: Server, open_page: Opened) -> None:
    _learn(server)
    page = open_page()
    history = _history(3, 1)
    history["refusals"][0]["why"] = EVIL
    _answer_with(page, history)
    _go(page)
    expect(page.locator("#limit-card .key.limit")).to_contain_text("21")  # the last of three points
    expect(page.locator("#limit-card circle.refusal")).to_have_count(1)
    page.locator("#limit-card").get_by_role("slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#limit-card .key.refusal")).to_contain_text(EVIL)
    assert page.title() != "owned"


def test_p4_every_verdict_on_a_refusal_has_words_and_an_unknown_one_is_named(server: Server, open_page: Opened) -> None:
    _learn(server)
    page = open_page()
    words = {"again": "one too many again", "omen": "verdict omen"}
    history = _history(3, len(words))
    for refusal, why in zip(history["refusals"], words, strict=True):
        refusal["why"] = why
    history["points"] = []
    _answer_with(page, history)
    _go(page)
    card = page.locator("#limit-card")
    expect(card.locator("circle.refusal")).to_have_count(len(words))
    card.get_by_role("slider").focus()
    for key, said in zip(("Home", "ArrowRight"), words.values(), strict=True):
        page.keyboard.press(key)
        expect(card.locator(".key.refusal")).to_contain_text(said)
