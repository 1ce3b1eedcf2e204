"""The JavaScript client, in Node and in a real browser, against a running gateway."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.fixtures import RunNode
from tests.browser.packages import NodePackages
from tests.browser.pages import Browser
from tests.clients.conftest import Market, NodeProgram, Relay, new_issuer, open_page, serving_also
from tests.clients.market import Add
from tests.gateway.market import Account, Deposit

from headrace.gateway.metrics import SOCKETS
from headrace.model import Event

# All tests here share the node's loop; the first run on a machine downloads Chromium.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "clients" / "js"

# Everything that a program can follow, recorded as it comes.
FOLLOW = """
const { GatewayClient } = globalThis.headrace;
const onStatus = (each) => seen.status.push(each);
const hr = new GatewayClient(arg.url, { backoff: { firstMs: 20, limitMs: 200 }, onStatus });
const seen = { json: [], avro: [], socket: [], deltas: [], totals: [], collected: [], status: [], errors: [] };
const balances = hr.state("accounts", "balances");
const record = async (source, list, shown) => {
  try {
    for await (const each of source) list.push(shown(each));
  } catch (error) {
    seen.errors.push(error.stack);
  }
};
const balance = (value) => value && value.data.balance;
record(balances.subscribe(arg.key), seen.json, (change) => balance(change.value));
record(balances.subscribe(arg.key, { format: "avro" }), seen.avro, (change) => balance(change.value));
record(hr.keySocket("accounts", "balances", arg.key), seen.socket, balance);
const applyDelta = (total, more) => ({ type: "Total", data: { amount: (total?.data.amount ?? 0) + more.data.by } });
const totals = hr.state("sums", "totals").subscribe(arg.key, { deltas: true, applyDelta });
record(totals, seen.totals, (change) => change.value && change.value.data.amount);
const deltas = hr.state("sums", "totals").subscribe(arg.key, { deltas: true, format: "avro", applyDelta });
record(deltas, seen.deltas, (change) => (change.delta ? change.delta.data.by : change.value));
const collection = balances.collect({ prefix: arg.key });
record(collection, seen.collected, (each) => (each.kind === "change" ? [each.key, balance(each.value)] : each.kind));
globalThis.test = { hr, seen, collection, balances };
await collection.ready;
const lists = [seen.json, seen.avro, seen.socket, seen.totals, seen.deltas];
while (lists.some((each) => each.length === 0)) await new Promise((resolve) => setTimeout(resolve, 5));
"""
SEEN = "return globalThis.test.seen"


async def until(evaluate: Callable[..., Awaitable[Any]], code: str, expected: Any) -> None:
    """Wait until the program's answer is the expected one, and show the last one if it never is."""
    found = None
    try:
        async with asyncio.timeout(40):
            while True:
                found = await evaluate(code)
                if found == expected:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        assert found == expected
        raise


