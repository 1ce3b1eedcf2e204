"""A load of HTTP requests from a process of its own: `wrk` where there is one, otherwise connections of our own.

Both send the same request again and again on each connection, one at a time, and count the answers. Our own one parses
no more of an answer than its status and length, so that it takes as little as possible of the machine from the server.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.harness import BenchFailed
from headrace.testing.processes import ChildProcess, running_function

__all__ = ["HttpRequest", "generator_name", "load", "requests_per_s"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class HttpRequest(NamedTuple):
    """What is sent: an address, and the method and body of each request.

    `{n}` in the path is the number of the connection.
    """

    url: str
    method: str = "GET"
    body: str = ""

    def bytes(self, number: int) -> bytes:
        """Return the request of a connection as it stands on the wire."""
        parts = urlsplit(self.url)
        head = f"{self.method} {parts.path.replace('{n}', str(number))} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        if self.body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n"
        return f"{head}\r\n{self.body}".encode()


def generator_name(request: HttpRequest) -> str:
    """Return the name of what makes the load."""
    return "wrk" if _is_for_wrk(request) else "a generator of our own on asyncio streams of bytes"


def _is_for_wrk(request: HttpRequest) -> bool:
    return "{n}" not in request.url and shutil.which("wrk") is not None


async def requests_per_s(request: HttpRequest, *, connections: int, seconds: float, folder: Path) -> float:
    """Return how many requests are answered in a second. Raises BenchFailed if one is answered with an error."""
    if _is_for_wrk(request):
        return await _by_wrk(request, connections, seconds, folder)
    arguments = (request.url, request.method, request.body, str(connections), str(seconds))
    with running_function("benchmarks.workloads.http_load:load", *arguments) as child:
        return await _rate_of(child, seconds)


async def _rate_of(child: ChildProcess, seconds: float) -> float:
    found = await asyncio.to_thread(child.wait_for_line, r"^(rate|failed) (.*)", seconds + 60)
    if found[1] == "failed":
        raise BenchFailed(f"the server did not answer as it should: {found[2]}")
    return float(found[2])


async def _by_wrk(request: HttpRequest, connections: int, seconds: float, folder: Path) -> float:
    script = folder / "request.lua"
    body = request.body.replace("'", "\\'")
    header = "wrk.headers['Content-Type'] = 'application/json'\n"
    script.write_text(f"wrk.method = '{request.method}'\nwrk.body = '{body}'\n{header}")
    arguments = ("-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script), request.url)
    process = await asyncio.create_subprocess_exec("wrk", *arguments, stdout=asyncio.subprocess.PIPE)
    shown = (await process.communicate())[0].decode()
    found = re.search(r"Requests/sec: *([0-9.]+)", shown)
    if found is None or "Non-2xx" in shown:
        raise BenchFailed(f"wrk said: {shown}")
    return float(found[1])


class _Connection(asyncio.Protocol):
    """Sends the request again as soon as it is answered."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = b""
        self.answered = 0
        self.failure: str | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self.transport is None:
            return
        found = _LENGTH.search(self._received, 0, end)
        if len(self._received) < end + 4 + (int(found[1]) if found else 0):
            return
        if not self._received.startswith(b"HTTP/1.1 2"):
            self.failure = self._received[:200].decode(errors="replace")
            self.transport.abort()
            return
        self.answered += 1
        self._received = b""
        self.transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = self.failure or f"the connection was lost: {exc}"


def load(url: str, method: str, body: str, connections: str, seconds: str) -> None:
    """Make the load, and print its rate."""
    request = HttpRequest(url, method, body)
    uvloop.run(_load(request, int(connections), float(seconds)))


async def _load(request: HttpRequest, connections: int, seconds: float) -> None:
    loop, parts = asyncio.get_running_loop(), urlsplit(request.url)
    opened = []
    for number in range(connections):
        sent = request.bytes(number)
        _, connection = await loop.create_connection(partial(_Connection, sent), parts.hostname or "", parts.port or 80)
        opened.append(connection)
    await asyncio.sleep(seconds / 5)  # until everything is warm
    before, started_s = sum(each.answered for each in opened), loop.time()
    await asyncio.sleep(seconds)
    rate = (sum(each.answered for each in opened) - before) / (loop.time() - started_s)
    failed = [each.failure for each in opened if each.failure]
    print(f"failed {failed[0]!r}" if failed else f"rate {rate}", flush=True)
    sys.stdin.readline()
