"""The console in a real browser, on a gateway with real nodes: what it shows, and what it says when they go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.browser.pages import BrowserPage
from tests.gateway.market import Account, Accounts, Pay, purses
from tests.gateway.test_security import Issuer, issuer  # noqa: F401 - the last one is a fixture

from headrace import Event
from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import RunningGateway, serving
from headrace.model import Cleanup, TopicConfig
from headrace.outbox import JsonSerializer, Outbox, Relay, engine_for, migrate
from headrace.testing.processes import ChildProcess, running

# The first run on a machine downloads Chromium.
pytestmark = pytest.mark.timeout(600)

EVIL = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
PARTS = ("overview", "topics", "journals", "tags", "live", "cluster", "engines", "outbox", "quarantine")
PHONE = {"viewport": {"width": 360, "height": 740}}


def settings_of(folder: Path, *, has_outbox: bool, **gateway: Any) -> HeadraceSettings:
    address = f"embedded:{folder}"
    given = {
        "log": {"address": address},
        "store": {"address": address},
        "registry": {"address": "memory:"},
        "cluster": {"node_id": "gateway", "session_s": 1.0},
        "gateway": {"listen": "127.0.0.1:0", "console_sample_s": 0.2, **gateway},
    }
    database = {"outbox": {"database": f"sqlite:///{folder / 'shop.db'}"}} if has_outbox else {}
    return HeadraceSettings.model_validate({**given, **database})


class Market(NamedTuple):
    """A gateway in this process, whose node serves keyspace and engine, or calls a node in another process."""

    hr: Headrace
    gateway: RunningGateway

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/console"


@contextlib.asynccontextmanager
async def running_market(folder: Path, *parts: Any, **gateway_settings: Any) -> AsyncIterator[Market]:
    settings = settings_of(folder, has_outbox=bool(parts), **gateway_settings)
    async with connect(settings=settings) as hr, hr.node(*parts):
        app = hr.gateway(Accounts, purses)
        async with serving(app, settings.gateway) as gateway:
            yield Market(hr, gateway)


@contextlib.contextmanager
def running_node(folder: Path) -> Iterator[ChildProcess]:
    served = ("tests.gateway.market:Accounts", "tests.gateway.market:purses")
    options = ("--node-id", "n1", "--log", f"embedded:{folder}", "--json")
    environ = {"HEADRACE__CLUSTER__SESSION_S": "1"}
    with running("-m", "headrace", "node", "run", *served, *options, environ=environ) as node:
        node.wait_for_line(r'"ready": true', 60)
        yield node


@pytest.fixture
async def market(tmp_path: Path) -> AsyncIterator[Market]:
    """Return a market with a journal, an aggregate, a value, and a message that could not be sent."""
    async with running_market(tmp_path, Accounts, purses) as opened:
        hr = opened.hr
        await hr.journal("shops", partitions=1).append(EVIL, [Event(1, {"said": EVIL}, ("vip",))])
        await hr.keyspace(Accounts).put("balances", "ann", Account("ann", 1))
        await hr.engine(purses).aggregate("p").send(Pay(3))
        await kill_message(hr, tmp_path)
        yield opened


async def kill_message(hr: Headrace, folder: Path) -> None:
    """Publish a message without a key to a topic that needs one."""
    url = f"sqlite:///{folder / 'shop.db'}"
    await hr.log.admin.create("prices", partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
    await asyncio.to_thread(migrate, url)
    engine = engine_for(url)
    with engine.begin() as db:
        Outbox().producer("prices", serializer=JsonSerializer()).publish(db, {"said": EVIL})
    engine.dispose()
    async with Relay(url, hr.log) as relay:
        await relay.drain()


async def sees(page: BrowserPage, text: str, within: str = "body") -> None:
    """Wait until an element shows a text. The page's policy forbids code made of text, so Playwright looks itself."""
    await page.run("await page.locator(arg[0]).filter({ hasText: arg[1] }).first().waitFor()", [within, text])