async def test_the_client_follows_over_a_killed_gateway(market: Market, program: Any, request: Any) -> None:
    """G9: snapshot, changes and messages; a gateway killed and restarted: order kept, nothing lost and nothing twice.

    Also G5 and G6 as seen by a client: values as framed Avro and as JSON, deltas, a collection, two keyspaces on one
    socket. Changes go on while the gateway is away, and a message that is sent meanwhile is handled once.
    """
    key = f"followed-{request.node.callspec.id}"
    evaluate = program.evaluate
    await market.accounts.put("balances", f"{key}-gone", Account("bob", 5))
    await evaluate(FOLLOW, {"url": market.gateway.url, "key": key})
    for number in (1, 2):
        await market.accounts.ask(Deposit(key, 1))
        await market.sums.ask(Add(key, number))
    reply = await evaluate(
        "return await globalThis.test.hr.publish('accounts', 'Deposit', {id: arg, amount: 1}, {messageId: arg})", key
    )
    assert reply == {"type": "Account", "data": {"owner": "ann", "balance": 3}}
    await until(evaluate, "return globalThis.test.seen.json", [None, 1, 2, 3])

    market.gateway.kill()
    await until(evaluate, "return globalThis.test.seen.status.at(-1).status", "waiting")
    publish = "globalThis.test.sent = globalThis.test.hr.publish('accounts', 'Deposit', {id: arg, amount: 1})"
    await evaluate(f"{publish}; globalThis.test.sent.catch(() => {{}})", key)
    for number in (3, 4, 5):
        await market.accounts.ask(Deposit(key, 1))
        await market.sums.ask(Add(key, number))
    await market.accounts.delete("balances", f"{key}-gone")
    await market.accounts.put("balances", f"{key}-new", Account("eve", 9))
    await market.gateway.start()
    last = await evaluate("return (await globalThis.test.sent).data.balance")
    assert last == 7
    await market.accounts.ask(Deposit(key, 1))

    await until(evaluate, "return globalThis.test.seen.json", [None, 1, 2, 3, 4, 5, 6, 7, 8])
    await until(evaluate, "return globalThis.test.seen.avro", [None, 1, 2, 3, 4, 5, 6, 7, 8])
    await until(evaluate, "return globalThis.test.seen.totals", [None, 1, 3, 6, 10, 15])
    await until(evaluate, "return globalThis.test.seen.deltas", [None, 1, 2, 3, 4, 5])
    entries = (
        "return Object.fromEntries([...globalThis.test.collection.entries()].map(([k, v]) => [k, v.data.balance]))"
    )
    await until(evaluate, entries, {key: 8, f"{key}-new": 9})
    await until(evaluate, "return globalThis.test.seen.socket.at(-1)", 8)
    seen = await evaluate(SEEN)
    assert seen["errors"] == []
    changes = [each for each in seen["collected"] if each != "ready"]
    assert [value for name, value in changes if name == key] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [value for name, value in changes if name != key] == [5, None, 9]
    # Frames of a socket on one key have no offsets: of what happened while the gateway was away it tells the end.
    first, later = seen["socket"][:4], seen["socket"][4:]
    assert first == [None, 1, 2, 3]
    assert later == sorted(set(later))
    await evaluate("globalThis.test.hr.close()")


