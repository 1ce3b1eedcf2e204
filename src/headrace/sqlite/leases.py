"""Leases in a table: at most one owner of a name at a time, each with a higher epoch than the last.

They are timed by the time since the machine started, which all its processes share and which can't be set. A lease of
another boot has expired, because its owner has not survived.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

__all__ = ["Lease", "Leases"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, owner TEXT, epoch INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL DEFAULT ''
)
"""
_PUT = "INSERT OR REPLACE INTO leases (name, owner, epoch, boot_id, expires_ms) VALUES (?, ?, ?, ?, ?)"


class Lease(NamedTuple):
    """What an owner holds; it writes with the epoch, so that a successor's higher one wins."""

    name: str
    owner: str
    epoch: int
    boot_id: str
    expires_ms: int


class Leases:
    """The rules, for use inside a write transaction. `boot_id` and `now_ms` are the machine's `BootTime`."""

    @staticmethod
    def acquire(
        db: sqlite3.Connection, name: str, owner: str, *, boot_id: str, now_ms: int, ttl_ms: int
    ) -> Lease | None:
        """Take or renew the lease; None while another owner holds it."""
        _add_boot_id(db)
        row = db.execute("SELECT owner, epoch, boot_id, expires_ms FROM leases WHERE name = ?", (name,)).fetchone()
        held_by, epoch, held_in, expires_ms = row or (None, 0, boot_id, 0)
        is_running = held_by is not None and held_in == boot_id and expires_ms > now_ms
        if is_running and held_by != owner:
            return None
        lease = Lease(name, owner, epoch if is_running else epoch + 1, boot_id, now_ms + ttl_ms)
        db.execute(_PUT, lease)
        return lease

    @staticmethod
    def is_held(db: sqlite3.Connection, lease: Lease, *, boot_id: str, now_ms: int) -> bool:
        """Return True if the lease is still held: same epoch, not expired."""
        row = db.execute("SELECT epoch, boot_id, expires_ms FROM leases WHERE name = ?", (lease.name,)).fetchone()
        return row is not None and row[:2] == (lease.epoch, boot_id) and row[2] > now_ms

    @staticmethod
    def release(db: sqlite3.Connection, lease: Lease) -> bool:
        """Release the lease early; returns False if another owner holds it by now. The epoch stays."""
        done = db.execute(
            "UPDATE leases SET owner = NULL, expires_ms = 0 WHERE name = ? AND epoch = ? AND owner = ?",
            (lease.name, lease.epoch, lease.owner),
        )
        return done.rowcount == 1


def _add_boot_id(db: sqlite3.Connection) -> None:
    """Give a table of version 0.1 its column; its leases used the wall clock, and count as leases of another boot."""
    if not any(column[1] == "boot_id" for column in db.execute("PRAGMA table_info(leases)")):
        db.execute("ALTER TABLE leases ADD COLUMN boot_id TEXT NOT NULL DEFAULT ''")
