"""The Python client against a running gateway, and against the vectors."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import Market, Relay, new_issuer, serving_also
from tests.clients.market import Add, free_port
from tests.gateway.market import Account, Deposit

from headrace.client import (
    CollectionSubscription,
    GatewayClient,
    KeySubscription,
    close_meaning,
    connection,
    parse_frame,
)
from headrace.client.connection import ConnectionOptions, Retries, SocketEnd
from headrace.client.requests import problem_error, server_events
from headrace.errors import BadArgument, GatewayRefused, GatewayUnavailable, NotReadable, SocketRefused
from headrace.model import Event
from headrace.runtime import Backoff
from headrace.serde import HEADER_BYTES, GenericCodec, Schema

pytestmark = [pytest.mark.asyncio(loop_scope="module")]  # all tests here share the node's loop

VECTORS = Path(__file__).parents[2] / "clients" / "vectors"
QUICK = Backoff(first_s=0.02, limit_s=0.2)


def read(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


async def recorded(source: AsyncIterator[Any], found: list[Any], shown: Callable[[Any], Any]) -> None:
    async for each in source:
        found.append(shown(each))  # noqa: PERF401 - it is read meanwhile


async def until(found: list[Any], expected: list[Any]) -> None:
    try:
        async with asyncio.timeout(40):
            while True:
                if found == expected:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert found == expected
        raise


def balance(value: Any) -> Any:
    return None if value is None else value["data"]["balance"]


def summed(total: Any, more: Any) -> Any:
    before = 0 if total is None else total["data"]["amount"]
    return {"type": "Total", "data": {"amount": before + more["data"]["by"]}}


async def test_the_client_follows_over_a_killed_gateway(market: Market) -> None:
    """G9: changes, deltas and a collection go on over a killed gateway: order kept, nothing lost and nothing twice."""
    key = "followed"
    async with GatewayClient(market.gateway.url, backoff=QUICK) as client, asyncio.TaskGroup() as tasks:
        balances, totals = client.state("accounts", "balances"), client.state("sums", "totals")
        plain: list[Any] = []
        avro: list[Any] = []
        sums: list[Any] = []
        collected: list[Any] = []
        collection = balances.collect(prefix=key, format="avro")
        following = [
            (balances.subscribe(key), plain, lambda change: balance(change.value)),
            (balances.subscribe(key, format="avro"), avro, lambda change: balance(change.value)),
            (
                totals.subscribe(key, format="avro", deltas=True, apply_delta=summed),
                sums,
                lambda change: (change.delta and change.delta["data"]["by"], change.value and change.value["data"]),
            ),
            (collection, collected, lambda change: (change.kind, balance(change.value))),
        ]
        for source, found, shown in following:
            tasks.create_task(recorded(source, found, shown))
        await collection.ready()
        for found in (plain, avro):
            await until(found, [None])
        await until(sums, [(None, None)])
        await market.accounts.ask(Deposit(key, 1))
        await market.sums.ask(Add(key, 5))
        assert balance(await client.publish("accounts", "Deposit", {"id": key, "amount": 1})) == 2
        await until(plain, [None, 1, 2])

        market.gateway.kill()
        sent = asyncio.create_task(client.publish("accounts", "Deposit", {"id": key, "amount": 1}))
        await market.accounts.ask(Deposit(key, 1))
        await market.sums.ask(Add(key, 6))
        await market.gateway.start()
        assert balance(await sent) == 4
        for found in (plain, avro):
            await until(found, [None, 1, 2, 3, 4])
        await until(sums, [(None, None), (5, {"amount": 5}), (6, {"amount": 11})])
        await until(collected, [("ready", None), *(("change", n) for n in (1, 2, 3, 4))])
        assert dict(collection.entries()) == {key: {"type": "Account", "data": {"owner": "ann", "balance": 4}}}
        for source, *_ in following:
            source.close()


async def test_a_socket_on_a_key_takes_messages(market: Market) -> None:
    """G5: framed Avro and JSON are messages to the key; a refused one ends the socket with its code."""
    async with GatewayClient(market.gateway.url, backoff=QUICK) as client:
        plain = client.key_socket("accounts", "balances", "socket", is_json=True)
        avro = client.key_socket("accounts", "balances", "socket")
        async with asyncio.timeout(20):
            for socket in (plain, avro):
                assert await anext(socket) is None
            for amount, sender in ((2, avro), (3, plain)):
                await sender.send("Deposit", {"id": "socket", "amount": amount})
                values = [await anext(socket) for socket in (plain, avro)]
                assert [balance(value) for value in values] == [amount if amount == 2 else 5] * 2
                assert values[0] == values[1]
            await plain.send("Deposit", {"id": "another", "amount": 1})
            with pytest.raises(SocketRefused, match="4400"):
                await anext(plain)
            await avro.close()
            with pytest.raises(StopAsyncIteration):
                await anext(avro)


async def test_the_client_over_http(market: Market) -> None:
    """G4, G14: values with versions, pages, messages and commands with keys, journals, and events by tag."""
    async with GatewayClient(market.gateway.url) as client:
        balances, lines = client.state("accounts", "balances"), client.state("accounts", "lines")
        assert await balances.get("h/ü") is None
        await balances.put("h/ü", {"owner": "zoe", "balance": 1}, version="none")
        found = await balances.get("h/ü")
        assert found is not None
        assert balance(found.value) == 1
        await balances.put("h/ü", {"owner": "zoe", "balance": 2}, version=found.version)
        with pytest.raises(GatewayRefused, match="412"):
            await balances.put("h/ü", {"owner": "zoe"}, version=found.version)
        assert len(await balances.find("owner", "zoe")) == 1
        await balances.delete("h/ü")
        for number in (1, 2, 3):
            await lines.put(("h", number), number)
        page = await lines.page(["h"], limit=2)
        assert (len(page["pairs"]), page["next"]) == (2, ["h", 2])
        assert await lines.count() == 3
        collected = await lines.collect(prefix=["h"], start=["h", 2]).ready()
        assert list(collected.entries()) == [(["h", 2], 2), (["h", 3], 3)]
        with pytest.raises(GatewayRefused, match="not negative"):
            await client.send("accounts", "Deposit", {"id": "h", "amount": -1})
        with pytest.raises(GatewayRefused, match="not negative"):
            await client.publish("accounts", "Deposit", {"id": "h", "amount": -1})
        with pytest.raises(SocketRefused, match="1009"):
            await client.publish("accounts", "Deposit", {"id": "x" * (1 << 21), "amount": 1})
        with pytest.raises(GatewayRefused, match="404"):
            await anext(client.state("accounts", "nothing").subscribe("h"))
        purses, orders = client.engine("purses"), client.journal("orders")
        assert await purses.get("h") is None
        paid = [await purses.command("h", "Pay", {"coins": 3}, idempotency_key="h-1") for _ in range(2)]
        assert [(each["version"], each["is_repeated"]) for each in paid] == [(1, False), (1, True)]
        await orders.append("h", [{"payload": {"n": 1}, "tags": ["h"]}], expected=0, idempotency_key="h-1")
        events = client.events(["h"])
        assert (await anext(events))["payload"] == {"n": 1}
        await orders.append("h", [{"payload": {"n": 2}, "tags": ["h"]}])
        assert (await anext(events))["payload"] == {"n": 2}
        await events.aclose()  # type: ignore[attr-defined]
        assert len((await client.event_page(["h"]))["events"]) == 2
        assert await orders.pointer("none") is None
        assert [each["payload"]["n"] for each in (await orders.read("h"))["events"]] == [1, 2]
        assert [each["name"] for each in await client.keyspaces()] == ["accounts", "sums"]


async def test_tokens_are_renewed_and_refusals_are_final(market: Market, tmp_path: Path) -> None:
    """G10: a socket whose token ends is opened again with a new one, without a gap; what is forbidden stays so."""
    issuer = new_issuer(tmp_path)
    codes: set[int | None] = set()
    closed = asyncio.Event()

    def on_status(status: str, code: int | None) -> None:
        if status == "waiting":
            codes.add(code)
            closed.set()

    async with serving_also(market.hr, jwt=issuer.settings(), grants={"alice": ["read keyspace/accounts"]}) as url:
        tokens = [issuer.token(exp=time.time() + 3600), issuer.token(exp=time.time() + 1.2)]

        async def token() -> str:
            return tokens.pop() if len(tokens) > 1 else tokens[0]

        async with GatewayClient(url, token=token, backoff=QUICK, on_status=on_status) as client:
            changes = client.state("accounts", "balances").subscribe("renewed")
            assert (await anext(changes)).value is None
            with pytest.raises(GatewayRefused, match="403"):
                await anext(client.state("sums", "totals").subscribe("x"))
            with pytest.raises(GatewayRefused, match="403"):
                await client.publish("accounts", "Deposit", {"id": "renewed", "amount": 1})
            async with asyncio.timeout(20):
                await closed.wait()
            await market.accounts.put("balances", "renewed", Account("ann", 1))
            assert balance((await anext(changes)).value) == 1
            assert codes <= {4401, 1006}  # the latter if the token had ended before the socket was open
        async with GatewayClient(url, token=issuer.token(exp=time.time() - 60), backoff=QUICK) as client:
            with pytest.raises(GatewayRefused, match="401"):
                await anext(client.state("accounts", "balances").subscribe("renewed"))


async def test_what_is_wrong_with_one_request_ends_that_one_alone(market: Market) -> None:
    """G11: a message or key that JSON lacks, a wrong type, or a delta that can't be applied: other keys go on."""

    def unusable(total: Any, more: Any) -> Any:
        raise LookupError("of the program")

    async with GatewayClient(market.gateway.url, backoff=QUICK) as client, asyncio.timeout(20):
        balances = client.state("accounts", "balances")
        bystander = balances.subscribe("bystander")
        for amount in (float("nan"), object(), "\ud800"):
            with pytest.raises(BadArgument, match="JSON"):
                await client.publish("accounts", "Deposit", {"id": "x", "amount": amount})
        assert (await anext(bystander)).value is None
        with pytest.raises(BadArgument, match="JSON"):
            balances.subscribe("\ud800")
        with pytest.raises(BadArgument, match="after"):
            balances.subscribe("x", after=5)  # type: ignore[arg-type]
        with pytest.raises(GatewayRefused, match="400"):
            await anext(client.state("accounts", 7).subscribe("x"))  # type: ignore[arg-type]
        with pytest.raises(GatewayRefused, match="400"):
            await client.publish("accounts", 7, {})  # type: ignore[arg-type]
        deltas = client.state("sums", "totals").subscribe("poison", deltas=True, apply_delta=unusable)
        await anext(deltas)
        for _ in range(3):
            await market.sums.ask(Add("poison", 1))
        with pytest.raises(LookupError, match="of the program"):
            await anext(deltas)
        await market.accounts.ask(Deposit("bystander", 3))
        assert balance((await anext(bystander)).value) == 3


