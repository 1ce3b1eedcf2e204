"""The server: what clients may do to a connection, and that nobody else suffers from it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from prometheus_client import REGISTRY
from tests.gateway.conftest import Serve
from tests.secured.authority import Authority

from headrace import Event
from headrace.app import Headrace
from headrace.errors import KeysUnusable, ListenFailed
from headrace.gateway import CALLER, RunningGateway
from headrace.gateway.server import GuardedProtocol
from headrace.testing.conformance.log_setting import eventually

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def refused(reason: str) -> float:
    return REGISTRY.get_sample_value("headrace_gateway_refused_total", {"reason": reason}) or 0.0


def open_connections() -> float:
    return REGISTRY.get_sample_value("headrace_gateway_open_connections") or 0.0


async def all_closed() -> bool:
    return open_connections() == 0


@contextlib.asynccontextmanager
async def connected(gateway: RunningGateway) -> AsyncIterator[Stream]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Return the status and the problem of an answer, after which the server closes the connection."""
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def is_alive(gateway: RunningGateway) -> bool:
    async with httpx.AsyncClient(timeout=20) as client:
        return (await client.get(f"{gateway.url}/health/live")).status_code == 200


async def test_headers_that_come_too_slowly_end_the_connection(serve: Serve) -> None:
    """G11: slow-loris: a head that is not complete in time is refused and counted; others are answered meanwhile."""
    before = refused("slow_headers")
    async with serve(header_timeout_s=0.3) as gateway, connected(gateway) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(30):
            while not ended.done():
                assert await is_alive(gateway)
                writer.write(b"x")
        with contextlib.suppress(ConnectionError):  # a byte that came after the end resets the connection
            assert (await ended).startswith(b"HTTP/1.1 408 ")
    assert refused("slow_headers") == before + 1


async def test_a_connection_without_a_request_is_closed(serve: Serve) -> None:
    """G11: a client that says nothing holds no connection."""
    async with serve(header_timeout_s=0.05) as gateway, connected(gateway) as (reader, _):
        async with asyncio.timeout(20):
            assert await reader.read() == b""


@pytest.mark.parametrize("is_whole", [True, False])
async def test_headers_that_are_too_large_are_refused(serve: Serve, is_whole: bool) -> None:
    """G11: 431, whether the head ends or not; a head of the largest size is answered."""
    async with serve(max_header_bytes=20_000) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 30_000)
            writer.write(b"\r\n\r\n" if is_whole else b"")
            assert (await answer_of(reader))[0] == 431
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{gateway.url}/health/live", headers={"x": "x" * 15_000})
        assert answer.status_code == 200


