"""A TCP proxy that tests use to cut, delay and throttle connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from headrace.errors import BadArgument, Closed

__all__ = ["Conditions", "Link", "TcpProxy"]

CHUNK_BYTES = 64 * 1024
CHUNKS_IN_FLIGHT = 64
# How often held data checks whether the conditions have changed.
LOOK_S = 0.01
# Closing with a linger time of zero sends RST: the other side sees a reset, as when a process is gone.
LINGER_ZERO = struct.pack("ii", 1, 0)

Direction: TypeAlias = Literal["bytes_to_server", "bytes_to_client"]
Chunk: TypeAlias = tuple[float, bytes]


@dataclass
class Conditions:
    """The conditions that all connections of a proxy share; used on the proxy's event loop only."""

    target: tuple[str, int]
    is_black_hole: bool = False
    answers_are_held: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    connections: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0

    async def let_through(self, arrived_s: float, direction: Direction = "bytes_to_server") -> None:
        """Wait until data that arrived at that time may be forwarded."""
        loop = asyncio.get_running_loop()
        while (is_held := self._holds(direction)) or loop.time() < arrived_s + self.delay_s:
            left_s = arrived_s + self.delay_s - loop.time()
            await asyncio.sleep(LOOK_S if is_held else min(left_s, LOOK_S))

    def _holds(self, direction: Direction) -> bool:
        return self.is_black_hole or (self.answers_are_held and direction == "bytes_to_client")

    async def pace(self, sent_bytes: int) -> None:
        """Wait as long as the sent bytes take at the allowed speed."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self.bytes_per_s and (left_s := began_s + sent_bytes / self.bytes_per_s - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, LOOK_S))

    def piece_bytes(self) -> int:
        """Return how many bytes to send at once: few if throttled, so that they do not come in bursts."""
        return CHUNK_BYTES if self.bytes_per_s is None else max(1, int(self.bytes_per_s * LOOK_S))


class Link:
    """A client's connection, and its connection to the server."""

    def __init__(self, client: socket.socket, conditions: Conditions) -> None:
        self._client, self._conditions = client, conditions
        self._ends: list[asyncio.StreamWriter] = []

    async def run(self) -> None:
        """Forward until both sides are done; any failure, or cancellation, resets both."""
        try:
            await self._forward()
        except* (OSError, asyncio.CancelledError):
            # The server refused, a side reset, or the proxy was cut: in each case both sides are reset.
            self._reset()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)

    def close(self) -> None:
        """Reset the client if it is still open: `run` was cancelled before its first line."""
        _linger_zero(self._client)
        self._client.close()

    async def _forward(self) -> None:
        await self._conditions.let_through(asyncio.get_running_loop().time())
        from_client, to_client = await asyncio.open_connection(sock=self._client)
        self._ends.append(to_client)
        from_server, to_server = await asyncio.open_connection(*self._conditions.target)
        self._ends.append(to_server)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(from_client, to_server, "bytes_to_server"))
            both.create_task(self._pump(from_server, to_client, "bytes_to_client"))
        for end in self._ends:
            end.close()
            await end.wait_closed()

    def _reset(self) -> None:
        for connection in (self._client, *(end.get_extra_info("socket") for end in self._ends)):
            _linger_zero(connection)
        for end in self._ends:
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        # Read and write run apart, so that a delay does not reduce the throughput.
        line: asyncio.Queue[Chunk] = asyncio.Queue(CHUNKS_IN_FLIGHT)
        async with asyncio.TaskGroup() as halves:
            halves.create_task(_fill(line, reader))
            halves.create_task(self._drain(line, writer, direction))

    async def _drain(self, line: asyncio.Queue[Chunk], writer: asyncio.StreamWriter, direction: Direction) -> None:
        while True:
            arrived_s, chunk = await line.get()
            await self._conditions.let_through(arrived_s, direction)
            if not chunk:
                writer.write_eof()
                return
            await self._send(chunk, writer, direction)

    async def _send(self, chunk: bytes, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while chunk:
            await self._conditions.let_through(0.0, direction)
            size = self._conditions.piece_bytes()
            piece, chunk = chunk[:size], chunk[size:]
            # Counted first, so that a received byte is always counted.
            setattr(self._conditions, direction, getattr(self._conditions, direction) + len(piece))
            writer.write(piece)
            await writer.drain()
            await self._conditions.pace(len(piece))


async def _fill(line: asyncio.Queue[Chunk], reader: asyncio.StreamReader) -> None:
    loop = asyncio.get_running_loop()
    while True:
        chunk = await reader.read(CHUNK_BYTES)
        await line.put((loop.time(), chunk))
        if not chunk:
            return


def _linger_zero(connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)


CALL_TIMEOUT_S = 10.0

_Result = TypeVar("_Result")


class TcpProxy:
    """A proxy between clients and a server, on a thread of its own, for blocking and async tests.

    Promises: when a method returns, its effect holds for open and for new connections.
    Does not promise: that bytes already given to the system are held back.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.host = "127.0.0.1"
        # Bound and never listening: it reserves the port, and clients are refused, while the listener is closed.
        self._reservation = _bound(self.host, 0)
        self.port: int = self._reservation.getsockname()[1]
        self._conditions = Conditions((target_host, target_port))
        self._links: dict[asyncio.Task[None], Link] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-tcp-proxy", daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect: host:port."""
        return f"{self.host}:{self.port}"

    @property
    def target(self) -> tuple[str, int]:
        """Where the server is: host and port."""
        return self._conditions.target

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    @property
    def connections(self) -> int:
        """How many clients were ever accepted."""
        return self._conditions.connections

    @property
    def bytes_to_server(self) -> int:
        """How much was forwarded to the server."""
        return self._conditions.bytes_to_server

    @property
    def bytes_to_client(self) -> int:
        """How much was forwarded to clients."""
        return self._conditions.bytes_to_client

    def start(self) -> TcpProxy:
        """Start listening; the port is known before."""
        self._thread.start()
        self._call(self._listen())
        return self

    def close(self) -> None:
        """Reset all connections and release the port."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._reservation.close()

    def cut(self) -> None:
        """Reset all connections and refuse new ones, as when the server's process is gone."""
        self._call(self._cut())

    def drop(self) -> None:
        """Accept everything and forward nothing, as if a cable were pulled."""
        self._call(self._set(is_black_hole=True))

    def hold_answers(self) -> None:
        """Forward what clients send and hold back the answers, so that requests are done and not acknowledged."""
        self._call(self._set(answers_are_held=True))

    def delay(self, seconds: float) -> None:
        """Delay everything by this time, in both directions."""
        if seconds < 0:
            raise BadArgument("seconds", seconds, "a delay is 0 or more")
        self._call(self._set(delay_s=seconds))

    def throttle(self, bytes_per_s: float) -> None:
        """Limit the speed in each direction of each connection."""
        if bytes_per_s <= 0:
            raise BadArgument("bytes_per_s", bytes_per_s, "it must be above 0; drop() lets nothing through")
        self._call(self._set(bytes_per_s=bytes_per_s))

    def restore(self) -> None:
        """End all faults: accept clients, forward held data, at full speed."""
        self._call(self._set(is_black_hole=False, answers_are_held=False, delay_s=0.0, bytes_per_s=None))
        self._call(self._listen())

    def __enter__(self) -> TcpProxy:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if not self._thread.is_alive():
            work.close()
            raise Closed(f"the TCP proxy at {self.address}")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _set(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of Conditions
        for name, value in changes.items():
            setattr(self._conditions, name, value)

    # The listener is a plain socket: asyncio's servers pass a client on some turns of the loop after accepting it,
    # so that it could escape a cut.
    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.host, self.port)
            self._listener.setblocking(False)
            self._listener.listen()
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        self._conditions.connections += 1
        link = Link(client, self._conditions)
        task = self._loop.create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()

    async def _cut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound
