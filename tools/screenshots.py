"""Pictures of the dashboard: python tools/screenshots.py FOLDER [--fleet | --crowds] [--seconds 60].

`--fleet`: a scripted afternoon, every page, light and dark, on four screens. `--crowds`: 0, 6 and 60 pools with 0, 20
and 600 waiting, light and dark, on four screens, and sheets with all widths of one fleet side by side. Without either:
both. Needs Chromium. SECONDS is how much history the afternoon collects first.
"""

from __future__ import annotations

import argparse
import base64
import math
import random
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.dashboard import crowd, fleet, jobs, spending
from tests.dashboard.browser import launched
from tests.dashboard.service import Server

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"wide": (1440, 900), "tablet": (768, 1024), "phone": (390, 844), "small": (320, 700)}
PAGES = {
    "pool": ("#/pools/anthropic%2Fclaude-opus-*?kind=agents", "#pool-waiting tbody tr"),
    "projects": ("#/projects", ".project-list tbody tr"),
    "project": ("#/projects/webshop", "#projects-body table.leases tbody tr"),
    "events": ("#/events", ".found .event"),
    "usage": ("#/usage?by=model&period=7d", "div.usage-list tbody tr"),
    "runs": ("#/usage?by=project&of=webshop", "section.usage-list tbody tr"),
    "budgets": ("#/budgets", ".budget"),
}
READY = "html[data-phase=ready] #live[data-tone=live]"


def opened(browser: Browser, server: Server, size: str, scheme: Literal["light", "dark"]) -> Page:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(server.link())
    page.wait_for_selector(READY)
    return page


def picture(page: Page, path: Path, *, full: bool = True) -> None:
    """The screen, or a screen that is as high as the page: then bars at its edges are where they belong."""
    size = page.viewport_size
    assert size is not None
    if full:
        height = max(size["height"], page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": size["width"], "height": height})
    page.screenshot(path=str(path))
    page.set_viewport_size(size)


def take_fleet(browser: Browser, server: Server, folder: Path, seconds: float) -> None:
    live(server, seconds)
    for scheme, size in product(SCHEMES, SIZES):
        fleet.beat(server)
        page = opened(browser, server, size, scheme)
        page.wait_for_selector("#queue-list tbody tr")
        page.wait_for_function("document.querySelector('#chart .line.used')?.getAttribute('d')")
        picture(page, folder / f"{size}-{scheme}.png", full=False)
        picture(page, folder / f"{size}-{scheme}-full.png")
        page.get_by_role("button", name="Exact rounding in checkout", exact=True).last.click()
        page.wait_for_selector(".output span")
        picture(page, folder / f"{size}-{scheme}-job.png", full=False)
        page.keyboard.press("Escape")
        for title, (address, shown) in PAGES.items():
            page.evaluate("address => { location.hash = address; }", address)
            page.locator(shown).first.wait_for()
            picture(page, folder / f"{size}-{scheme}-{title}.png")
        page.close()
    for scheme in SCHEMES:
        for title in ("full", *PAGES):
            sheet(
                browser, folder / f"sheet-{title}-{scheme}.png", [folder / f"{s}-{scheme}-{title}.png" for s in SIZES]
            )


def take_crowds(browser: Browser, server: Server, folder: Path) -> None:
    for pools, waiting in product((0, 6, 60), (0, 20, 600)):
        server.wipe()
        crowd.gather(server, pools, waiting)
        for scheme in SCHEMES:
            taken = []
            for size in SIZES:
                fleet.beat(server)
                page = opened(browser, server, size, scheme)
                page.wait_for_timeout(300)  # the first samples of the chart, and jobs
                taken.append(folder / f"crowd-{pools}-{waiting}-{size}-{scheme}.png")
                picture(page, taken[-1])
                page.close()
            sheet(browser, folder / f"sheet-crowd-{pools}-{waiting}-{scheme}.png", taken)


def sheet(browser: Browser, path: Path, pictures: list[Path]) -> None:
    """The pictures of one page on all screens side by side, as one; what is too long is cut off."""
    widths = (700, 420, 260, 215)
    sources = [f"data:image/png;base64,{base64.b64encode(each.read_bytes()).decode()}" for each in pictures]
    images = "".join(
        f'<div style="width:{width}px"><img src="{source}"></div>'
        for source, width in zip(sources, widths, strict=True)
    )
    page = browser.new_page(viewport={"width": sum(widths) + 50, "height": 1600})
    page.set_content(
        "<style>body{margin:8px;display:flex;gap:10px;background:#888}div{max-height:1584px;overflow:hidden}"
        f"img{{width:100%}}</style>{images}"
    )
    picture(page, path, full=False)
    page.close()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--crowds", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    both = given.fleet == given.crowds
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home))
        try:
            with launched() as browser:
                if both or given.crowds:
                    take_crowds(browser, server, given.folder)
                    server.wipe()
                if both or given.fleet:
                    take_fleet(browser, server, given.folder, given.seconds)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
