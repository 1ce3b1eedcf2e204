"""Shared settings in the embedded store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from headrace.sqlite import GroupCommit
from headrace.store.embedded.reader import Access
from headrace.store.embedded.writer import StoreCall, StoreWork

__all__ = ["EmbeddedSettings"]


class EmbeddedSettings:
    """The embedded store's Settings."""

    def __init__(self, commits: GroupCommit[StoreWork], access: Access) -> None:
        self._commits = commits
        self._access = access

    async def get(self, key: str) -> str | None:
        """Return a value."""
        return await self._access.ask("read setting", lambda db: _get(db, key))

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        """Set a value if it is still `expected`."""
        done: bool = await self._commits.submit(StoreCall(lambda db, _: _put(db, key, value, expected)))
        return done

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return all values whose key has this prefix."""
        query = "SELECT key, value FROM settings WHERE substr(key, 1, ?) = ? ORDER BY key"
        asked = (len(prefix), prefix)
        return await self._access.ask("read settings", lambda db: dict(db.execute(query, asked).fetchall()))


def _get(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def _put(db: sqlite3.Connection, key: str, value: str, expected: str | None) -> bool:
    if _get(db, key) != expected:
        return False
    db.execute("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", (key, value))
    return True