async def test_a_socket_on_a_key_takes_messages(market: Market, program: Any, request: Any) -> None:
    """G5: framed Avro and JSON are messages to the key, whose schema the client asks for by name."""
    key = f"socket-{request.node.callspec.id}"
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg.url);
    const found = [];
    for (const json of [false, true]) {
      const socket = hr.keySocket("accounts", "balances", arg.key, { json });
      const values = socket[Symbol.asyncIterator]();
      found.push((await values.next()).value);
      await socket.send("Deposit", { id: arg.key, amount: 2 });
      found.push((await values.next()).value.data.balance);
      socket.close();
    }
    const socket = hr.keySocket("accounts", "balances", arg.key);
    found.push((await socket.schema("Deposit")).schema.fields.map((each) => each.name));
    hr.close();
    return found;
    """
    found = await program.evaluate(code, {"url": market.gateway.url, "key": key})
    assert found == [None, 2, {"type": "Account", "data": {"owner": "ann", "balance": 2}}, 4, ["id", "amount"]]


async def test_the_client_over_http(market: Market, program: Any, request: Any) -> None:
    """G4, G14: values with versions, pages, messages and commands with keys, journals, and events by tag."""
    code = """
    const { GatewayClient, Problem } = globalThis.headrace;
    const hr = new GatewayClient(arg.url + "/");
    const failure = async (promise) => promise.then(() => null, (error) => [error instanceof Problem, error.status]);
    const found = {};
    const balances = hr.state("accounts", "balances");
    const key = arg.key + "/ü";
    found.absent = await balances.get(key);
    await balances.put(key, { owner: key, balance: 1 }, { version: null });
    const { value, version } = await balances.get(key);
    found.value = value.data.balance;
    found.twice = await failure(balances.put(key, { owner: "b" }, { version: null }));
    await balances.put(key, { owner: key, balance: 2 }, { version });
    found.stale = await failure(balances.put(key, { owner: "b" }, { version }));
    found.indexed = (await balances.find("owner", key)).length;
    await balances.delete(key);
    found.deleted = await balances.get(key);
    const lines = hr.state("accounts", "lines");
    for (const number of [1, 2, 3]) await lines.put([arg.key, number], number);
    const page = await lines.page([arg.key], { limit: 2 });
    found.pages = [page.pairs.length, (await lines.page([arg.key], { after: page.next })).pairs.length];
    const collected = await lines.collect({ prefix: [arg.key], start: [arg.key, 2] }).ready;
    found.range = [...collected.entries()].map(([each]) => each[1]);
    found.refused = await failure(hr.send("accounts", "Deposit", { id: arg.key, amount: -1 }));
    found.published = await failure(hr.publish("accounts", "Deposit", { id: arg.key, amount: -1 }));
    const deposit = { id: arg.key, amount: 1 };
    found.sent = (await hr.send("accounts", "Deposit", deposit, { idempotencyKey: arg.key })).data.balance;
    const large = hr.publish("accounts", "Deposit", { id: "x".repeat(1 << 21), amount: 1 });
    found.large = await large.then(() => null, (error) => [error.name, error.code]);
    const wrong = hr.state("accounts", "nothing");
    found.unknown = await failure(wrong.subscribe(arg.key)[Symbol.asyncIterator]().next());
    const engine = hr.engine("purses");
    found.purse = await engine.get(arg.key);
    const options = { idempotencyKey: "c-" + arg.key };
    const pay = () => engine.command(arg.key, "Pay", { coins: 3 }, options);
    const answers = [await pay(), await pay()];
    found.commands = answers.map((each) => [each.version, each.is_repeated]);
    found.paid = (await engine.get(arg.key)).state.coins;
    const orders = hr.journal("orders");
    const tag = "tag-" + arg.key;
    const event = (payload) => ({ payload, tags: [tag] });
    await orders.append(arg.key, [event({ n: 1 })], { expected: 0, idempotencyKey: "a-" + arg.key });
    await orders.append(arg.key, [event({ n: 1 })], { expected: 0, idempotencyKey: "a-" + arg.key });
    found.conflict = await failure(orders.append(arg.key, [event({ n: 9 })], { expected: 0 }));
    const stream = hr.events([tag]);
    found.tagged = [(await stream.next()).value.payload.n];
    await orders.append(arg.key, [event({ n: 2 })]);
    found.tagged.push((await stream.next()).value.payload.n);
    await stream.return();
    found.events = (await orders.read(arg.key)).events.map((each) => each.payload.n);
    found.page = (await hr.eventPage([tag])).events.length;
    found.nothing = await orders.pointer(arg.key + "-none");
    found.keyspaces = (await hr.keyspaces()).map((each) => each.name);
    hr.close();
    return found;
    """
    found = await program.evaluate(code, {"url": market.gateway.url, "key": f"http-{request.node.callspec.id}"})
    assert found == {
        "absent": None,
        "value": 1,
        "twice": [True, 412],
        "stale": [True, 412],
        "indexed": 1,
        "deleted": None,
        "pages": [2, 1],
        "range": [2, 3],
        "refused": [True, 400],
        "published": [True, 400],
        "sent": 1,
        "large": ["SocketClosed", 1009],
        "unknown": [True, 404],
        "purse": None,
        "commands": [[1, False], [1, True]],
        "paid": 3,
        "conflict": [True, 409],
        "tagged": [1, 2],
        "events": [1, 2],
        "page": 2,
        "nothing": None,
        "keyspaces": ["accounts", "sums"],
    }


async def test_tokens_are_renewed_and_refusals_are_final(
    market: Market, node_program: NodeProgram, tmp_path: Path
) -> None:
    """G10: a socket whose token ends is opened again with a new one, without a gap; what is forbidden stays so."""
    code = """
    const { GatewayClient } = globalThis.headrace;
    const closed = [];
    const tokens = [...arg.tokens];
    const token = async () => (tokens.length > 1 ? tokens.shift() : tokens[0]);
    const onStatus = (each) => each.status === "waiting" && closed.push(each.code);
    const hr = new GatewayClient(arg.url, { token, backoff: { firstMs: 10, limitMs: 50 }, onStatus });
    const changes = hr.state("accounts", "balances").subscribe("tokens")[Symbol.asyncIterator]();
    const values = [(await changes.next()).value.value];
    const failure = (promise) => promise.then(() => null, (error) => [error.name, error.status]);
    const forbidden = [
      await failure(hr.state("sums", "totals").subscribe("x")[Symbol.asyncIterator]().next()),
      await failure(hr.publish("accounts", "Deposit", { id: "tokens", amount: 1 })),
    ];
    globalThis.renewed = { changes, hr, closed, forbidden, values };
    """
    issuer = new_issuer(tmp_path)
    grants = {"alice": ["read keyspace/accounts"]}
    async with serving_also(market.hr, jwt=issuer.settings(), grants=grants) as url:
        tokens = [issuer.token(exp=time.time() + 1.5), issuer.token(exp=time.time() + 3600)]
        await node_program.evaluate(code, {"url": url, "tokens": tokens})
        # 4401, or 1006 if the token had ended before the socket was open.
        ended = "return globalThis.renewed.closed.some((each) => each === 4401 || each === 1006)"
        await until(node_program.evaluate, ended, True)
        await market.accounts.put("balances", "tokens", Account("ann", 1))
        after = await node_program.evaluate(
            """
            const { changes, hr, forbidden, values } = globalThis.renewed;
            values.push((await changes.next()).value.value.data.balance);
            hr.close();
            return { values, forbidden };
            """
        )
        assert after == {"values": [None, 1], "forbidden": [["Problem", 403], ["Problem", 403]]}
        refused = """
        const hr = new globalThis.headrace.GatewayClient(arg.url, { token: arg.token, backoff: { firstMs: 10 } });
        const changes = hr.state("accounts", "balances").subscribe("tokens")[Symbol.asyncIterator]();
        return changes.next().then(() => null, (error) => [error.name, error.status]);
        """
        token = issuer.token(exp=time.time() - 60)
        assert await node_program.evaluate(refused, {"url": url, "token": token}) == ["Problem", 401]


# Key sockets of both formats, a subscription and a stream, over a relay that can be made silent.
SILENT = """
const options = { backoff: { firstMs: 10, limitMs: 50 }, silenceMs: arg.silenceMs };
const hr = new globalThis.headrace.GatewayClient(arg.url, options);
const found = { changes: [], events: [], avro: [], json: [] };
const record = async (source, list, shown) => { for await (const each of source) list.push(shown(each)); };
const balance = (value) => value && value.data.balance;
record(hr.state("accounts", "balances").subscribe(arg.key), found.changes, ({ value }) => balance(value));
record(hr.events([arg.key]), found.events, ({ payload }) => payload);
record(hr.keySocket("accounts", "balances", arg.key), found.avro, balance);
record(hr.keySocket("accounts", "balances", arg.key, { json: true }), found.json, balance);
globalThis.silent = { hr, found };
"""
FOUND = "return globalThis.silent.found"


async def test_a_connection_that_ended_without_a_word_is_opened_again(
    market: Market, program: Any, request: Any
) -> None:
    """G8: where nothing comes through any more, the client notices and resumes, with sockets and with streams."""
    key = f"silent-{request.node.callspec.id}"
    orders = market.hr.journal("orders")
    await orders.append(key, [Event(1, 1, tags=(key,))])
    async with serving_also(market.hr, heartbeat_s=0.05, origins=["*"]) as url, Relay(url) as relay:
        await program.evaluate(SILENT, {"url": relay.url, "key": key, "silenceMs": 500})
        none = [None]
        await until(program.evaluate, FOUND, {"changes": none, "events": [1], "avro": none, "json": none})
        relay.silence()
        await market.accounts.put("balances", key, Account("ann", 1))
        await orders.append(key, [Event(2, 2, tags=(key,))])
        new = [None, 1]
        await until(program.evaluate, FOUND, {"changes": new, "events": [1, 2], "avro": new, "json": new})
        opened = relay.opened
        await asyncio.sleep(1.5)
        assert relay.opened == opened  # a gateway that answers is not left
        await program.evaluate("globalThis.silent.hr.close()")


async def test_a_connection_that_is_never_answered_is_given_up(market: Market, node_program: NodeProgram) -> None:
    """G8: where a connection is taken and nothing comes through from its beginning, another one is opened."""
    async with serving_also(market.hr) as url, Relay(url) as relay:
        relay.is_mute = True
        await node_program.evaluate(SILENT, {"url": relay.url, "key": "mute", "silenceMs": 100})
        async with asyncio.timeout(20):
            while relay.opened < 8:  # noqa: ASYNC110 - three sockets and a stream, each a second time
                await asyncio.sleep(0.02)
        relay.is_mute = False
        none = [None]
        await until(node_program.evaluate, FOUND, {"changes": none, "events": [], "avro": none, "json": none})
        await node_program.evaluate("globalThis.silent.hr.close()")


async def test_a_program_that_wakes_up_opens_its_sockets_again(market: Market, node_program: NodeProgram) -> None:
    """G8: `reconnect` waits for nothing from connections whose other end may be gone, and is for all sockets."""
    async with serving_also(market.hr, heartbeat_s=0.05) as url, Relay(url) as relay:
        await node_program.evaluate(SILENT, {"url": relay.url, "key": "asleep", "silenceMs": 60_000})
        sockets = "const { changes, avro, json } = globalThis.silent.found; return { changes, avro, json };"
        await until(node_program.evaluate, sockets, {"changes": [None], "avro": [None], "json": [None]})
        relay.silence()
        await market.accounts.put("balances", "asleep", Account("ann", 1))
        await node_program.evaluate("globalThis.silent.hr.reconnect()")
        started_s = time.monotonic()
        await until(node_program.evaluate, sockets, {"changes": [None, 1], "avro": [None, 1], "json": [None, 1]})
        assert time.monotonic() - started_s < 20
        await node_program.evaluate("globalThis.silent.hr.close()")


async def test_a_page_of_an_allowed_origin_uses_the_gateway(market: Market, browser: Browser) -> None:
    """G10: a browser lets a page of an origin that the settings name do all that a page of the gateway's own does."""
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg);
    const balances = hr.state("accounts", "balances");
    await balances.put("across", { owner: "ann", balance: 1 });
    const { version } = await balances.get("across");
    const sent = await hr.send("accounts", "Deposit", { id: "across", amount: 2 }, { idempotencyKey: "across" });
    const stale = await balances.put("across", { owner: "bob" }, { version }).then(() => null, (error) => error.status);
    await balances.delete("across");
    const gone = await balances.get("across");
    hr.close();
    return [version !== undefined, sent.data.balance, stale, gone];
    """
    own = market.gateway.url
    async with serving_also(market.hr, origins=[own]) as url, open_page(browser, own) as page:
        assert await page.evaluate(code, url) == [True, 3, 412, None]
    async with serving_also(market.hr, origins=["https://shop.example"]) as url, open_page(browser, own) as page:
        refused = (
            "return new globalThis.headrace.GatewayClient(arg).keyspaces().then(() => null, (error) => error.name)"
        )
        assert await page.evaluate(refused, url) == "TypeError"


async def test_what_is_closed_while_it_opens_stays_closed(market: Market, node_program: NodeProgram) -> None:
    """G9: a client that is closed before its sockets are open leaves none of them behind."""
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg);
    const taken = [hr.state("accounts", "balances").subscribe("early"), hr.keySocket("accounts", "balances", "early")];
    await new Promise((resolve) => setTimeout(resolve, 0)); // tokens are asked for, and sockets are opened
    hr.close();
    return Promise.all(taken.map(async (each) => (await each[Symbol.asyncIterator]().next()).done));
    """
    async with serving_also(market.hr) as url:
        before = SOCKETS._value.get()
        for _ in range(5):
            assert await node_program.evaluate(code, url) == [True, True]
        await asyncio.sleep(0.3)
        assert SOCKETS._value.get() == before


