"""The browser itself: the tests of clients and of pages stand on it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.browser.fixtures import RunNode
from tests.browser.pages import BrowserPage, PageFailed

# The first run on a machine downloads Chromium.
pytestmark = pytest.mark.timeout(600)

PAGE = """<!doctype html><title>Tailrace</title><p id=p>before</p>
<script type=module>document.querySelector("#p").textContent = "after"; console.error("said aloud")</script>"""


class _OnePage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        """Write nothing into the test's output."""


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of a server with one page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _OnePage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_a_page_is_opened_and_its_scripts_run(browser_page: BrowserPage, url: str) -> None:
    """A page of this machine is loaded, runs its module, and shows what it did; its errors and requests are seen."""
    await browser_page.goto(url)
    await browser_page.until("document.querySelector('#p').textContent === arg", "after")
    assert await browser_page.text("#p") == "after"
    assert await browser_page.evaluate("return [document.title, arg.n + 1]", {"n": 1}) == ["Tailrace", 2]
    assert "said aloud" in await browser_page.errors()
    assert (await browser_page.requests())[0] == f"{url}/"
    with pytest.raises(PageFailed, match="no such thing"):
        await browser_page.evaluate("throw new Error('no such thing')")


async def test_node_runs_modules_with_the_pinned_packages(run_node: RunNode, tmp_path: Path) -> None:
    """A module outside of the packages' folder imports them; one that fails shows why."""
    script = tmp_path / "script.mjs"
    script.write_text('import avro from "avsc";\nconsole.log(avro.Type.forSchema("int").toBuffer(7).toString("hex"))\n')
    assert await run_node(script) == "0e\n"
    script.write_text('import "no-such-package"')
    with pytest.raises(AssertionError, match="no-such-package"):
        await run_node(script)


def test_the_lock_pins_every_package_and_names_no_host() -> None:
    """Every package has a hash, and none says which registry it came from."""
    text = (Path(__file__).parent / "package-lock.json").read_text()
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}
    assert packages
    assert [name for name, each in packages.items() if not each.get("integrity", "").startswith("sha512-")] == []
    assert [name for name, each in packages.items() if "resolved" in each] == []
    manifest = json.loads((Path(__file__).parent / "package.json").read_text())
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in manifest["dependencies"].values())
