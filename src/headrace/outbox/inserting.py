"""Writing messages into the table: many rows to a statement, on any of the connections SQLAlchemy has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, repeat

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.outbox.autocommit import need_transaction
from headrace.outbox.dialects import Speech, speech_of
from headrace.outbox.messages import EncodedMessage
from headrace.outbox.metrics import INSERTED
from headrace.outbox.table_names import DEFAULT_PREFIX, renamed

__all__ = ["MOST_ROWS", "count_inserted", "insert", "insert_async", "statements"]

MOST_ROWS = 500
"""Most rows of one statement."""

# A server takes a statement of 16 MiB by default (MySQL, MariaDB), and a driver may send bytes as twice as many.
_MOST_BYTES = 4 * 1024 * 1024

_BINARY = frozenset({"message", "key", "partition_key"})


def insert(connection: Connection, messages: Sequence[EncodedMessage], table_prefix: str = DEFAULT_PREFIX) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    need_transaction(_begun(connection))
    dialect = connection.dialect
    as_hex = dialect.driver == "aiomysql"
    for sql, values in statements(speech_of(dialect.name), dialect.paramstyle, messages, as_hex=as_hex):
        connection.exec_driver_sql(renamed(sql, table_prefix), values)
    count_inserted(messages)


async def insert_async(
    connection: AsyncConnection, messages: Sequence[EncodedMessage], table_prefix: str = DEFAULT_PREFIX
) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    await connection.run_sync(insert, messages, table_prefix)


def _begun(connection: Connection) -> Connection:
    """Begin the transaction, as the first statement would."""
    if not connection.in_transaction():
        connection.begin()
    return connection


def statements(
    speech: Speech, paramstyle: str, messages: Sequence[EncodedMessage], *, as_hex: bool = False
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield inserts with their values, as a driver of that parameter style takes them."""
    # By hand: SQLAlchemy would compile each statement of many rows anew, which costs more than running it.
    for part in _parts(messages):
        values = chain.from_iterable(map(_hexed, part) if as_hex else part)
        yield _sql(speech, paramstyle, len(part), as_hex=as_hex), tuple(values)


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
def _sql(speech: Speech, paramstyle: str, rows: int, *, as_hex: bool) -> str:
    columns = ", ".join(speech.key if name == "key" else name for name in EncodedMessage._fields)
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