async def test_events_go_on_with_a_new_token_whatever_they_hold(
    market: Market, node_program: NodeProgram, tmp_path: Path
) -> None:
    """G10: a stream whose token ends is resumed with a new one; characters that end lines elsewhere end none here."""
    code = """
    const tokens = [...arg.tokens];
    const token = () => (tokens.length > 1 ? tokens.shift() : tokens[0]);
    const hr = new globalThis.headrace.GatewayClient(arg.url, { token, backoff: { firstMs: 10, limitMs: 50 } });
    const found = [];
    for await (const { payload } of hr.events(["renewed"])) {
      found.push(payload);
      if (found.length === 2) return [found, tokens.length];
    }
    """
    payload = "a\u2028b\u2029c\x85d\re"
    orders = market.hr.journal("orders")
    await orders.append("renewed", [Event(1, payload, tags=("renewed",))])
    issuer = new_issuer(tmp_path)
    grants = {"alice": ["read tag/*", "read topic/*"]}
    async with serving_also(market.hr, jwt=issuer.settings(), grants=grants) as url:
        tokens = [issuer.token(exp=time.time() + 1.2), issuer.token(exp=time.time() + 3600)]
        evaluating = asyncio.create_task(node_program.evaluate(code, {"url": url, "tokens": tokens}))
        await asyncio.sleep(1.5)
        await orders.append("renewed", [Event(2, "later", tags=("renewed",))])
        assert await evaluating == [[payload, "later"], 1]


