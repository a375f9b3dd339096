"""Pictures of the dashboard with a scripted fleet: python tools/screenshots.py FOLDER [SECONDS].

Needs Chromium. SECONDS is how much history to collect first (default 60).
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.dashboard import fleet  # noqa: E402
from tests.dashboard.browser import launched  # noqa: E402
from tests.dashboard.service import Server  # noqa: E402

SIZES = {"wide": (1440, 900), "phone": (390, 844)}


def main(folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home))
        try:
            fleet.set_up(server)
            live(server, seconds)
            with launched() as browser:
                for scheme in ("light", "dark"):
                    for name, (width, height) in SIZES.items():
                        size = {"width": width, "height": height}
                        page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
                        page.goto(server.link())
                        page.wait_for_selector("html[data-phase=ready] #live[data-tone=live]")
                        page.wait_for_selector("#line-list tbody tr")
                        page.wait_for_function("document.querySelectorAll('.spark svg').length > 2")
                        page.screenshot(path=str(folder / f"{name}-{scheme}.png"))
                        page.screenshot(path=str(folder / f"{name}-{scheme}-full.png"), full_page=True)
                        page.close()
        finally:
            server.stop()


def live(server: Server, seconds: float) -> None:
    """Requests come and go for a while, so that the charts have something to show."""
    pick = random.Random(4)
    held: list[str] = []
    ends = time.monotonic() + seconds
    troubled = False
    while time.monotonic() < ends:
        if pick.random() < 0.5 and len(held) < 4:
            held += server.ask("gemini/flash", "summarise.py --inbox", project="docs", wait=False)
        elif held:
            server.release(held.pop(pick.randrange(len(held))))
        if not troubled and time.monotonic() > ends - seconds / 3:
            fleet.trouble(server)
            troubled = True
        time.sleep(0.4)
    if not troubled:
        fleet.trouble(server)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 60.0)
