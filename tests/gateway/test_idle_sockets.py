"""Thousands of WebSockets that wait for changes: what they cost, and that others are served beside them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import resource
from pathlib import Path

import httpx
import pytest

from headrace.testing.plugin import Size
from headrace.testing.processes import ChildProcess, running_function

STATE = "/keyspaces/accounts/states/balances"
MOST_BYTES_PER_SOCKET = 100_000
OPENING = 50  # at a time
BINARY, PING, PONG = 0x82, 0x89, 0x8A


def memory_of(server: ChildProcess) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class IdleSocket(asyncio.Protocol):
    """A WebSocket that follows a key as framed Avro, and answers pings. All frames that it gets are short."""

    def __init__(self, path: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._head = f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        self._received = b""
        self._is_open = False
        self.values: asyncio.Queue[bytes] = asyncio.Queue()

    @classmethod
    async def open(cls, url: httpx.URL, path: str, limit: asyncio.Semaphore) -> IdleSocket:
        """Open a socket and wait for the present value."""
        async with limit, asyncio.timeout(60):
            loop = asyncio.get_running_loop()
            _, opened = await loop.create_connection(lambda: cls(path, f"{url.host}:{url.port}"), url.host, url.port)
            await opened.values.get()
            return opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._is_open:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._is_open, self._received = True, rest
        while len(self._received) >= 2 and len(self._received) >= 2 + self._received[1]:
            kind, end_at = self._received[0], 2 + self._received[1]
            body, self._received = self._received[2:end_at], self._received[end_at:]
            if kind == PING:
                self.transport.write(bytes([PONG, 0x80 | len(body)]) + bytes(4) + body)
            elif kind == BINARY:
                self.values.put_nowait(body)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
async def test_thousands_of_idle_sockets_harm_nobody(tmp_path: Path, size: Size) -> None:
    """G7, G11: sockets that wait cost little memory; requests are answered beside them, and all get the next change."""
    count = size(1_000, 10_000)
    _allow_files(2 * count)
    with running_function("tests.gateway.serve_market:serve_market", str(tmp_path)) as server:
        found = await asyncio.to_thread(server.wait_for_line, r"listening on (\S+)", 60)
        url, limit = httpx.URL(found[1]), asyncio.Semaphore(OPENING)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client, contextlib.AsyncExitStack() as opened:
            assert (await client.put(f"{STATE}/k", json={"owner": "ann", "balance": 1})).status_code == 204
            first = await IdleSocket.open(url, f"{STATE}/k", limit)
            opened.callback(first.transport.abort)
            before_bytes = memory_of(server)
            sockets = await asyncio.gather(*(IdleSocket.open(url, f"{STATE}/k", limit) for _ in range(count)))
            for each in sockets:
                opened.callback(each.transport.abort)
            per_socket = (memory_of(server) - before_bytes) / count
            assert (await client.get(f"{STATE}/k")).status_code == 200
            assert (await client.put(f"{STATE}/k", json={"owner": "ann", "balance": 2})).status_code == 204
            async with asyncio.timeout(120):
                values = await asyncio.gather(*(each.values.get() for each in sockets))
            assert len(set(values)) == 1
            print(f"{count} sockets, {per_socket:.0f} bytes each")
            assert per_socket < MOST_BYTES_PER_SOCKET


def _allow_files(count: int) -> None:
    """Raise the limit on open files, as far as it goes; children inherit it."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, most), most))