async def test_a_place_that_the_log_has_not_come_to_is_a_gap(market: Market) -> None:
    """G13: after an offset beyond the log's end, as of a log that was restored, the present value comes as lagged."""
    async with GatewayClient(market.gateway.url, backoff=QUICK) as client, asyncio.timeout(20):
        balances = client.state("accounts", "balances")
        topic_id, _, offset = (await anext(balances.subscribe("beyond"))).offset.rpartition(":")
        changes = balances.subscribe("beyond", after=f"{topic_id}:{int(offset) + 1000}")
        first = await anext(changes)
        assert (first.value, first.is_lagged, first.is_present) == (None, True, True)
        await market.accounts.ask(Deposit("beyond", 3))
        assert balance((await anext(changes)).value) == 3
        with pytest.raises(GatewayRefused, match="400"):
            await anext(balances.subscribe("beyond", after=f"{topic_id}:{'9' * 5000}"))


async def test_messages_that_come_too_fast_are_sent_again(market: Market) -> None:
    """G11: a message that is refused because of its sender's rate is no lost one: it is handled a little later."""
    async with (
        asyncio.timeout(20),
        serving_also(market.hr, requests_per_s=20, burst=3) as url,
        GatewayClient(url, backoff=QUICK) as client,
    ):
        sent = [client.publish("accounts", "Deposit", {"id": "fast", "amount": 1}) for _ in range(8)]
        assert sorted(balance(reply) for reply in await asyncio.gather(*sent)) == list(range(1, 9))