async def visit(page: BrowserPage, market: Market, part: str) -> None:
    """Open a part, and wait until it has been refreshed."""
    await page.goto(f"{market.url}#/{part}")
    await page.run("await page.locator(`#view[data-part='${arg}'][aria-busy=false]`).waitFor()", part)


async def test_the_console_tells_the_truth_when_a_node_and_then_the_gateway_goes(
    browser_page: BrowserPage, tmp_path: Path
) -> None:
    """G13, G15: a node that is killed is said to be gone, and who served what; a gateway that is away, is away.

    Values that may have changed meanwhile are marked as old, and nothing is called good any more.
    """
    page = browser_page
    async with contextlib.AsyncExitStack() as stack:
        node = stack.enter_context(running_node(tmp_path))
        market = await stack.enter_async_context(running_market(tmp_path))
        accounts = market.hr.keyspace(Accounts)
        await accounts.put("balances", "ann", Account("ann", 1))
        await visit(page, market, "live/accounts/balances/ann")
        await sees(page, '"balance": 1', ".live pre")
        await accounts.put("balances", "ann", Account("ann", 7))
        await sees(page, '"balance": 7', ".live pre")
        await sees(page, "no known problems", "#status")
        await visit(page, market, "cluster")
        await sees(page, "n1 owns it", ".partition")
        assert await page.errors() == []
        node.kill()
        await sees(page, "Node n1 is gone.", "#problems")
        await sees(page, "Nobody serves 2 of 2 partitions (0, 1) of accounts.", "#problems")
        await sees(page, "Nobody serves it; n1 did.", ".partition.bad")
        await sees(page, "problems", "#status.bad")
        await stack.aclose()
        await sees(page, "The gateway does not answer since", "#away")
        await sees(page, "gateway away", "#status.bad")
        assert await page.run("return await page.locator('body.away #view').count()") == 1


async def test_what_users_wrote_is_text_and_nothing_leaves_the_origin(
    browser_page: BrowserPage, market: Market
) -> None:
    """G15: markup in an id, a payload and a message is shown as it was written; every request is to this gateway."""
    page = browser_page
    for part in PARTS:
        await visit(page, market, part)
    await visit(page, market, "journals/shops")
    await page.run(
        "await page.getByLabel('Id').fill(arg); await page.getByRole('button', {name: 'Show'}).click()", EVIL
    )
    await sees(page, json.dumps(EVIL), ".event pre")
    await sees(page, EVIL, "h1")
    await visit(page, market, "tags/vip")
    await sees(page, json.dumps(EVIL), ".event pre")
    await visit(page, market, "outbox")
    await sees(page, json.dumps(EVIL), "td pre")
    assert await page.run("return await page.title()") == "Outbox – Headrace console"
    assert await page.run("return await page.locator('main img, main script').count()") == 0
    hosts = {address.split("/")[2] for address in await page.requests()}
    assert hosts == {market.gateway.url.split("/")[2]}
    assert await page.errors() == []


async def test_a_journal_is_shown_without_gaps_and_as_it_is_now(browser_page: BrowserPage, market: Market) -> None:
    """G15: older events that could not be read are read by the next click, those of a purged journal are not shown.

    Numbers are shown as they were written, whatever their size.
    """
    page = browser_page
    journal = market.hr.journal("shops")
    await journal.append("long", [Event(number, f"old {number}") for number in range(1, 61)])
    await visit(page, market, "journals/shops/long")
    await sees(page, "old 60", ".event pre")
    await page.run("await page.route('**/shops/long?from=1&*', (each) => each.abort(), { times: 1 })")
    click = "await page.getByRole('button', {name: 'Older events'}).click()"
    await page.run(click)
    await sees(page, "Older events can't be shown", ".notice")
    await page.run(click)
    await page.run("await page.locator('.event').nth(59).waitFor()")
    assert await page.run("return await page.locator('.event').count()") == 60
    await journal.purge("long")
    await journal.append("long", [Event(number, f"new {number}") for number in range(1, 61)])
    await sees(page, "new 60", ".event pre")
    assert await page.run("return await page.locator('.event').filter({hasText: 'old'}).count()") == 0
    await journal.append("long", [Event(61, {"id": 2**60 + 1})])
    await sees(page, f'"id": {2**60 + 1}', ".event pre")


