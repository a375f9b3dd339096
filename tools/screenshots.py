"""Pictures of the dashboard with a scripted fleet: python tools/screenshots.py FOLDER [SECONDS].

Needs Chromium. SECONDS is how much history to collect first (default 60).
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.dashboard import fleet, jobs, spending
from tests.dashboard.browser import launched
from tests.dashboard.service import Server

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"wide": (1440, 900), "tablet": (768, 1024), "phone": (390, 844), "small": (320, 700)}
PAGES = {
    "usage": ("#/usage?by=model&period=7d", "div.usage-list tbody tr"),
    "runs": ("#/usage?by=project&of=webshop", "section.usage-list tbody tr"),
    "budgets": ("#/budgets", ".budget"),
}


def main(folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home))
        try:
            live(server, seconds)
            with launched() as browser:
                for scheme in SCHEMES:
                    for name, (width, height) in SIZES.items():
                        fleet.beat(server)
                        page = browser.new_page(
                            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
                        )
                        page.goto(server.link())
                        page.wait_for_selector("html[data-phase=ready] #live[data-tone=live]")
                        page.wait_for_selector("#queue-list tbody tr")
                        page.wait_for_selector(".pool:nth-child(3) .spark svg")
                        page.screenshot(path=str(folder / f"{name}-{scheme}.png"))
                        page.screenshot(path=str(folder / f"{name}-{scheme}-full.png"), full_page=True)
                        page.get_by_role("button", name="Exact rounding in checkout", exact=True).last.click()
                        page.wait_for_selector(".output span")
                        page.screenshot(path=str(folder / f"{name}-{scheme}-job.png"))
                        page.keyboard.press("Escape")
                        for title, (address, shown) in PAGES.items():
                            page.evaluate("address => { location.hash = address; }", address)
                            page.locator(shown).first.wait_for()
                            page.screenshot(path=str(folder / f"{name}-{scheme}-{title}.png"), full_page=True)
                        page.close()
        finally:
            server.stop()


def live(server: Server, seconds: float) -> None:
    """The fleet arrives while other work comes and goes, so that ages differ and charts have something to show."""
    pick = random.Random(4)
    others = [
        ("gemini/flash", "docs", "requests"),
        (fleet.SONNET, "webshop", "agents"),
        (fleet.GPT, "search", "agents"),
    ]
    arriving = fleet.arrivals(server)
    held: list[str] = []
    began = time.monotonic()
    while (passed := (time.monotonic() - began) / seconds) < 1:
        fleet.beat(server)
        next(arriving, None)
        if len(held) < 2 + 6 * math.sin(passed * 7) ** 2:
            model, project, kind = pick.choice(others)
            held += server.ask(model, "summarise.py --inbox", project=project, kind=kind)
        elif held:
            server.release(held.pop(pick.randrange(len(held))))
        time.sleep(seconds / 60)
    for ident in held:
        server.release(ident)
    fleet.trouble(server)
    jobs.afternoon(server)
    spending.week(server)
    time.sleep(12)  # two more samples


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 60.0)