async def test_a_caller_without_a_grant_for_schemas_reads_deltas(market: Market, tmp_path: Path) -> None:
    """G10: who may read a keyspace may ask for the schemas of its values and of its deltas."""
    issuer = new_issuer(tmp_path)
    async with (
        asyncio.timeout(20),
        serving_also(market.hr, jwt=issuer.settings(), grants={"alice": ["read keyspace/sums"]}) as url,
        GatewayClient(url, token=issuer.token(), backoff=QUICK) as client,
    ):
        changes = client.state("sums", "totals").subscribe("granted", format="avro", deltas=True)
        assert (await anext(changes)).value is None
        await market.sums.ask(Add("granted", 4))
        assert (await anext(changes)).delta["data"] == {"by": 4}


async def test_events_go_on_with_a_new_token_whatever_they_hold(market: Market, tmp_path: Path) -> None:
    """G10: a stream whose token ends is resumed with a new one; characters that end lines elsewhere end none here."""
    issuer = new_issuer(tmp_path)
    lifetimes, has_renewed = [3600.0, 1.2], asyncio.Event()

    def token() -> str:
        if len(lifetimes) == 1:
            has_renewed.set()
        return issuer.token(exp=time.time() + (lifetimes.pop() if len(lifetimes) > 1 else lifetimes[0]))

    payload = "a\u2028b\u2029c\x85d\re\x0bf"
    orders = market.hr.journal("orders")
    await orders.append("lines", [Event(1, payload, tags=("lines",))])
    grants = {"alice": ["read tag/*", "read topic/*"]}
    async with serving_also(market.hr, jwt=issuer.settings(), grants=grants) as url, asyncio.timeout(20):
        async with GatewayClient(url, token=token, backoff=QUICK) as client:
            events = client.events(["lines"])
            assert (await anext(events))["payload"] == payload
            later = asyncio.ensure_future(anext(events))
            await has_renewed.wait()
            await orders.append("lines", [Event(2, "later", tags=("lines",))])
            assert (await later)["payload"] == "later"
            await events.aclose()  # type: ignore[attr-defined]
        async with GatewayClient(url, token="wrong", backoff=QUICK) as client:
            with pytest.raises(GatewayRefused, match="401"):
                await anext(client.events(["lines"]))


