"""A backlog in PostgreSQL: the bench's events as messages of an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, create_engine, text

from benchmarks.workloads.events import Event, events
from headrace.log import Log
from headrace.model import NewRecord, Position
from headrace.outbox import Message, Outbox, Producer, migrate
from headrace.outbox.engines import url_of

__all__ = ["Acknowledged", "Backlog"]

_PART = 10_000


class Backlog:
    """The table, filled before each round."""

    def __init__(self, url: str, *, count: int) -> None:
        self.url = url
        self.count = count
        self._messages = [Message(event.value, key=event.key) for event in events(count)]
        self._engine: Engine = create_engine(url_of(url))
        self._producers: dict[str, Producer] = {}
        migrate(url)

    def fill(self, topic: str, *, share: float = 1.0) -> int:
        """Publish the messages, or a share of them, committed; returns how many."""
        producer = self._producer(topic)
        chosen = self._messages[: max(1, round(len(self._messages) * share))]
        for start in range(0, len(chosen), _PART):
            with self._engine.begin() as connection:
                producer.publish_list(connection, chosen[start : start + _PART])
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE kafka_messages"))  # both sides start on a tidy table
        return len(chosen)

    def publish_one(self, topic: str, event: Event) -> None:
        """Publish one message, committed."""
        with self._engine.begin() as connection:
            self._producer(topic).publish(connection, event.value, key=event.key)

    def left(self) -> int:
        """Return how many messages the table holds."""
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT COUNT(*) FROM kafka_messages")).scalar_one())

    async def drained(self) -> None:
        """Wait until nothing is left, looking seldom enough not to be in the way."""
        while await asyncio.to_thread(self._is_any_left):  # noqa: ASYNC110 - another process' table has no event
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _producer(self, topic: str) -> Producer:
        return self._producers.setdefault(topic, Outbox().producer(topic))

    def _is_any_left(self) -> bool:
        with self._engine.connect() as connection:
            return bool(connection.execute(text("SELECT EXISTS (SELECT 1 FROM kafka_messages)")).scalar_one())


class Acknowledged:
    """A log that reports when an append was acknowledged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.acknowledged = asyncio.Event()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all of a log's
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Append, and report the acknowledgement."""
        positions = await self._log.append(records)
        self.acknowledged.set()
        return positions