async def test_what_is_wrong_with_one_request_ends_that_one_alone(market: Market, node_program: NodeProgram) -> None:
    """G11: what JSON or a path lacks is refused where it is asked for, and what can't be applied ends itself alone."""
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg, { backoff: { firstMs: 10, limitMs: 50 } });
    const balances = hr.state("accounts", "balances");
    const bystander = balances.subscribe("js-bystander")[Symbol.asyncIterator]();
    const refused = [];
    const loop = {};
    loop.loop = loop;
    const attempts = [
      () => balances.subscribe("\\ud800"), () => balances.collect({ prefix: loop }), () => balances.get(".."),
      () => balances.get(""), () => hr.journal("orders").pointer("."),
      () => hr.publish("accounts", "Deposit", { id: "\\ud800", amount: 1 }),
      () => hr.publish("accounts", "Deposit", { id: "x", amount: loop }),
      ...[NaN, Infinity, -Infinity].flatMap((amount) => [
        () => hr.publish("accounts", "Deposit", { id: "x", amount }),
        () => hr.journal("orders").append("js-wrong", [{ payload: { amount } }]),
      ]),
      ...[null, undefined, {}, new Uint8Array(2), Symbol("x"), true].flatMap((key) => [
        () => balances.put(key, { owner: "x", balance: 1 }),
        () => balances.subscribe(key),
      ]),
    ];
    for (const attempt of attempts) {
      try { await attempt(); refused.push(null); } catch (error) { refused.push(error.name); }
    }
    await bystander.next();
    const applyDelta = () => { throw new RangeError("of the program"); };
    const totals = hr.state("sums", "totals");
    const deltas = totals.subscribe("js-poison", { deltas: true, applyDelta })[Symbol.asyncIterator]();
    await deltas.next();
    await hr.publish("sums", "Add", { id: "js-poison", by: 1 });
    refused.push(await deltas.next().catch((error) => error.name));
    await hr.publish("accounts", "Deposit", { id: "js-bystander", amount: 3 });
    const { value } = await bystander.next();
    hr.close();
    return [refused, value.value.data.balance];
    """
    found = await node_program.evaluate(code, market.gateway.url)
    assert found == [["TypeError"] * 25 + ["RangeError"], 3]


async def test_a_proxy_whose_gateway_restarts_is_asked_again(node_program: NodeProgram) -> None:
    """G8: a proxy answers 502 or 504 with a page of its own: a stream goes on, and a write may have happened."""
    code = """
    const text = new TextEncoder().encode('id: 1:1\\ndata: {"payload": 7}\\n\\n');
    const page = (status) => new Response("<p>later</p>", { status });
    const answers = [page(502), page(504), new Response(text), page(504)];
    const hr = new globalThis.headrace.GatewayClient("http://localhost:1", {
      backoff: { firstMs: 1, limitMs: 5 }, fetch: async () => answers.shift(),
    });
    for await (const event of hr.events(["x"])) {
      try { await hr.journal("orders").append("a", [{ payload: 1 }]); } catch (error) {
        return [event.payload, error.status, error.isRetryable, error.outcomeKnown];
      }
    }
    """
    assert await node_program.evaluate(code, None) == [7, 504, True, False]


async def test_a_token_of_a_file_may_end_with_a_line(market: Market, node_program: NodeProgram, tmp_path: Path) -> None:
    """G10: space around a token is not part of it; a token or an address that can't be one is an error at once."""
    code = """
    const found = [];
    for (const token of [arg.token, () => arg.token]) {
      const hr = new globalThis.headrace.GatewayClient(arg.url, { token });
      const changes = hr.state("accounts", "balances").subscribe("js-line")[Symbol.asyncIterator]();
      found.push((await hr.keyspaces()).length, (await changes.next()).value.isPresent);
      hr.close();
    }
    const { GatewayClient } = globalThis.headrace;
    try { new GatewayClient(arg.url, { token: "two words" }); } catch (error) { found.push(error.name); }
    const nowhere = new GatewayClient("no address").state("accounts", "balances").subscribe("x");
    await nowhere[Symbol.asyncIterator]().next().catch((error) => found.push(error.name));
    return found;
    """
    issuer = new_issuer(tmp_path)
    async with serving_also(market.hr, jwt=issuer.settings(), grants={"alice": ["read keyspace/*"]}) as url:
        found = await node_program.evaluate(code, {"url": url, "token": f"{issuer.token()}\n"})
    assert found == [2, True, 2, True, "TypeError", "SyntaxError"]