async def test_tokens_that_were_refused_are_counted_alone() -> None:
    """G10: however long the gateway was away, three tokens of a function may be refused before that is an error."""

    async def refused() -> GatewayRefused:
        return GatewayRefused(401, "expired", {})

    async def token() -> str:
        return "t"

    options = ConnectionOptions("ws://x", token, True, refused, problem_error, QUICK, None)
    retries = Retries(Backoff(first_s=0, limit_s=0))
    for _ in range(20):
        await retries.wait(0.0)
    ended = SocketEnd(False, 1006, "")
    found = [await options.refusal(ended, retries) for _ in range(4)]
    assert [each is None for each in found] == [True, True, True, False]


async def test_a_socket_that_is_lost_at_once_is_waited_for_longer() -> None:
    """G9: pauses double also where the gateway takes each connection and drops it; a longer life begins anew."""
    waited: list[float] = []
    retries = Retries(Backoff(first_s=0.001, limit_s=1, jitter=0))
    for open_s in (5.0, 0.0005, 0.0005, 0.0005, 30.0):
        await retries.wait(open_s)
        waited.append(retries._delay_s * 1000)
    assert waited == [1, 2, 4, 8, 1]


async def test_a_stream_without_a_sign_of_life_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8: a connection whose other end is gone without a word is not waited for."""
    monkeypatch.setattr("headrace.client.requests._SILENCE_S", 0.05)
    opened = asyncio.Queue[bool]()
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: alive\n\n")
        opened.put_nowait(True)
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with GatewayClient(f"http://{host}:{port}", backoff=QUICK) as client, asyncio.timeout(20):
        reading = asyncio.ensure_future(anext(client.events(["x"])))
        assert [await opened.get() for _ in range(2)] == [True, True]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    gone.set()
    server.close()


async def test_a_gateway_that_can_not_be_reached_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """G9: a wrong address or certificate is not tried forever without a word, nor with one at each attempt."""
    waited = asyncio.Queue[str]()
    url = f"http://127.0.0.1:{free_port()}"
    with caplog.at_level("WARNING"):
        async with (
            asyncio.timeout(20),
            GatewayClient(url, backoff=QUICK, on_status=lambda status, code: waited.put_nowait(status)) as client,
        ):
            client.state("accounts", "balances").subscribe("x")
            assert [await waited.get() for _ in range(4)] == ["waiting"] * 4
    assert sum("no socket to the gateway" in each.getMessage() for each in caplog.records) == 1


async def test_a_token_of_a_file_may_end_with_a_line(market: Market, tmp_path: Path) -> None:
    """G10: space around a token is not part of it; one that no header can carry is refused at once, and not shown."""
    issuer = new_issuer(tmp_path)
    async with serving_also(market.hr, jwt=issuer.settings(), grants={"alice": ["read keyspace/*"]}) as url:
        for token in (f"{issuer.token()}\n", lambda: f"{issuer.token()}\n"):
            async with asyncio.timeout(20), GatewayClient(url, token=token, backoff=QUICK) as client:
                assert len(await client.keyspaces()) == 2
                assert (await anext(client.state("accounts", "balances").subscribe("line"))).is_present
    with pytest.raises(BadArgument, match="token") as refused:
        GatewayClient("http://localhost", token="two words")
    assert "words" not in str(refused.value)
    with pytest.raises(BadArgument, match="url"):
        GatewayClient("localhost:8080")
    with pytest.raises(BadArgument, match="url"):
        GatewayClient(None)  # type: ignore[arg-type]


async def test_names_of_dots_lead_to_themselves(market: Market) -> None:
    """G4: a key or an id of dots alone is that key, not the way to another one; an empty one is refused here."""
    async with GatewayClient(market.gateway.url) as client:
        balances, orders = client.state("accounts", "balances"), client.journal("orders")
        await orders.append("pointer", [{"payload": "of the journal with this name"}])
        for key in (".", "..", "..."):
            await balances.put(key, {"owner": "dot", "balance": len(key)})
            found = await balances.get(key)
            assert found is not None
            assert balance(found.value) == len(key)
            assert await orders.pointer(key) is None
        for key in ("", "\ud800"):
            with pytest.raises(BadArgument):
                await balances.get(key)


async def test_a_request_that_can_not_mean_what_it_says_is_refused_here(market: Market) -> None:
    """G11: what JSON, a path or a header lacks is BadArgument, is not sent, and never passes for something else."""
    wrong: list[Any] = [float("nan"), float("inf"), object(), {1}, "\ud800"]
    async with GatewayClient(market.gateway.url) as client:
        balances, orders, purses = (
            client.state("accounts", "balances"),
            client.journal("orders"),
            client.engine("purses"),
        )
        for value in wrong:
            with pytest.raises(BadArgument, match="JSON"):
                await balances.put("w", {"owner": "ann", "balance": value})
            with pytest.raises(BadArgument, match="JSON"):
                await orders.append("w", [{"payload": value}])
            with pytest.raises(BadArgument, match="JSON"):
                await purses.command("w", "Pay", {"coins": value})
            with pytest.raises(BadArgument, match="JSON"):
                await client.send("accounts", "Deposit", {"id": "w", "amount": value})
        before = await balances.count()
        keys: list[Any] = [b"w", bytearray(b"w"), None, {"w": 1}, {"w"}, True, ("w", float("nan"))]
        for key in keys:
            with pytest.raises(BadArgument, match="key"):
                await balances.put(key, {"owner": "ann", "balance": 1})
            with pytest.raises(BadArgument, match="key"):
                await balances.delete(key)
            with pytest.raises(BadArgument, match="key"):
                balances.subscribe(key)
        assert await balances.count() == before
        ids: list[Any] = ["é", "a\nb", "", " a", 5, b"a"]
        for id_ in ids:
            with pytest.raises(BadArgument, match="idempotency_key"):
                await orders.append("w", [{"payload": 1}], expected=0, idempotency_key=id_)
            with pytest.raises(BadArgument, match="idempotency_key"):
                await purses.command("w", "Pay", {"coins": 1}, idempotency_key=id_)
            with pytest.raises(BadArgument, match="idempotency_key"):
                await client.send("accounts", "Deposit", {"id": "w", "amount": 1}, idempotency_key=id_)
        assert await orders.pointer("w") is None
        assert await purses.get("w") is None


async def test_a_text_is_one_tag_and_not_its_letters(market: Market) -> None:
    """G11: a program that gives one tag as text gets the events of that tag."""
    async with GatewayClient(market.gateway.url) as client, asyncio.timeout(20):
        await client.journal("orders").append("one-tag", [{"payload": 1, "tags": ["rare"]}])
        assert len((await client.event_page("rare"))["events"]) == 1
        assert (await anext(client.events("rare")))["payload"] == 1


async def test_a_proxy_whose_gateway_restarts_is_asked_again() -> None:
    """G8: a proxy answers 502 or 504 with a page of its own: a stream goes on, and a write may have happened."""
    page = b"HTTP/1.1 %d x\r\ncontent-type: text/html\r\ncontent-length: 12\r\nconnection: close\r\n\r\n<p>later</p>"
    stream = b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nid: 1:1\ndata: {"payload": 7}\n\n'
    answers = [page % 502, page % 504, stream, page % 504, page % 502]

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with GatewayClient(f"http://{host}:{port}", backoff=QUICK) as client, asyncio.timeout(20):
        assert (await anext(client.events(["x"])))["payload"] == 7
        with pytest.raises(GatewayUnavailable, match="504") as failed:
            await client.journal("orders").append("a", [{"payload": 1}])
        assert not failed.value.outcome_known
        with pytest.raises(GatewayUnavailable, match="502"):
            await client.keyspaces()
    server.close()


async def test_the_client_reads_the_vectors() -> None:
    """G6: frames, values, deltas, close codes and problems as the server's own code makes them."""
    frames = read("frames")
    codecs = {int(number): GenericCodec(Schema(text)) for number, text in frames["schemas"].items()}
    for kind, each in [("push", each) for each in frames["pushes"]] + [("pair", each) for each in frames["pairs"]]:
        data = bytes.fromhex(each["frame"])
        frame = parse_frame(data)
        codec = None if frame.schema_id is None else codecs[frame.schema_id]
        value = None if codec is None else codec.to_json(codec.decode(frame.framed, start=HEADER_BYTES))
        assert (frame.kind, frame.id, frame.offset, value) == (
            kind,
            each["id"],
            each["offset"],
            each["delta"] if frame.is_delta else each["value"],
        )
        assert [name for name in ("is_lagged", "is_present", "is_expiry") if getattr(frame, name)] == each["flags"]
        if kind == "pair":
            assert (frame.partition, frame.key) == (each["partition"], each["key"])
        for end in range(1, 8):
            with pytest.raises(NotReadable):
                parse_frame(data[:end])
    for each in frames["schema_frames"]:
        schema = parse_frame(bytes.fromhex(each["frame"]))
        assert (schema.kind, schema.schema_id, schema.framed.decode()) == ("schema", each["id"], each["schema"])
    for each in read("values"):
        codec = GenericCodec(Schema(each["schema"]))
        assert codec.to_json(codec.decode(bytes.fromhex(each["avro"]))) == each["json"]
    for each in read("closes")["closes"]:
        assert tuple(close_meaning(each["code"])) == (each["action"], each["status"])
    for each in read("closes")["problems"]:
        error = problem_error(each["problem"])
        assert isinstance(error, GatewayUnavailable) == each["is_retryable"]
        assert getattr(error, "outcome_known", True) == each["outcome_known"]


