"""The connections of a TcpProxy, and the weather they travel through."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Conditions", "Link"]

CHUNK_BYTES = 64 * 1024
CHUNKS_IN_FLIGHT = 64
# How often what is held back looks whether the weather has changed.
LOOK_S = 0.01
# Closing with a linger time of zero sends RST: the other side sees a reset, as when a process is gone.
LINGER_ZERO = struct.pack("ii", 1, 0)

Direction: TypeAlias = Literal["bytes_to_server", "bytes_to_client"]
Chunk: TypeAlias = tuple[float, bytes]


@dataclass
class Conditions:
    """What all connections of one proxy share; changed and read on the proxy's loop only."""

    target: tuple[str, int]
    is_black_hole: bool = False
    answers_are_held: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    connections: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0

    async def let_through(self, arrived_s: float, direction: Direction = "bytes_to_server") -> None:
        """Wait until what arrived at that time may go on."""
        loop = asyncio.get_running_loop()
        while (is_held := self._holds(direction)) or loop.time() < arrived_s + self.delay_s:
            left_s = arrived_s + self.delay_s - loop.time()
            await asyncio.sleep(LOOK_S if is_held else min(left_s, LOOK_S))

    def _holds(self, direction: Direction) -> bool:
        return self.is_black_hole or (self.answers_are_held and direction == "bytes_to_client")

    async def pace(self, sent_bytes: int) -> None:
        """Wait as long as so many bytes take at the speed allowed."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self.bytes_per_s and (left_s := began_s + sent_bytes / self.bytes_per_s - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, LOOK_S))

    def piece_bytes(self) -> int:
        """Return how much to send at once: a throttled line trickles, it does not come in bursts."""
        return CHUNK_BYTES if self.bytes_per_s is None else max(1, int(self.bytes_per_s * LOOK_S))


class Link:
    """One client's connection and the one to the server made for it."""

    def __init__(self, client: socket.socket, conditions: Conditions) -> None:
        self._client, self._conditions = client, conditions
        self._ends: list[asyncio.StreamWriter] = []

    async def run(self) -> None:
        """Forward until both sides are done; any failure, or cancellation, resets both."""
        try:
            await self._forward()
        except* (OSError, asyncio.CancelledError):
            # The server refused, somebody reset, or the proxy was cut: either way both sides get to know.
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
        # Read and write run apart, so that a delay makes a line long, not narrow.
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
            # Counted first: whoever has received a byte finds it counted.
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
