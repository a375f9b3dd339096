"""By keyboard, by screen reader, on a phone, in the dark (rule D1)."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.dashboard import fleet
from tests.dashboard.service import Server

Opened = Callable[[], Page]


def _focused(page: Page) -> str:
    script = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
    return str(page.evaluate(script))


def _tab_to(page: Page, name: str, most: int = 60) -> None:
    passed = []
    for _ in range(most):
        page.keyboard.press("Tab")
        passed.append(_focused(page))
        if passed[-1].startswith(name):
            return
    raise AssertionError(f"Tab never came to {name!r}, but to {passed}")


def test_D1_everything_can_be_done_by_keyboard(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 4)
    page = open_page()
    page.keyboard.press("Tab")
    assert _focused(page) == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

    # A cap: to the pool's button, change the number, Enter.
    _tab_to(page, "Change cap and cooldown of umans")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.name") == "cap"
    page.keyboard.press("Control+A")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("The cap of umans (requests) is now 2 (was 1). 1 agent started.")
    expect(page.get_by_role("dialog")).to_have_count(0)

    # The queue: one tab stop, arrows from row to row, Enter for all about it, Esc back to the row.
    page.keyboard.press("2")
    assert page.evaluate("document.activeElement.id") == "queue"
    rows = page.locator("#queue-list tbody tr")
    expect(rows).to_have_count(2)
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(rows.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("agent 4")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    # Bump it, then cancel it: the row's own buttons come after it.
    rows.nth(1).focus()
    _tab_to(page, "Move to the front: agent 4", 3)
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text(re.compile(r"Now at position 1 of \d+ for \S+: agent 4"))
    expect(rows.nth(0)).to_contain_text("agent 4")
    assert _focused(page).startswith("Move to the front: agent 4")  # the focus went with it
    _tab_to(page, "Cancel: agent 4", 2)
    page.keyboard.press("Enter")
    assert _focused(page) == "Keep it"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("Cancelled: agent 4")
    expect(rows).to_have_count(1)

    # Search, and the list of keys.
    page.keyboard.press("/")
    page.keyboard.type("nothing like that")
    expect(page.locator("#queue-list")).to_contain_text("No matches in the queue")
    page.keyboard.press("Escape")
    expect(rows).to_have_count(1)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_D1_the_focus_stays_while_the_queue_moves(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    held, *_ = server.ask("umans/coder", "agent {number}", 5)
    page = open_page()
    rows = page.locator("#queue-list tbody tr")
    expect(rows).to_have_count(4)
    rows.nth(2).focus()
    server.release(held)
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_be_focused()
    expect(rows.nth(1)).to_contain_text("agent 4")


def test_D1_axe_finds_nothing_serious(server: Server, open_page: Opened, axe: str) -> None:
    fleet.set_up(server)
    fleet.trouble(server)
    page = open_page()
    expect(page.locator(".trouble.warn").first).to_be_visible()
    assert violations(page, axe) == []
    check_dark(page, axe)
    page.locator("#queue-list .command").first.click()
    assert violations(page, axe, "dialog") == []
    check_dark(page, axe, "dialog")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    assert violations(page, axe, "dialog") == []
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Move to the front").first.click()
    expect(page.locator(".toast")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page, axe) == []
    check_dark(page, axe)


def violations(page: Page, axe: str, part: str = "html", *rules: str) -> list[str]:
    """By the browser's own door: the page's policy lets no script in."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"() => {{ {axe} }}")
    options = {"runOnly": list(rules)} if rules else {}
    found = page.evaluate("async ([part, options]) => (await axe.run(part, options)).violations", [part, options])
    return [
        f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def check_dark(page: Page, axe: str, part: str = "html") -> None:
    """In the dark only the colours are others."""
    page.emulate_media(color_scheme="dark")
    assert violations(page, axe, part, "color-contrast") == []
    page.emulate_media(color_scheme="light")


# The page must not depend on the fonts of a machine: wider letters, wider gaps, a larger size of all text.
FONTS = {
    "as installed": "",
    "monospaced": "* { font-family: monospace !important; }",
    "spaced": "* { letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }",
    "large": "html { font-size: 150%; }",
    "larger": "html { font-size: 200%; }",
    "very wide": "* { letter-spacing: 0.5em !important; }",
}
USE_STYLE = """style => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  document.adoptedStyleSheets = [sheet];
}"""
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll("dialog[open]")]
  .filter((node) => node.scrollWidth > node.clientWidth).map((node) => `${node.tagName} ${node.scrollWidth}`)"""


def check_widths(page: Page, *widths: int) -> None:
    """With all fonts on the narrowest screen, with the worst of them on the others."""
    for name, style in FONTS.items():
        page.evaluate(USE_STYLE, style)
        for width in widths:
            if width > 320 and name not in ("larger", "very wide"):
                continue
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate(TOO_WIDE) == [], (name, width)
    page.evaluate(USE_STYLE, "")


def test_D1_nothing_is_wider_than_the_screen_with_any_fonts(server: Server, open_page: Opened) -> None:
    fleet.set_up(server)
    fleet.trouble(server)
    page = open_page()
    expect(page.locator("#queue-list tbody tr")).to_have_count(25)
    check_widths(page, 320, 390, 768, 1181)
    expect(page.locator("#queue-list tbody tr")).to_have_count(25)


def test_D1_no_dialog_is_wider_than_a_phone_with_any_fonts(server: Server, open_page: Opened) -> None:
    server.caps(umans=1)
    server.ask("umans/coder", "agent {number}", 2)
    page = open_page()
    page.set_viewport_size({"width": 320, "height": 844})
    expect(page.locator("#queue-list thead")).to_be_hidden()
    page.locator("#queue-list .command").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Reason")
    check_widths(page, 320)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Change cap and cooldown of umans").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check_widths(page, 320)


def test_D1_the_page_of_the_api_is_not_wider_than_the_screen(server: Server, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/docs")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.set_viewport_size({"width": 320, "height": 844})
    assert page.evaluate(TOO_WIDE) == []
    page.evaluate(USE_STYLE, FONTS["larger"])
    assert page.evaluate(TOO_WIDE) == []


def test_D1_the_colours_are_chosen_and_remembered(server: Server, open_page: Opened) -> None:
    page = open_page()
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.get_by_role("button", name="Colours: system").click()
    assert page.evaluate(background) == light
    page.reload()
    assert page.evaluate(background) == light
    page.get_by_role("button", name="Colours: light").click()
    page.get_by_role("button", name="Colours: dark").click()
    expect(page.get_by_role("button", name="Colours: system")).to_be_visible()
