"""SQLite. Its clock is the machine's: processes that share the file share the clock."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import Connection

from headrace.outbox.dialects.dialect import READS, Condition, Dialect

__all__ = ["SQLite"]

_BUSY_TIMEOUT_MS = 30_000
_TRANSIENT_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}


class SQLite(Dialect):
    """SQLite. A write transaction locks the whole file, so neither rows nor migrations need a lock of their own."""

    name = "sqlite"
    key = '"key"'
    now_ms = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    insert_or_ignore = ("INSERT OR IGNORE", "")
    lock_rows = ""
    row_bytes = (
        'COALESCE(length(m.message), 0) + COALESCE(length(m."key"), 0) + COALESCE(length(CAST(m.headers AS BLOB)), 0)'
    )

    def with_ids(self, ids: Sequence[int]) -> Condition:
        """By a JSON list."""
        return "id IN (SELECT value FROM json_each(:ids))", {"ids": json.dumps(list(ids))}

    def without_ids(self, ids: Sequence[int]) -> Condition:
        """By a JSON list."""
        return "m.id NOT IN (SELECT value FROM json_each(:without))", {"without": json.dumps(list(ids))}

    def with_messages(self, event_ids: Mapping[int, str]) -> Condition:
        """By two JSON lists."""
        condition, parameters = self.with_ids(list(event_ids))
        exact = "event_id IN (SELECT value FROM json_each(:event_ids))"
        return f"{condition} AND {exact}", {**parameters, "event_ids": json.dumps(list(event_ids.values()))}

    def session_options(self, url: URL, *, patience_s: float | None) -> dict[str, Any]:
        """Connections go from thread to thread."""
        return {"connect_args": {"check_same_thread": False}}

    def prepare(self, engine: Engine, *, relaxed: bool, patience_s: float | None) -> None:
        """Begin transactions ourselves, and wait for the lock."""
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)

    def cut(self, connection: sqlite3.Connection) -> None:
        """Interrupt the statement that runs."""
        connection.interrupt()

    def is_transient(self, error: BaseException) -> bool | None:
        """By the result code, without its details."""
        code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
        return None if code is None else code & 0xFF in _TRANSIENT_CODES

    def is_about_sql(self, error: BaseException) -> bool:
        """For SQLITE_ERROR, which is all that SQLite says about a statement."""
        return getattr(error, "sqlite_errorname", None) == "SQLITE_ERROR"


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, see below
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when another process wrote in between.
    if not connection.get_execution_options().get(READS):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