async def test_what_is_no_http_is_refused(serve: Serve) -> None:
    """G11: malformed requests get a problem, are counted, and end with their connection."""
    wrong = [
        b"\0\1\2\3\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
    before = refused("malformed")
    async with serve() as gateway:
        for request in wrong:
            async with connected(gateway) as (reader, writer):
                writer.write(request)
                status, problem = await answer_of(reader)
                assert (status, problem["status"]) == (400, 400), request
        assert await is_alive(gateway)
    assert refused("malformed") == before + len(wrong)


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nhost: evil\r\n"])
async def test_a_request_has_one_host(serve: Serve, hosts: str) -> None:
    """G11: a request of HTTP/1.1 without a Host, or with two, is refused, also where any name would do (RFC 9112)."""
    signatures = {"secrets": {"k": "A" * 44}}
    async with serve(signatures=signatures) as gateway, connected(gateway) as (reader, writer):
        writer.write(f"GET /health/live HTTP/1.1\r\n{hosts}\r\n".encode())
        status, problem = await answer_of(reader)
        assert (status, problem["detail"]) == (400, "a request of HTTP/1.1 has one header Host")
    async with serve(signatures=signatures) as gateway, connected(gateway) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")  # HTTP/1.0 has no such header


async def test_headers_behind_a_body_say_nothing(serve: Serve) -> None:
    """G11: what stands behind a body in chunks is no header of the request, and there may not be much of it."""
    chunked = b"POST /journals/accounts/t HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    body = b'1a\r\n{"events":[{"payload":1}]}\r\n0\r\n'
    async with serve(max_header_bytes=2048) as gateway:
        async with connected(gateway) as (reader, writer):
            writer.write(chunked + b"connection: close\r\n\r\n" + body)
            writer.write(b"authorization: Bearer of-another\r\nx-request-id: late\r\n\r\n")
            async with asyncio.timeout(20):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 201")
            assert b"late" not in answer
        for endless in (b"x: y\r\n", b"y"):
            async with connected(gateway) as (reader, writer):
                writer.write(chunked + b"\r\n" + body + b"x-more: ")
                await asyncio.sleep(0.01)
                with contextlib.suppress(ConnectionError):
                    for _ in range(20):
                        writer.write(endless * 500)
                        await writer.drain()
                        await asyncio.sleep(0.001)
                    assert (await answer_of(reader))[0] == 431
        assert await is_alive(gateway)


async def test_a_body_in_small_chunks_is_taken(serve: Serve) -> None:
    """G11: what stands around the bytes of a body is bounded, but a body may come in small chunks."""
    head = b"POST /journals/accounts/small HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    body = b'{"events":[{"payload":"' + b"x" * 2000 + b'"}]}'
    async with serve(max_header_bytes=2048) as gateway, connected(gateway) as (reader, writer):
        writer.write(head + b"connection: close\r\n\r\n")
        for byte in body:
            writer.write(b"0001\r\n" + bytes([byte]) + b"\r\n")
        writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 201")


async def test_empty_lines_do_not_keep_a_connection(serve: Serve) -> None:
    """G11: behind an answer, a head that consists of empty lines has no more time than others."""
    async with serve(header_timeout_s=0.2) as gateway, connected(gateway) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"up")
        writer.write(b"\r\n")
        async with asyncio.timeout(3):
            assert b"408" in await reader.read()


async def test_a_body_that_comes_too_slowly_meets_the_deadline(serve: Serve) -> None:
    """G3, G11: 503 when the deadline passes while the body is on its way; then the connection is closed."""
    async with serve(request_timeout_s=0.1) as gateway, connected(gateway) as (reader, writer):
        writer.write(b"POST /journals/accounts/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        status, problem = await answer_of(reader)
        assert (status, problem["outcome_known"]) == (503, True)


async def test_bodies_that_come_slowly_take_nobodys_place(serve: Serve) -> None:
    """G11: a request is in flight when its body has come; those who dawdle do not keep others out."""
    # The slow ones leave first: the gateway would wait for them when it ends.
    async with serve(max_requests_in_flight=1) as gateway, contextlib.AsyncExitStack() as slow:
        for path in ("/journals/accounts/a", "/journals/accounts/b"):
            _, writer = await slow.enter_async_context(connected(gateway))
            writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode())
            await writer.drain()
        for _ in range(3):
            assert await is_alive(gateway)


