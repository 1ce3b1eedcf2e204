"""Helpers of the outbox's tests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Engine, text

from headrace.log import Log
from headrace.model import Record, TopicConfig, TopicPartition
from headrace.outbox import Message, Outbox, OutboxSettings, Relay, event_id_of
from headrace.outbox.engines import engine_for
from headrace.testing.conformance.log_setting import read_all

TABLES = (
    "kafka_messages",
    "kafka_topic_info",
    "kafka_dead_messages",
    "kafka_inbox",
    "kafka_sent_messages",
    "kafka_inbox_failures",
)


def empty(url: URL) -> None:
    """Take all rows out of the tables, of which other tests left some."""
    engine = engine_for(url, pool_size=1)
    with engine.begin() as db:
        for table in TABLES:
            db.execute(text(f"DELETE FROM {table}"))
    engine.dispose()


def rows(engine: Engine, table: str = "kafka_messages", order: str = "id") -> list[Any]:
    """Return all rows of a table."""
    with engine.connect() as db:
        return list(db.execute(text(f"SELECT * FROM {table} ORDER BY {order}")).mappings())


def count(engine: Engine, table: str = "kafka_messages") -> int:
    """Return how many rows the table has."""
    with engine.connect() as db:
        return int(db.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one())


def database_id(ground: Ground) -> str:
    """Return the identity of the ground's database."""
    with ground.engine.connect() as db:
        return str(db.execute(text("SELECT database_id FROM kafka_outbox_identity")).scalar_one())


def publish(engine: Engine, topic: str, messages: Sequence[Message], **settings: Any) -> None:
    """Publish in a transaction of its own."""
    with engine.begin() as db:
        Outbox(OutboxSettings(**settings)).producer(topic).publish_list(db, messages)


def numbered(first: int, last: int, *, keys: int = 3) -> list[Message]:
    """Messages whose payloads are numbers, going round the keys."""
    return [Message(b"%d" % n, key=f"k{n % keys}") for n in range(first, last + 1)]


@dataclass(slots=True)
class Ground:
    """A database and a log."""

    url: URL
    address: str
    log: Log
    engine: Engine

    async def topic(self, *, partitions: int = 1, config: TopicConfig | None = None) -> str:
        """Make a topic with a name of its own."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        await self.log.admin.create(name, partitions=partitions, config=config or TopicConfig())
        return name

    def relay(self, **settings: Any) -> Relay:
        """Make a relay."""
        return Relay(self.url, self.log, settings=OutboxSettings(**settings))

    async def relayed(self, **settings: Any) -> None:
        """Run a relay until nothing is pending."""
        async with self.relay(**settings) as relay:
            await relay.drain()

    async def records(self, topic: str) -> list[Record]:
        """Read all that the topic holds, partition by partition."""
        partitions = (await self.log.admin.describe(topic)).partitions
        return [record for n in range(partitions) for record in await read_all(self.log, topic, n)]

    async def values(self, topic: str) -> list[bytes | None]:
        """Read all values of the topic."""
        return [record.value for record in await self.records(topic)]

    async def at(self, topic: str, partition: int = 0) -> int:
        """Return the end of a partition."""
        return (await self.log.bounds(TopicPartition(topic, partition))).end


def shown(ground: Ground) -> str:
    """Return the address of the database, for a child."""
    return ground.url.render_as_string(hide_password=False)


def first_times(records: Sequence[Record]) -> list[Record]:
    """Drop what a consumer with an inbox would drop."""
    seen: set[str | None] = set()
    return [r for r in records if (id_ := event_id_of(r.headers)) not in seen and not seen.add(id_)]  # type: ignore[func-returns-value]


def sequences(records: Sequence[Record]) -> dict[bytes, list[int]]:
    """Return the numbers that each key was given, in order."""
    found: dict[bytes, list[int]] = {}
    for record in records:
        found.setdefault(record.key or b"", []).append(int(record.value or b""))
    return found