async def test_whole_numbers_are_exact(market: Market, node_program: NodeProgram) -> None:
    """G9: numbers beyond 2**53 are written and read as they are, over HTTP and the socket, as values and in keys."""
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg);
    const lines = hr.state("accounts", "lines");
    const key = ["exact", 2n ** 60n + 1n];
    await lines.put(key, 2n ** 60n + 3n);
    const followed = (await lines.subscribe(key)[Symbol.asyncIterator]().next()).value.value;
    const collected = await lines.collect({ prefix: ["exact"] }).ready;
    const [pair] = (await lines.page(["exact"])).pairs;
    const found = [(await lines.get(key)).value, followed, collected.get(key), pair.key[1]];
    hr.close();
    return found.map(String);
    """
    found = await node_program.evaluate(code, market.gateway.url)
    assert found == [str(2**60 + 3)] * 3 + [str(2**60 + 1)]
    assert await market.accounts.get("lines", ("exact", 2**60 + 1)) == 2**60 + 3


async def test_messages_that_come_too_fast_are_sent_again(market: Market, node_program: NodeProgram) -> None:
    """G11: a message that is refused because of its sender's rate is no lost one: it is handled a little later."""
    code = """
    const hr = new globalThis.headrace.GatewayClient(arg, { backoff: { firstMs: 10, limitMs: 100 } });
    const sent = Array.from({ length: 8 }, () => hr.publish("accounts", "Deposit", { id: "js-fast", amount: 1 }));
    const replies = (await Promise.all(sent)).map((each) => each.data.balance);
    hr.close();
    return replies.sort();
    """
    async with serving_also(market.hr, requests_per_s=20, burst=3) as url:
        assert await node_program.evaluate(code, url) == list(range(1, 9))