async def test_half_closed_and_abandoned_connections_harm_nobody(serve: Serve) -> None:
    """G11: clients that leave in the middle of a request leave nothing behind."""
    parts = (b"", b"GET / HT", b"POST /journals/accounts/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
    async with serve() as gateway:
        for part in parts:
            for is_half in (True, False):
                async with connected(gateway) as (_, writer):
                    writer.write(part)
                    await writer.drain()
                    if is_half:
                        writer.write_eof()
        assert await is_alive(gateway)
    assert open_connections() == 0


LIVE = b"GET /journals/accounts/a?live=true HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n"


def open_streams() -> float:
    return REGISTRY.get_sample_value("headrace_gateway_open_streams") or 0.0


async def no_streams() -> bool:
    return open_streams() == 0


async def test_a_stream_ends_with_its_connection_whatever_waits_behind_it(serve: Serve) -> None:
    """G11: a request that was sent behind a stream was told that the client has left, and the stream was not.

    It kept its place among the streams until the gateway stopped.
    """
    async with serve(heartbeat_s=0.05, max_streams_per_caller=3) as gateway:
        for _ in range(4):
            async with connected(gateway) as (reader, writer):
                writer.write(LIVE + LIVE + b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                assert open_streams() == 1
            await eventually(no_streams)
        assert await is_alive(gateway)


async def test_a_websocket_is_not_opened_in_the_middle_of_an_answer(serve: Serve) -> None:
    """G11: frames and a stream were mixed on one connection, and the stream went on when that was gone."""
    upgrade = (
        b"GET /socket HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-protocol: headrace.v1\r\n\r\n"
    )
    before = refused("malformed")
    async with serve(heartbeat_s=0.05) as gateway:
        async with asyncio.timeout(20), connected(gateway) as (reader, writer):
            writer.write(LIVE)
            begun = await reader.readuntil(b"\r\n\r\n")
            writer.write(upgrade)
            assert b"101 Switching" not in begun + await reader.read()
        await eventually(no_streams)
        async with asyncio.timeout(20), connected(gateway) as (reader, writer):
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await reader.readuntil(b'{"state":"up"}')
            writer.write(upgrade)
            assert (await reader.readline()).startswith(b"HTTP/1.1 101 "), "behind an answer it is"
    assert refused("malformed") == before + 1


async def test_a_client_of_http_1_0_gets_no_chunks(serve: Serve, hr: Headrace) -> None:
    """RFC 9112, 6.1: it would take the lengths of chunks for lines of the body, whose end is the connection's."""
    await hr.journal("accounts").append("a", [Event(1, "x"), Event(2, "y")])
    async with serve() as gateway:
        for query in ("", "?live=true&to=2"):
            async with connected(gateway) as (reader, writer):
                head = (
                    f"GET /journals/accounts/a{query} HTTP/1.0\r\nhost: localhost\r\naccept: application/x-ndjson\r\n"
                )
                writer.write(f"{head}\r\n".encode())
                async with asyncio.timeout(20):
                    answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in answer
            assert b"connection: close" in answer
            assert [json.loads(line)["payload"] for line in body.split(b"\n") if line] == ["x", "y"]


async def test_a_stream_that_is_broken_off_is_no_error_of_the_application(
    serve: Serve, hr: Headrace, caplog: pytest.LogCaptureFixture
) -> None:
    """A purge ends each of its followers; the server logged an error for each. The answer still has no end."""
    await hr.journal("accounts").append("a", [Event(1, "x")])
    async with serve() as gateway, connected(gateway) as (reader, writer):
        writer.write(LIVE)
        async with asyncio.timeout(20):
            await reader.readuntil(b'"x"')
            await hr.journal("accounts").purge("a")
            rest = await reader.read()
    assert b'"status":410' in rest
    assert not rest.endswith(b"0\r\n\r\n"), "it must not look complete"
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_too_many_connections_of_one_address_are_refused(serve: Serve) -> None:
    """G11: further connections are closed at once, and accepted again when others have gone."""
    before = refused("connections")
    async with serve(max_connections_per_address=2) as gateway:
        async with connected(gateway) as (reader, writer), connected(gateway):
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            async with connected(gateway) as (third, _), asyncio.timeout(20):
                with contextlib.suppress(ConnectionResetError):  # an orderly end is as good
                    assert await third.read() == b""
            assert refused("connections") == before + 1
        await eventually(all_closed)
        assert await is_alive(gateway)


async def test_a_client_that_does_not_read_is_cut(serve: Serve) -> None:
    """G7, G11: an answer that nobody takes ends after a while; its memory is bounded, and others are not slowed."""
    ended, sent = asyncio.Event(), 0

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(receive_all(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
            await asyncio.sleep(0)
        ended.set()

    async def receive_all(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    before = refused("slow_client")
    async with serve(beside=endless, slow_client_s=0.2) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                await ended.wait()
                assert await is_alive(gateway)
    assert refused("slow_client") == before + 1
    assert sent < 1000


async def test_the_gateway_speaks_tls(serve: Serve, tmp_path: Path) -> None:
    """G10: with a certificate only TLS is spoken; with an authority for clients, strangers are refused."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    tls = {"certificate_location": str(certificate), "key_location": str(key)}
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    async with serve(tls=tls) as gateway:
        assert gateway.url.startswith("https://")
        async with httpx.AsyncClient(verify=trusting) as asked:
            assert (await asked.get(f"{gateway.url}/health/live")).status_code == 200
    async with serve(tls={**tls, "ca_location": str(authority.ca)}) as gateway:
        async with httpx.AsyncClient(verify=trusting) as stranger:
            with pytest.raises(httpx.TransportError):
                await stranger.get(f"{gateway.url}/health/live")
        trusting.load_cert_chain(*authority.issue("client"))
        async with httpx.AsyncClient(verify=trusting) as known:
            assert (await known.get(f"{gateway.url}/health/live")).status_code == 200


async def test_a_handshake_of_tls_has_no_longer_than_headers(serve: Serve, tmp_path: Path) -> None:
    """G11: a client that connects and says nothing, or speaks no TLS, is left alone after a while; others go on."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    tls = {"certificate_location": str(certificate), "key_location": str(key)}
    async with serve(tls=tls, header_timeout_s=0.3) as gateway:
        for said in (b"", b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"):
            host, port = gateway.url.removeprefix("https://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP" not in await reader.read()
            writer.close()
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        async with httpx.AsyncClient(verify=trusting) as asked:
            assert (await asked.get(f"{gateway.url}/health/live")).status_code == 200


async def test_a_certificate_that_can_not_be_used_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    """G10: a missing or broken certificate is an error at the start, never plain HTTP."""
    (tmp_path / "broken.pem").write_text("no certificate")
    for file in ("broken.pem", "missing.pem"):
        with pytest.raises(KeysUnusable, match=rf"gateway\.tls.*{file}"):
            async with serve(tls={"certificate_location": str(tmp_path / file)}):
                pass


async def test_a_port_in_use_is_an_error_that_names_it(serve: Serve) -> None:
    """The gateway says where it can't listen, and what to set."""
    async with serve() as gateway:
        listen = gateway.url.removeprefix("http://")
        with pytest.raises(ListenFailed, match=r"gateway\.listen"):
            async with serve(listen=listen):
                pass
        assert await is_alive(gateway)


async def test_answers_do_not_wait_for_acknowledgements(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm is off on every connection: an answer in two parts is not held back for 40 ms."""
    seen: list[int] = []
    made = GuardedProtocol.connection_made

    def connection_made(self: GuardedProtocol, transport: asyncio.Transport) -> None:
        seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(self, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)
    async with serve() as gateway:
        assert await is_alive(gateway)
    assert seen
    assert all(seen)


async def test_websockets_of_the_application_are_guarded_too(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """G4, G10: a WebSocket of the application gets its caller; one of a page of another origin is refused."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": scope[CALLER].subject})
        await send({"type": "websocket.close"})

    async with serve(beside=echo) as gateway:
        url = gateway.url.replace("http", "ws") + "/echo"
        async with websockets.connect(url, origin=gateway.url) as opened:
            assert await opened.recv() == "anonymous"
        with pytest.raises(websockets.InvalidStatus) as answered:
            await websockets.connect(url, origin="https://evil.example")
        assert answered.value.response.status_code == 403
        await eventually(all_closed)
    async with serve() as gateway:
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(gateway.url.replace("http", "ws") + "/echo")
        await eventually(all_closed)
    # The server's own log must not call a refusal a mistake of the application.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
