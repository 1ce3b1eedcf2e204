"""Many WebSockets of one process that only count what they get."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import uvloop

__all__ = ["MessageCount", "count_messages"]


_PING, _PONG = 0x89, 0x8A
_NO_MASK = bytes(4)


class MessageCount:
    """The messages of all sockets. A socket that is lost ends the wait for more."""

    def __init__(self) -> None:
        self.messages = 0
        self._wanted = 0
        self._is_lost = False
        self._done = asyncio.Event()

    def add(self) -> None:
        """Count a message."""
        self.messages += 1
        if self.messages == self._wanted:
            self._done.set()

    def fail(self) -> None:
        """A socket was lost."""
        self._is_lost = True
        self._done.set()

    async def reached(self, wanted: int) -> None:
        """Wait until so many messages have come."""
        self._wanted = wanted
        if self.messages < wanted and not self._is_lost:
            self._done.clear()
            await self._done.wait()


class _CountingSocket(asyncio.Protocol):
    """A WebSocket that counts messages. They are binary, unmasked and below 64 KiB, as servers send them."""

    def __init__(self, host: str, path: str, count: MessageCount) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._head = f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        self._received = bytearray()
        self._is_open = False
        self._count = count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._is_open:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._is_open = self._received.startswith(b"HTTP/1.1 101")
            del self._received[: end + 4]
        at, size = 0, len(self._received)
        while size - at >= 2:
            length, head = self._received[at + 1], 2
            if length == 126:
                if size - at < 4:
                    break
                length, head = int.from_bytes(self._received[at + 2 : at + 4]), 4
            if size - at < head + length:
                break
            if self._received[at] in (0x81, 0x82):
                self._count.add()
            elif self._received[at] == _PING:  # who does not answer is closed, where a round takes longer than that
                content = self._received[at + head : at + head + length]
                self._transport.write(bytes((_PONG, 0x80 | length)) + _NO_MASK + content)
            at += head + length
        del self._received[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._count.fail()


def count_messages(url: str, sockets: str) -> None:
    """Open sockets. A line of the input is how many messages to wait for; then their number is printed."""
    uvloop.run(_count(url, int(sockets)))


async def _count(url: str, sockets: int) -> None:
    loop, parts, count = asyncio.get_running_loop(), urlsplit(url), MessageCount()
    for _ in range(sockets):
        make = partial(_CountingSocket, parts.netloc, parts.path, count)
        await loop.create_connection(make, parts.hostname or "", parts.port or 80)
    await count.reached(sockets)  # the present value comes first
    print("open", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await count.reached(int(line))
        print(f"counted {count.messages}", flush=True)
