"""Shared settings in Cassandra."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from headrace.store.cassandra.session import Session

__all__ = ["QUERIES", "CassandraSettings"]

_GET = "SELECT value FROM {keyspace}.setting WHERE key = ?"
_ALL = "SELECT key, value FROM {keyspace}.setting"
_ADD = "INSERT INTO {keyspace}.setting (key, value, timestamp, origin) VALUES (?, ?, ?, ?) IF NOT EXISTS"
_CHANGE = "UPDATE {keyspace}.setting SET value = ?, timestamp = ?, origin = ? WHERE key = ? IF value = ?"
QUERIES = (_GET, _ALL, _ADD, _CHANGE)


class CassandraSettings:
    """Cassandra's Settings: lightweight transactions, one row for each key."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._origin = f"{socket.gethostname()}:{os.getpid()}"

    async def get(self, key: str) -> str | None:
        """Return a value."""
        rows = await self._session.read("read setting", _GET, (key,))
        return rows[0][0] if rows else None

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        """Set a value if it is still `expected`."""
        now_ms = time.time_ns() // 1_000_000
        if expected is None:
            answer = await self._session.decide("put setting", _ADD, (key, value, now_ms, self._origin))
        else:
            answer = await self._session.decide("put setting", _CHANGE, (value, now_ms, self._origin, key, expected))
        return bool(answer[0])

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return all values whose key has this prefix."""
        pages = self._session.pages("setting", _ALL, (), page_size=1000)
        return dict(sorted([row async for rows in pages for row in rows if row[0].startswith(prefix)]))
