"""Writing messages into the table: many rows to a statement, on any of the connections SQLAlchemy has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.outbox.dialects import Speech, speech_of
from headrace.outbox.messages import EncodedMessage
from headrace.outbox.metrics import INSERTED

__all__ = ["MOST_ROWS", "insert", "insert_async"]

MOST_ROWS = 500
"""Most rows of one statement."""

_BINARY = frozenset({"message", "key", "partition_key"})


def insert(connection: Connection, messages: Sequence[EncodedMessage]) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    for sql, values in _statements(connection.dialect, messages):
        connection.exec_driver_sql(sql, values)
    _count(messages)


async def insert_async(connection: AsyncConnection, messages: Sequence[EncodedMessage]) -> None:
    """Insert the messages in their order, in the connection's transaction."""
    for sql, values in _statements(connection.dialect, messages):
        await connection.exec_driver_sql(sql, values)
    _count(messages)


def _statements(dialect: Dialect, messages: Sequence[EncodedMessage]) -> Iterator[tuple[str, tuple[object, ...]]]:
    # By hand: SQLAlchemy would compile each statement of many rows anew, which costs more than running it.
    speech, as_hex = speech_of(dialect.name), dialect.driver == "aiomysql"
    for start in range(0, len(messages), MOST_ROWS):
        part = messages[start : start + MOST_ROWS]
        values = chain.from_iterable(map(_hexed, part) if as_hex else part)
        yield _sql(speech, len(part), as_hex=as_hex), tuple(values)


def _hexed(message: EncodedMessage) -> tuple[object, ...]:
    """aiomysql can't quote bytes with the newer releases of PyMySQL, which it is built on."""
    return tuple(value.hex() if isinstance(value, bytes) else value for value in message)


@lru_cache(maxsize=64)
def _sql(speech: Speech, rows: int, *, as_hex: bool) -> str:
    columns = ", ".join(speech.key if name == "key" else name for name in EncodedMessage._fields)
    unhex = f"UNHEX({speech.placeholder})"
    places = [unhex if as_hex and name in _BINARY else speech.placeholder for name in EncodedMessage._fields]
    row = f"({', '.join(places)})"
    return f"INSERT INTO kafka_messages ({columns}) VALUES {', '.join([row] * rows)}"  # noqa: S608


def _count(messages: Sequence[EncodedMessage]) -> None:
    for topic, count in Counter(message.topic for message in messages).items():
        INSERTED.labels(topic).inc(count)