@pytest.mark.parametrize("history", read("collections"), ids=lambda each: each["about"].replace(" ", "-"))
async def test_a_collection_is_what_its_frames_make(history: dict[str, Any]) -> None:
    """G6: snapshots, gaps, cut-off snapshots and resizes: what the reader is told, and what the collection holds."""
    collection = CollectionSubscription(1, {}, lambda number: None, apply_delta=None, limit=100)
    for step in history["steps"]:
        if step == "lost":
            collection.disconnected()
        else:
            collection.take(step)
    collection.close()
    told = [[each.key, each.value] if each.kind == "change" else each.kind async for each in collection]
    assert told == history["changes"]
    assert dict(collection.entries()) == history["entries"]
    assert collection.request()["after"] == history["after"]


async def test_a_slow_reader_gets_the_newest_value() -> None:
    """G7: more changes than may wait become the newest one, marked as lagged; a collection says to read it again."""
    changes = KeySubscription(1, {}, lambda number: None, after=None, apply_delta=None, limit=2)
    for number in range(1, 5):
        changes.take({"op": "value", "id": 1, "offset": f"t:{number}", "value": number})
    changes.close()
    assert [(each.value, each.is_lagged) async for each in changes] == [(3, True), (4, False)]
    assert changes.request()["after"] == "t:4"
    sums = KeySubscription(1, {}, lambda number: None, after=None, apply_delta=summed, limit=2)
    for number in range(1, 5):
        sums.take({"op": "value", "id": 1, "offset": f"t:{number}", "delta": {"type": "Increment", "data": {"by": 1}}})
    sums.close()
    found = [(each.value["data"]["amount"], each.delta is None, each.is_lagged) async for each in sums]
    assert found == [(3, True, True), (4, False, False)]
    collection = CollectionSubscription(1, {}, lambda number: None, apply_delta=None, limit=1)
    frame = {"id": 1, "partitions": [0], "partition": 0, "offset": "t:1", "pairs": [{"key": "a", "value": 1}]}
    for op in ("begin", "reset", "pairs", "ready"):
        collection.take({**frame, "op": op})
    assert (await anext(collection)).kind == "lagged"
    assert collection.get("a") == 1


