"""A pooler of PostgreSQL connections in transaction mode, as strict as PgBouncer with its own defaults.

It refuses start-up parameters that it does not know, and gives every transaction another of its connections to the
server, in turn. So whatever a client leaves in a session (a prepared statement, a setting, a LISTEN) is not there the
next time, and is there for somebody else. The server must trust the user.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

KNOWN_PARAMETERS = {"user", "database", "application_name", "client_encoding", "datestyle", "timezone"}
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST, PROTOCOL_3 = 80877103, 80877104, 80877102, 196608
READY, QUERY, SYNC, TERMINATE = b"Z", b"Q", b"S", b"X"

Message = tuple[bytes, bytes]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler:
    """The pooler; `refused` has the start-up parameters it did not take, `transactions` counts what it passed on."""

    def __init__(self, host: str, port: int, *, connections: int = 3) -> None:
        self._address, self._connections = (host, port), connections
        self._free: asyncio.Queue[Ends] = asyncio.Queue()
        self._servers: list[Ends] = []
        self._greeting: list[Message] = []
        self._starting = asyncio.Lock()
        self._opened: list[asyncio.StreamWriter] = []
        self.refused: list[str] = []
        self.transactions = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[TransactionPooler]:
        """Serve while the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._opened:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            parameters = await self._startup(reader, writer)
            unknown = [name for name in parameters if name.lower() not in KNOWN_PARAMETERS]
            if unknown:
                self.refused.extend(unknown)
                reason = f"SERROR\0C08P01\0Munsupported startup parameter: {unknown[0]}\0\0"
                await _send(writer, b"E", reason.encode())
            elif parameters:
                await self._connect(parameters)
                for kind, body in self._greeting:
                    await _send(writer, kind, body)
                await self._pass_transactions((reader, writer))
        writer.close()

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, str]:
        while True:
            (size,) = struct.unpack("!I", await reader.readexactly(4))
            body = await reader.readexactly(size - 4)
            (code,) = struct.unpack("!I", body[:4])
            if code == CANCEL_REQUEST:
                return {}
            if code == PROTOCOL_3:
                words = body[4:].rstrip(b"\0").decode().split("\0")
                return dict(zip(words[::2], words[1::2], strict=True))
            writer.write(b"N")  # neither SSL nor GSS
            await writer.drain()

    async def _connect(self, parameters: dict[str, str]) -> None:
        """Open all connections to the server for the first client, and keep what the server says to it."""
        async with self._starting:
            while len(self._servers) < self._connections:
                ends = await asyncio.open_connection(*self._address)
                words = b"".join(f"{name}\0{parameters[name]}\0".encode() for name in ("user", "database"))
                body = struct.pack("!I", PROTOCOL_3) + words + b"\0"
                ends[1].write(struct.pack("!I", len(body) + 4) + body)
                greeting = [await _receive(ends[0])]
                while greeting[-1][0] != READY:
                    greeting.append(await _receive(ends[0]))
                self._greeting = greeting
                self._servers.append(ends)
                self._opened.append(ends[1])
                self._free.put_nowait(ends)

    async def _pass_transactions(self, client: Ends) -> None:
        while True:
            message = await _receive(client[0])
            if message[0] == TERMINATE:
                return
            server = await self._free.get()
            try:
                await self._pass_transaction(client, server, message)
            finally:
                self._free.put_nowait(server)
            self.transactions += 1

    async def _pass_transaction(self, client: Ends, server: Ends, message: Message) -> None:
        """Pass messages until the server says that it is in no transaction, and nothing is on its way."""
        while True:
            await _send(server[1], *message)
            while message[0] not in (QUERY, SYNC):
                message = await _receive(client[0])
                await _send(server[1], *message)
            answer = (b"", b"")
            while answer[0] != READY:
                answer = await _receive(server[0])
                await _send(client[1], *answer)
            if answer[1] == b"I":
                return
            message = await _receive(client[0])


async def _receive(reader: asyncio.StreamReader) -> Message:
    kind, size = struct.unpack("!cI", await reader.readexactly(5))
    return kind, await reader.readexactly(size - 4)


async def _send(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(kind + struct.pack("!I", len(body) + 4) + body)
    await writer.drain()
