"""Pages in Chromium, driven from tests: JavaScript with Playwright's `page`, run in a process of Node."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from tests.browser.packages import NodePackages

__all__ = ["Browser", "BrowserPage", "PageFailed"]

DRIVER = Path(__file__).parent / "driver.mjs"
_ONE_STEP_S = 30.0


class PageFailed(AssertionError):
    """The code that a test ran in the browser's driver has failed."""


class Browser:
    """One Chromium for all tests of a run. Its calls block; `BrowserPage` makes them in a thread."""

    def __init__(self, packages: NodePackages) -> None:
        self._process = subprocess.Popen(
            packages.command(DRIVER),
            env=packages.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._turn = threading.Lock()
        self._numbers = itertools.count(1)
        self.version: str = self._answer()

    def new_number(self) -> int:
        """Return the number of a page to open."""
        return next(self._numbers)

    def call(self, op: str, page: int, *, code: str = "", arg: Any = None, timeout_s: float = _ONE_STEP_S) -> Any:
        """Have the driver do something, and return the result. Raises PageFailed."""
        request = {"op": op, "page": page, "code": code, "arg": arg, "timeout_ms": timeout_s * 1000}
        with self._turn:
            to_driver = _pipe(self._process.stdin)
            to_driver.write(json.dumps(request) + "\n")
            to_driver.flush()
            return self._answer()

    def close(self) -> None:
        """End the browser: the driver closes it when its input ends."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=_ONE_STEP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()

    def _answer(self) -> Any:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise PageFailed(f"the browser's driver has ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PageFailed(answer["error"])
        return answer["result"]


class BrowserPage:
    """A page in a context of its own: no cookies or storage of other tests."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._number = browser.new_number()

    async def open(self, **options: Any) -> None:
        """Open the page; the options are those of Playwright's `newContext`, such as `colorScheme` or `viewport`."""
        await self._call("open", arg=options)

    async def close(self) -> None:
        """Close the page."""
        await self._call("close")

    async def run(self, code: str, arg: Any = None, *, timeout_s: float = _ONE_STEP_S) -> Any:
        """Run JavaScript in Node, the body of an async function with `page`, `context` and `arg`; return its result.

        `page` is Playwright's, so a test can do all that Playwright can. Raises PageFailed.
        """
        return await self._call("run", code=code, arg=arg, timeout_s=timeout_s)

    async def goto(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        await self.run("await page.goto(arg)", url)

    async def evaluate(self, code: str, arg: Any = None, *, timeout_s: float = _ONE_STEP_S) -> Any:
        """Run JavaScript in the page, the body of an async function with `arg`; return its result."""
        call = "const [code, given] = arg; const body = `(async (arg) => {${code}})(${JSON.stringify(given)})`;"
        return await self.run(f"{call} return await page.evaluate(body)", [code, arg], timeout_s=timeout_s)

    async def until(self, code: str, arg: Any = None, *, timeout_s: float = _ONE_STEP_S) -> None:
        """Wait until an expression of the page, with `arg`, is true. Raises PageFailed."""
        call = "const [code, given] = arg; const body = `((arg) => (${code}))(${JSON.stringify(given)})`;"
        await self.run(f"{call} await page.waitForFunction(body)", [code, arg], timeout_s=timeout_s)

    async def text(self, selector: str) -> str:
        """Return the text of the first element that a selector finds, when it is there."""
        return str(await self.run("return await page.locator(arg).first().innerText()", selector))

    async def screenshot(self, path: Path) -> None:
        """Write a picture of what the window shows."""
        await self.run("await page.screenshot({path: arg})", str(path))

    async def errors(self) -> list[str]:
        """Return what the page wrote to its console as errors, and exceptions that nobody caught."""
        return list((await self._call("seen"))["errors"])

    async def requests(self) -> list[str]:
        """Return the addresses of all requests and WebSockets of the page."""
        return list((await self._call("seen"))["requests"])

    async def _call(self, op: str, **given: Any) -> Any:
        return await asyncio.to_thread(self._browser.call, op, self._number, **given)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
