"""Probes that ask servers, in their own protocols and without drivers, whether they are ready.

Each function opens a connection, asks one thing and closes. OSError means that there was no proper answer.
"""

from __future__ import annotations

import socket
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cassandra_peers", "http_answers", "kafka_brokers", "mariadb_greets", "postgres_greets", "zookeeper_says"]

PATIENCE_S = 2.0
Address = tuple[str, int]


@contextmanager
def _connected(address: Address) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        yield connection


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    got = bytearray()
    while len(got) < size_bytes:
        part = connection.recv(size_bytes - len(got))
        if not part:
            raise ConnectionError("the server hung up")
        got += part
    return bytes(got)


def kafka_brokers(address: Address) -> set[int]:
    """Return the ids of the live brokers, from the broker's metadata."""
    client = b"headrace"
    header = struct.pack(">hhih", 3, 4, 1, len(client)) + client  # Metadata, version 4
    body = struct.pack(">i?", 0, False)  # no topics, make none
    with _connected(address) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        (size_bytes,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size_bytes)
    return set(_broker_ids(answer))


def _broker_ids(answer: bytes) -> Iterator[int]:
    _correlation, _throttle_ms, count = struct.unpack_from(">iii", answer)
    at = 12
    for _ in range(count):
        broker, host_bytes = struct.unpack_from(">ih", answer, at)
        at += 6 + host_bytes + 4  # the host and its port
        (rack_bytes,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(0, rack_bytes)
        yield broker


def zookeeper_says(address: Address, word: str) -> str:
    """Send one of ZooKeeper's four-letter words; returns the answer."""
    with _connected(address) as connection:
        connection.sendall(word.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")


def cassandra_peers(address: Address) -> int | None:
    """Count the other nodes that the node knows, by CQL; None if it answers only after a login."""
    with _connected(address) as connection:
        kind, _ = _cql(connection, 1, struct.pack(">H", 1) + _text("CQL_VERSION") + _text("3.0.0"))  # STARTUP
        if kind == 3:  # AUTHENTICATE
            return None
        query = b"SELECT host_id FROM system.peers_v2"
        kind, rows = _cql(connection, 7, struct.pack(">i", len(query)) + query + struct.pack(">HB", 1, 2))  # QUERY
    if kind != 8:  # RESULT
        raise ConnectionError("the node does not answer queries yet")
    return _count_rows(rows)


def _count_rows(result: bytes) -> int:
    _kind, flags, _columns = struct.unpack_from(">iii", result)
    if flags & 4 == 0:
        raise ConnectionError("the node sent metadata that was not asked for")
    return int(struct.unpack_from(">i", result, 12)[0])


def _cql(connection: socket.socket, opcode: int, body: bytes) -> tuple[int, bytes]:
    connection.sendall(struct.pack(">BBhBi", 4, 0, 0, opcode, len(body)) + body)
    _version, _flags, _stream, kind, size_bytes = struct.unpack(">BBhBi", _exactly(connection, 9))
    return kind, _exactly(connection, size_bytes)


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def postgres_greets(address: Address, *, user: str) -> bool:
    """Log in as far as PostgreSQL asks for a password or lets the user in."""
    parameters = b"".join(part.encode() + b"\0" for part in ("user", user, "database", "postgres")) + b"\0"
    with _connected(address) as connection:
        connection.sendall(struct.pack(">ii", 8 + len(parameters), 196_608) + parameters)
        return _exactly(connection, 1) == b"R"


def mariadb_greets(address: Address) -> bool:
    """Wait for the greeting that opens MariaDB's protocol (its first byte after the frame is 10)."""
    with _connected(address) as connection:
        return _exactly(connection, 5)[4] == 10


def http_answers(url: str) -> bool:
    """Return True if the URL gives 200."""
    if not url.startswith("http://"):
        raise ValueError(url)
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http only, see above
        return bool(answer.status == 200)