async def test_a_dead_message_is_purged_by_keyboard(browser_page: BrowserPage, market: Market) -> None:
    """A part is opened by its number, a button asks first, and Escape does nothing; then the message is gone."""
    page = browser_page
    await visit(page, market, "overview")
    await page.run("await page.keyboard.press('8'); await page.locator('button', {hasText: 'Purge all'}).waitFor()")
    press = "const button = page.getByRole('button', {name: 'Purge', exact: true}); await button.focus();"
    await page.run(f"{press} await page.keyboard.press('Enter'); await page.locator('dialog[open]').waitFor()")
    await page.run("await page.keyboard.press('Escape'); await page.locator('dialog[open]').waitFor({state: 'hidden'})")
    await sees(page, "key is None", "td")
    await page.run(f"{press} await page.keyboard.press('Enter'); await page.locator('dialog[open]').waitFor()")
    await page.run("await page.keyboard.press('Tab'); await page.keyboard.press('Enter')")
    await sees(page, "1 message of prices removed.")
    await sees(page, "No message is dead.")
    await sees(page, "no known problems", "#status.good")
    assert await page.errors() == []


async def test_engines_are_shown_with_the_state_of_an_aggregate(browser_page: BrowserPage, market: Market) -> None:
    """Commands that this process sent are in the table and the charts; a state is read by its id."""
    page = browser_page
    await visit(page, market, "engines")
    await sees(page, "purses", "td")
    await page.run("await page.getByLabel('Id').fill('p'); await page.getByRole('button', {name: 'Read'}).click()")
    await sees(page, '"coins": 3', "pre")
    await page.run("await page.locator('.chart polyline').first().waitFor()")


async def test_a_token_opens_what_its_grants_allow(
    browser_page: BrowserPage,
    tmp_path: Path,
    issuer: Issuer,  # noqa: F811
) -> None:
    """G15: without a token there is nothing to see; with one, what it may read, and no word that all is well.

    The token goes with the WebSocket, too, and is asked for only once in a tab.
    """
    page, grants = browser_page, {"alice": ["read topic/shops", "read keyspace/*"]}
    async with running_market(tmp_path, Accounts, jwt=issuer.settings(), grants=grants) as market:
        await market.hr.journal("shops", partitions=1).append("a", [Event(1, {"n": 1})])
        await market.hr.keyspace(Accounts).put("balances", "ann", Account("ann", 5))
        await visit(page, market, "topics")
        await sees(page, "This gateway wants a token")
        await sees(page, "not signed in", "#status.warn")
        await page.run("await page.getByRole('button', {name: 'Token'}).click()")
        await page.run(
            "await page.locator('dialog input').fill(arg); await page.keyboard.press('Enter')", issuer.token()
        )
        await sees(page, "shops", "td")
        await sees(page, "you may not see the state", "#status")
        await visit(page, market, "outbox")
        await sees(page, "This can't be shown: not allowed to read system 'outbox'")
        await visit(page, market, "live/accounts/balances/ann")
        await sees(page, '"balance": 5', ".live pre")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_a_phone_and_follows_the_colours_of_the_system(
    browser_page: BrowserPage, market: Market, scheme: str
) -> None:
    """No part scrolls sideways at 360 pixels; colours are the system's, until the switch says otherwise."""
    page = browser_page
    await page.close()
    await page.open(**PHONE, colorScheme=scheme)
    for part in (*PARTS, "journals/shops", "topics/shops", "tags/vip"):
        await visit(page, market, part)
        wide = await page.run("return await page.evaluate(() => document.documentElement.scrollWidth)")
        assert wide <= 360, part
    assert await brightness(page) == (scheme == "light")
    await page.run("const button = page.locator('#theme'); await button.click(); await button.click()")
    assert not await brightness(page)
    await page.goto(market.url)
    assert not await brightness(page)


async def brightness(page: BrowserPage) -> bool:
    """Return True if the page's ground is light."""
    found: Any = await page.run(
        "return await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))"
    )
    return sum(found[:3]) > 3 * 128