async def test_server_sent_events_are_parsed() -> None:
    """G4: comments are left out, lines of data are joined, and a cut-off event is none."""

    async def lines() -> AsyncIterator[str]:
        for line in (": alive", "", "id: 7", "event: x", "data: {", "data: ü}", "", "data:a", "", "id: 8", "data: cut"):
            yield line

    assert [each async for each in server_events(lines())] == [
        {"id": "7", "event": "x", "data": "{\nü}"},
        {"id": "", "event": "message", "data": "a"},
    ]


async def test_the_program_of_the_document_runs(tmp_path: Path) -> None:
    """G9: the Python of docs/clients.md ends well and prints what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", (VECTORS.parents[1] / "docs" / "clients.md").read_text(), re.DOTALL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert output.decode().splitlines() == [
        "{'type': 'Account', 'data': {'balance': 10}}",
        "{'balance': 10} True",
        "acc-1 {'balance': 10}",
    ]


async def test_a_connection_that_ended_without_a_word_is_opened_again(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8: where nothing comes through any more, the client notices and resumes, on both kinds of sockets."""
    monkeypatch.setattr(connection, "_SILENCE_S", 0.3)
    started_s = time.monotonic()
    changes: list[Any] = []
    values: list[Any] = []
    async with serving_also(market.hr) as url, Relay(url) as relay, GatewayClient(relay.url, backoff=QUICK) as client:
        balances = client.state("accounts", "balances")
        socket = client.key_socket("accounts", "balances", "py-silent")
        tasks = [
            asyncio.create_task(recorded(balances.subscribe("py-silent"), changes, lambda each: balance(each.value))),
            asyncio.create_task(recorded(socket, values, balance)),
        ]
        await until(changes, [None])
        await until(values, [None])
        relay.silence()
        await market.accounts.put("balances", "py-silent", Account("ann", 1))
        await until(changes, [None, 1])
        await until(values, [None, 1])
        assert time.monotonic() - started_s < 9  # nobody waits for the other end to say that it has ended
        await socket.close()
        assert not client._sockets  # a client that lives long keeps no socket that has ended
        for task in tasks:
            task.cancel()
