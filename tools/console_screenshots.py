"""Make the pictures of docs/console.md: `python -m tools.console_screenshots`, from the root of the tree.

It runs `headrace demo --serve`, lets it work for a while, and opens the console in the browser of the tests.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.browser.packages import install
from tests.browser.pages import Browser, BrowserPage

from headrace.testing.processes import running

FOLDER = Path("docs/console")
WORK_S = 90
WIDE = {"viewport": {"width": 1180, "height": 760}}
PHONE = {"viewport": {"width": 390, "height": 780}, "deviceScaleFactor": 1.5}
# name, part of the page, options of the browser's context, and the element that must be there: selector and number
SHOTS = (
    ("overview", "#/overview", WIDE, ".chart polyline", 3),
    ("nodes", "#/cluster", {**WIDE, "colorScheme": "dark"}, ".partition", 3),
    ("journal", "#/journals/accounts-live/alice", WIDE, ".event", 3),
    ("outbox", "#/outbox", WIDE, ".chart polyline", 1),
    ("phone", "#/cluster", PHONE, ".partition", 3),
)


async def shoot(url: str, folder: Path) -> None:
    browser = Browser(install())
    try:
        for name, part, options, selector, number in SHOTS:
            page = BrowserPage(browser)
            await page.open(**options)
            await page.goto(f"{url}/console{part}")
            await page.run("await page.locator(arg[0]).nth(arg[1]).waitFor()", [selector, number])
            await page.screenshot(folder / f"{name}.png")
            print(f"{name}: {(folder / f'{name}.png').stat().st_size} bytes, errors: {await page.errors()}")
            await page.close()
    finally:
        browser.close()


def main(folder: Path, work_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with running("-m", "headrace", "demo", "--serve", "--listen", "127.0.0.1:0") as demo:
        url = demo.wait_for_line(r"the console is at (\S+)/console", 120)[1]
        asyncio.run(asyncio.sleep(work_s))
        asyncio.run(shoot(url, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER, float(sys.argv[2]) if len(sys.argv) > 2 else WORK_S)
