"""The outbox at work: an order that is rolled back sends nothing, one that is committed arrives."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from headrace.cli.demo.voice import say, tell
from headrace.log import Log
from headrace.model import TopicConfig, TopicPartition

__all__ = ["show_outbox"]


async def show_outbox(log: Log, suffix: str) -> None:
    """Publish in SQL transactions, and relay to the log."""
    from sqlalchemy import text

    from headrace.outbox import JsonSerializer, Outbox, Relay, engine_for, migrate

    topic = f"orders{suffix}"
    await log.admin.create(topic, partitions=1, config=TopicConfig())
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'shop.db'}"
        await asyncio.to_thread(migrate, url)
        engine = engine_for(url)
        orders = Outbox().producer(topic, serializer=JsonSerializer())
        with engine.begin() as db:
            db.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"))

        say("The outbox: an order is written to SQL with its message, and rolled back")
        with engine.connect() as db:
            db.execute(text("INSERT INTO orders VALUES (1, 'a book')"))
            orders.publish(db, {"order": 1, "item": "a book"}, key="order-1")
            db.rollback()
        async with Relay(url, log) as relay:
            await relay.drain()
            tell(f"the topic holds {await _values(log, topic)}")

            say("Another one is committed")
            with engine.begin() as db:
                db.execute(text("INSERT INTO orders VALUES (2, 'a lamp')"))
                orders.publish(db, {"order": 2, "item": "a lamp"}, key="order-2")
            await relay.drain()
            tell(f"the topic holds {await _values(log, topic)}")
        engine.dispose()


async def _values(log: Log, topic: str) -> list[str]:
    at = TopicPartition(topic, 0)
    bounds = await log.bounds(at)
    if bounds.start == bounds.end:
        return []
    batches = log.read(at, bounds.start, bounds.end)
    return [(record.value or b"").decode() async for batch in batches for record in batch.records]
