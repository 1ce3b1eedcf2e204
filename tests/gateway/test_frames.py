"""What the client of a WebSocket may do to its connection, byte by byte, and that nobody else suffers from it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from tests.gateway.conftest import Serve
from tests.gateway.test_server import Stream, all_closed, is_alive, open_connections, refused
from websockets.frames import Frame, Opcode

from headrace.gateway import RunningGateway
from headrace.gateway.guards import frame_head
from headrace.gateway.socket_wire import PUSHES
from headrace.testing.conformance.log_setting import eventually

TEXT, CONTINUATION, CLOSE, PING, PONG = 1, 0, 8, 9, 10


def frame(kind: int, data: bytes = b"", *, is_last: bool = True) -> bytes:
    """Return a frame of a client, with a mask of zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
    return bytes([kind | 0x80 * is_last]) + size + bytes(4) + data


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket, and take what comes until it ends."""
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def flooding(scope: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket, and send more than anybody reads."""
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        await send({"type": "websocket.send", "bytes": bytes(100_000)})


@contextlib.asynccontextmanager
async def opened(gateway: RunningGateway, headers: str = "", path: str = "/ws") -> AsyncIterator[Stream]:
    host, port = gateway.url.removeprefix("http://").split(":")
    # With a small buffer, a client that does not read is noticed soon.
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n".encode())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.readuntil(b"\r\n\r\n")


async def close_code(reader: asyncio.StreamReader) -> int:
    """Return the code of the frame that closes the connection."""
    async with asyncio.timeout(20):
        data = await reader.read()
    at = data.rindex(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4])


@pytest.mark.parametrize(
    "headers", ["".join(f"X-{each}: 1\r\n" for each in range(200)), f"Authorization: Bearer {'a' * 9_000}\r\n"]
)
async def test_a_handshake_with_too_many_headers_is_answered(serve: Serve, headers: str) -> None:
    """G11: a WebSocket whose headers are more than its protocol takes is refused, and holds no connection."""
    async with serve(beside=silent) as gateway:
        async with opened(gateway, headers) as (reader, _):
            assert (await head_of(reader)).startswith(b"HTTP/1.1 431")
            await eventually(all_closed)
        assert await is_alive(gateway)


async def test_pings_of_a_client_that_does_not_read_pile_up_nowhere(serve: Serve) -> None:
    """G11: a client that floods with pings is closed, whether it reads or not; it is counted, and others go on."""
    before = refused("control_frames")
    async with serve(beside=silent) as gateway:
        async with opened(gateway) as (reader, writer):
            await head_of(reader)
            writer.write(frame(PING, bytes(125)) * 500)
            assert await close_code(reader) == 1008
        async with opened(gateway) as (reader, writer):
            await head_of(reader)
            writer.write(frame(PING, b"once"))
            async with asyncio.timeout(20):
                assert await reader.readexactly(6) == b"\x8a\x04once"
        await eventually(all_closed)
    assert refused("control_frames") == before + 1


async def test_a_message_has_a_bounded_number_of_fragments(serve: Serve) -> None:
    """G11: fragments without a byte are limited in number, because their size never is too large."""
    before = refused("frame")
    async with serve(beside=silent) as gateway, opened(gateway) as (reader, writer):
        await head_of(reader)
        writer.write(frame(TEXT, is_last=False) + frame(CONTINUATION, is_last=False) * 5_000)
        assert await close_code(reader) == 1009
    assert refused("frame") == before + 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"\xff"), 1007),
        (b"\xf1\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
        (b"\x81\x01a", 1002),
        (frame(PING, is_last=False), 1002),
        (frame(CONTINUATION, b"a"), 1002),
        (frame(CLOSE, b"\x03"), 1002),
    ],
    ids=["utf8", "reserved", "opcode", "unmasked", "fragmented-ping", "continuation", "close"],
)
async def test_what_is_no_frame_closes_the_connection_and_is_counted(
    serve: Serve, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """G11: bytes that are no frames get a close code, are counted, and are no error in the log."""
    before = refused("frame")
    async with serve(beside=silent) as gateway, opened(gateway) as (reader, writer):
        await head_of(reader)
        writer.write(data)
        assert await close_code(reader) == code
        await eventually(all_closed)
    assert refused("frame") == before + 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_takes_nothing_is_cut(serve: Serve) -> None:
    """G7, G11: a WebSocket whose client reads nothing ends after a while and frees its place; others go on."""
    before = refused("slow_client")
    async with serve(beside=flooding, slow_client_s=0.2) as gateway, opened(gateway) as (reader, writer):
        await head_of(reader)
        assert open_connections() == 1
        assert await is_alive(gateway)
        await eventually(all_closed)
        assert not writer.is_closing()
    assert refused("slow_client") == before + 1


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536])
@pytest.mark.parametrize("is_text", [True, False])
def test_a_whole_message_has_the_frame_that_any_server_gives_it(size: int, is_text: bool) -> None:
    """The head of a frame is the standard's, at every length where its form changes."""
    data = b"x" * size
    frame = Frame(Opcode.TEXT if is_text else Opcode.BINARY, data)
    assert frame_head(data, is_text=is_text) + data == frame.serialize(mask=False)


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_what_is_pushed_arrives_whole_compressed_or_not(serve: Serve, compression: Any) -> None:
    """Frames that are written at once, and those that are sent, come to the client in order with their bytes."""
    ended = asyncio.Event()
    frames: list[str | bytes] = ["é" * 70, b"y" * 70_000, "", b"\x00" * 200]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        pushes = scope["extensions"][PUSHES]
        for frame in frames:
            await send({"type": "websocket.send", ("text" if isinstance(frame, str) else "bytes"): frame})
            assert pushes["is_ready"]()
            pushes["write"](frame)
        await receive()
        if not pushes["is_ready"]():
            ended.set()

    async with serve(beside=app) as running, asyncio.timeout(20):
        url = running.url.replace("http", "ws")
        async with websockets.connect(f"{url}/mine", compression=compression) as client:
            assert [await client.recv() for _ in range(8)] == [each for each in frames for _ in range(2)]
        await ended.wait()
