"""Leases in a table: at most one owner of a name at a time, each with a higher epoch than the last."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

__all__ = ["Lease", "Leases"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, owner TEXT, epoch INTEGER NOT NULL, expires_ms INTEGER NOT NULL
)
"""


class Lease(NamedTuple):
    """What an owner holds; it writes with the epoch, so that a successor's higher one wins."""

    name: str
    owner: str
    epoch: int
    expires_ms: int


class Leases:
    """The rules, for use inside a write transaction. Time is given by the caller: the machine's clock."""

    @staticmethod
    def acquire(db: sqlite3.Connection, name: str, owner: str, *, now_ms: int, ttl_ms: int) -> Lease | None:
        """Take or renew the lease; None while another owner's has not run out."""
        row = db.execute("SELECT owner, epoch, expires_ms FROM leases WHERE name = ?", (name,)).fetchone()
        held_by, epoch, expires_ms = row or (None, 0, 0)
        is_ours = held_by == owner and expires_ms > now_ms
        if held_by is not None and not is_ours and expires_ms > now_ms:
            return None
        lease = Lease(name, owner, epoch if is_ours else epoch + 1, now_ms + ttl_ms)
        db.execute("INSERT OR REPLACE INTO leases (name, owner, epoch, expires_ms) VALUES (?, ?, ?, ?)", lease)
        return lease

    @staticmethod
    def is_held(db: sqlite3.Connection, lease: Lease, *, now_ms: int) -> bool:
        """Say whether the lease still counts: same epoch, not run out."""
        row = db.execute("SELECT epoch, expires_ms FROM leases WHERE name = ?", (lease.name,)).fetchone()
        return row is not None and row[0] == lease.epoch and row[1] > now_ms

    @staticmethod
    def release(db: sqlite3.Connection, lease: Lease) -> bool:
        """Give it back early; False when it was somebody else's by now. The epoch stays."""
        done = db.execute(
            "UPDATE leases SET owner = NULL, expires_ms = 0 WHERE name = ? AND epoch = ? AND owner = ?",
            (lease.name, lease.epoch, lease.owner),
        )
        return done.rowcount == 1
