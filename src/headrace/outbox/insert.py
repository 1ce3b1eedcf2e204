"""Writing messages into the table: many rows to a statement, on any of the connections that SQLAlchemy has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.errors import BadArgument
from headrace.outbox.dialects import Dialect, dialect_of
from headrace.outbox.messages import EncodedMessage
from headrace.outbox.metrics import INSERTED
from headrace.outbox.tables import DEFAULT_PREFIX, renamed
from headrace.outbox.wake import announce

__all__ = [
    "MOST_ROWS",
    "announce_at_commit",
    "begun",
    "count_inserted",
    "insert",
    "insert_async",
    "need_transaction",
    "statements",
]


def need_transaction(connection: Connection, doing: str = "publish") -> None:
    """Raise BadArgument if the connection commits every statement at once."""
    if _is_autocommit(connection):
        rule = f"it commits each statement at once (AUTOCOMMIT); {doing} in a transaction, on an engine that has them"
        raise BadArgument("where", connection.engine.url.render_as_string(hide_password=True), rule)


def _is_autocommit(connection: Connection) -> bool:
    asked = connection.get_execution_options().get("isolation_level")
    if asked is None:
        asked = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return asked == "AUTOCOMMIT" or _is_drivers_autocommit(connection)


def _is_drivers_autocommit(connection: Connection) -> bool:
    """Return True if the driver itself commits each statement, which SQLAlchemy does not know, as by connect_args."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # Without transactions of its own the driver leaves it to BEGIN, which an application may well say itself.
        return getattr(driver, "isolation_level", "") is None and not getattr(driver, "in_transaction", True)
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return getattr(driver, "autocommit", False) is True


MOST_ROWS = 500
"""Most rows of one statement."""

# A server takes a statement of 16 MiB by default (MySQL, MariaDB), and a driver may send bytes as twice as many.
_MOST_BYTES = 4 * 1024 * 1024

_BINARY = frozenset({"message", "key", "partition_key"})


def insert(connection: Connection, messages: Sequence[EncodedMessage], table_prefix: str = DEFAULT_PREFIX) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    need_transaction(begun(connection))
    dialect = connection.dialect
    as_hex = dialect.driver == "aiomysql"
    for sql, values in statements(dialect_of(dialect.name), dialect.paramstyle, messages, as_hex=as_hex):
        connection.exec_driver_sql(renamed(sql, table_prefix), values)
    count_inserted(messages)


async def insert_async(
    connection: AsyncConnection, messages: Sequence[EncodedMessage], table_prefix: str = DEFAULT_PREFIX
) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    await connection.run_sync(insert, messages, table_prefix)


def begun(connection: Connection) -> Connection:
    """Begin the transaction, as the first statement would."""
    if not connection.in_transaction():
        connection.begin()
    return connection


def statements(
    dialect: Dialect, paramstyle: str, messages: Sequence[EncodedMessage], *, as_hex: bool = False
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield inserts with their values, as a driver of that parameter style takes them."""
    # By hand: SQLAlchemy would compile each statement of many rows again, which costs more than running it.
    for part in _parts(messages):
        values = chain.from_iterable(map(_hexed, part) if as_hex else part)
        yield _sql(dialect, paramstyle, len(part), as_hex=as_hex), tuple(values)


def _parts(messages: Sequence[EncodedMessage]) -> Iterator[Sequence[EncodedMessage]]:
    """Yield the messages in parts of at most MOST_ROWS, and of at most _MOST_BYTES unless a single one is larger."""
    start = size_bytes = 0
    for at, message in enumerate(messages):
        message_bytes = _size_of(message)
        if at > start and (at - start == MOST_ROWS or size_bytes + message_bytes > _MOST_BYTES):
            yield messages[start:at]
            start, size_bytes = at, 0
        size_bytes += message_bytes
    if start < len(messages):
        yield messages[start:]


def _size_of(message: EncodedMessage) -> int:
    return len(message.message or b"") + len(message.key or b"") + len(message.headers or "")


def _hexed(message: EncodedMessage) -> tuple[object, ...]:
    """aiomysql can't quote bytes with the newer releases of PyMySQL, which it is built on."""
    return tuple(value.hex() if isinstance(value, bytes) else value for value in message)


@lru_cache(maxsize=64)
def _sql(dialect: Dialect, paramstyle: str, rows: int, *, as_hex: bool) -> str:
    columns = ", ".join(dialect.key if name == "key" else name for name in EncodedMessage._fields)
    marks = _placeholders(paramstyle)
    values = ", ".join(f"({_row(marks, as_hex=as_hex)})" for _ in range(rows))
    return f"INSERT INTO kafka_messages ({columns}) VALUES {values}"  # noqa: S608


def _row(marks: Iterator[str], *, as_hex: bool) -> str:
    return ", ".join(
        f"UNHEX({mark})" if as_hex and name in _BINARY else mark
        for name, mark in zip(EncodedMessage._fields, marks, strict=False)
    )


def _placeholders(paramstyle: str) -> Iterator[str]:
    """Yield placeholders as the driver writes them: they are its own, whatever the database."""
    if paramstyle == "numeric_dollar":
        return (f"${nr}" for nr in count(1))
    return repeat("?" if paramstyle == "qmark" else "%s")


def count_inserted(messages: Sequence[EncodedMessage]) -> None:
    """Count the messages by topic."""
    for topic, inserted in Counter(message.topic for message in messages).items():
        INSERTED.labels(topic).inc(inserted)


_PUBLISHED = "headrace.outbox.published"
_COMMITTED = "headrace.outbox.committed"


def announce_at_commit(connection: Connection) -> None:
    """Wake relays when the connection's transaction, which has messages in it now, is committed."""
    connection.info[_PUBLISHED] = True
    if not event.contains(connection.engine, "commit", _committing):
        event.listen(connection.engine, "commit", _committing)
        event.listen(connection.engine, "rollback", _rolling_back)
        event.listen(connection.engine.pool, "checkin", _returned)


def _committing(connection: Connection) -> None:
    """Runs a moment before the commit: a relay that looks too early looks again soon."""
    if connection.info.pop(_PUBLISHED, False):
        connection.info[_COMMITTED] = connection.engine.url
        announce(connection.engine.url)


def _rolling_back(connection: Connection) -> None:
    if not connection.invalidated:  # a connection that was lost has no `info`, and asking for it ends the rollback
        connection.info.pop(_PUBLISHED, None)


def _returned(_connection: Any, entry: ConnectionPoolEntry) -> None:  # noqa: ANN401 - the driver's own
    url = entry.info.pop(_COMMITTED, None)
    if url is not None:
        announce(url)