async def test_the_types_fit_their_use_and_their_module(
    run_node: RunNode, node_program: NodeProgram, node_packages: NodePackages
) -> None:
    """G9: a program in TypeScript compiles against the types, and they declare just what the module exports."""
    compiler = node_packages.folder / "node_modules" / "typescript" / "bin" / "tsc"
    assert await run_node(compiler, "-p", str(HERE / "tsconfig.json")) == ""
    declared = re.findall(r"^export (?:class|function) (\w+)", (CLIENT / "index.d.ts").read_text(), re.MULTILINE)
    assert sorted(declared) == await node_program.evaluate("return Object.keys(globalThis.headrace).sort()")


async def test_the_client_reads_the_vectors(run_node: RunNode) -> None:
    """G6: frames, schemas, values, deltas, close codes and problems as the server's own code makes them."""
    assert await run_node(HERE / "vectors.mjs") == "ok\n"


async def test_the_program_of_the_document_runs(market: Market, node_program: NodeProgram) -> None:
    """G9: the JavaScript of docs/clients.md runs."""
    (code,) = re.findall(r"```js\n(.*?)```", (HERE.parents[1] / "docs" / "clients.md").read_text(), re.DOTALL)
    code = code.replace('import { GatewayClient } from "headrace-client";', "const { GatewayClient } = headrace;")
    code = code.replace("http://localhost:8080", market.gateway.url).replace("console.log(", "shown.push(")
    assert await node_program.evaluate(f"const shown = []; {code} return shown;") == [10, True]


async def test_the_bundle_is_what_the_source_makes(run_node: RunNode) -> None:
    """G9: the bundle for browsers in the tree is up to date; `make client` builds it."""
    assert "bytes" in await run_node(CLIENT / "build.mjs", "--check")
