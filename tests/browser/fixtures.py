"""Fixtures: Node with pinned packages, and pages in Chromium. Both are prepared when a test first asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.browser.packages import NodePackages, install
from tests.browser.pages import Browser, BrowserPage

__all__ = ["RunNode", "browser", "browser_page", "node_packages", "run_node"]

RunNode = Callable[..., Awaitable[str]]
_SCRIPT_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def node_packages() -> NodePackages:
    """Return the installed packages."""
    return install()


@pytest.fixture(scope="session")
def browser(node_packages: NodePackages) -> Iterator[Browser]:
    """Return Chromium, started once for a run."""
    started = Browser(node_packages)
    yield started
    started.close()


@pytest_asyncio.fixture
async def browser_page(browser: Browser) -> AsyncIterator[BrowserPage]:
    """Return an empty page in a context of its own."""
    page = BrowserPage(browser)
    await page.open()
    yield page
    await page.close()


@pytest.fixture
def run_node(node_packages: NodePackages) -> RunNode:
    """Return `await run_node(script, *args, timeout_s=…)`: its stdout; it fails with stderr if the script does."""

    async def run(script: Path, *args: str, timeout_s: float = _SCRIPT_TIMEOUT_S) -> str:
        process = await asyncio.create_subprocess_exec(
            *node_packages.command(script, *args),
            env=node_packages.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_s):
                output, errors = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0, errors.decode()
        return output.decode()

    return run
