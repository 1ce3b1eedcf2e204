"""PostgreSQL, with psycopg."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.outbox.dialects.dialect import (
    CONNECT_S,
    READS,
    Condition,
    Dialect,
    Translation,
    ignored,
    unasked,
    whole_s,
)

__all__ = ["PostgreSQL"]

_LOCK_NUMBER = 0x6865616472
_DEFAULT_LEVEL = "headrace.default_isolation"

# When a server's machine is gone nothing resets its connections; the kernel's own keepalive asks after two hours.
_KEEPALIVES = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}

# DISTINCT would read a backlog of millions at each look; this jumps from lane to lane along the index.
_PENDING_LANES = """
WITH RECURSIVE lanes(topic, bucket) AS (
  (SELECT topic, bucket FROM kafka_messages ORDER BY topic, bucket LIMIT 1)
  UNION ALL
  SELECT following.topic, following.bucket FROM lanes CROSS JOIN LATERAL (
    SELECT m.topic, m.bucket FROM kafka_messages m
    WHERE (m.topic, m.bucket) > (lanes.topic, lanes.bucket) ORDER BY m.topic, m.bucket LIMIT 1
  ) following
) SELECT topic, bucket FROM lanes
"""

# Lost connections, rolled back for others' sake, out of memory, disk or connections, ended by an operator or a
# time-out, I/O errors.
_TRANSIENT_CLASSES = ("08", "40", "53", "57", "58")
# Locks and objects in use, a replica that takes no writes, transactions that were ended for their age.
_TRANSIENT_STATES = {"55P03", "55006", "25006", "25P03", "25P04"}
_STATEMENT_STATES = {"40002"}  # a constraint that was checked at the commit


def _ssl_mode(value: str) -> dict[str, str]:
    return {
        "sslmode": {"true": "require", "1": "require", "false": "disable", "0": "disable"}.get(value.lower(), value)
    }


def _connect_timeout(value: str) -> dict[str, str]:
    return {"connect_timeout": str(max(2, math.ceil(float(value))))}  # libpq counts in seconds, from 2


def _direct_tls(value: str) -> dict[str, str]:
    return {"sslnegotiation": "direct"} if value.lower() in ("true", "1") else {}


_STATEMENT_ARGUMENTS = (
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "statement_cache_size",
)


class PostgreSQL(Dialect):
    """PostgreSQL, directly or through a pooler in transaction mode."""

    name = "postgresql"
    key = "key"
    now_ms = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    insert_or_ignore = ("INSERT", "ON CONFLICT DO NOTHING")
    pending_lanes = _PENDING_LANES
    row_bytes = (
        "COALESCE(octet_length(m.message), 0) + COALESCE(octet_length(m.key), 0) + COALESCE(octet_length(m.headers), 0)"
    )
    migration_lock = (f"SELECT pg_advisory_lock({_LOCK_NUMBER})", f"SELECT pg_advisory_unlock({_LOCK_NUMBER})")
    driver = "psycopg"
    extra = "postgres"
    translations: ClassVar[Mapping[str, Mapping[str, Translation]]] = {
        "asyncpg": {
            **dict.fromkeys((*_STATEMENT_ARGUMENTS, "async_fallback", "gsslib"), ignored),
            "ssl": _ssl_mode,
            "timeout": _connect_timeout,
            "direct_tls": _direct_tls,
        }
    }

    def with_ids(self, ids: Sequence[int]) -> Condition:
        """As text: the driver would look at each number for the smallest type that holds it."""
        return "id = ANY(CAST(:ids AS bigint[]))", {"ids": _array(ids)}

    def without_ids(self, ids: Sequence[int]) -> Condition:
        """By a subquery, which every version hashes; a list is hashed by the newer ones only."""
        return "m.id NOT IN (SELECT unnest(CAST(:without AS bigint[])))", {"without": _array(ids)}

    def with_messages(self, event_ids: Mapping[int, str]) -> Condition:
        """By two arrays."""
        condition, parameters = self.with_ids(list(event_ids))
        exact = "event_id = ANY(CAST(:event_ids AS text[]))"
        return f"{condition} AND {exact}", {**parameters, "event_ids": list(event_ids.values())}

    def session_options(self, url: URL, *, patience_s: float | None) -> dict[str, Any]:
        """Keep-alive, a name for the session, and nothing that a pooler in transaction mode can't keep.

        A pooler gives each transaction another connection of the server, which knows nothing of statements that were
        prepared on the last one. READ COMMITTED is said at each BEGIN: where the database's or the role's default is
        stricter, transactions of workers would fail one another, and those of applications.
        """
        ours = {"connect_timeout": CONNECT_S, "application_name": "headrace-outbox", **_KEEPALIVES}
        arguments = {**unasked(url, ours), "prepare_threshold": None, **_binary_cursor()}
        return {"isolation_level": "READ COMMITTED", "connect_args": arguments}

    def prepare(self, engine: Engine, *, relaxed: bool, patience_s: float | None) -> None:
        """Set commit and time-out for each transaction that writes, and note the default level of each session."""
        event.listen(engine, "connect", _note_default_level)
        settings = {"synchronous_commit": "off"} if relaxed else {}
        if patience_s is not None:
            settings["idle_in_transaction_session_timeout"] = f"{whole_s(patience_s)}s"
        if settings:
            event.listen(engine, "begin", partial(_set_local, _setting_sql(settings)))

    def options_of_reads(self, connection: Connection) -> dict[str, Any]:
        """Without BEGIN, which saves two round trips, unless the statement would run at a stricter level then."""
        return {"isolation_level": "AUTOCOMMIT"} if connection.info[_DEFAULT_LEVEL] == "read committed" else {}

    def cut(self, connection: Any) -> None:  # noqa: ANN401
        """Cut the socket, not the connection, which belongs to the thread that waits. psycopg has its number only."""
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    def is_transient(self, error: BaseException) -> bool | None:
        """By the SQLSTATE."""
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(error, sqlite3.Error) or not isinstance(sqlstate, str) or not sqlstate:
            return None
        is_listed = sqlstate.startswith(_TRANSIENT_CLASSES) or sqlstate in _TRANSIENT_STATES
        return is_listed and sqlstate not in _STATEMENT_STATES

    def is_about_sql(self, error: BaseException) -> bool:
        """Never: psycopg has other classes for errors of statements."""
        return False


def _array(ids: Sequence[int]) -> str:
    return f"{{{','.join(map(str, ids))}}}"


def _setting_sql(settings: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())


def _set_local(sql: str, connection: Connection) -> None:
    # For the transaction, not for the session: a pooler refuses settings at the start, and hands the session to others.
    if not connection.get_execution_options().get(READS):
        connection.exec_driver_sql(sql).close()


def _note_default_level(connection: Any, record: ConnectionPoolEntry) -> None:  # noqa: ANN401 - the driver's own
    with connection.cursor() as cursor:
        (record.info[_DEFAULT_LEVEL],) = cursor.execute("SHOW default_transaction_isolation").fetchone()
    connection.rollback()


def _binary_cursor() -> dict[str, Any]:
    from psycopg import Cursor, pq

    class BinaryCursor(Cursor[Any]):
        """Takes rows as they are; as text a batch costs twice the time to read."""

        def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the driver's own
            super().__init__(*arguments, **named)
            self.format = pq.Format.BINARY

    return {"cursor_factory": BinaryCursor}
