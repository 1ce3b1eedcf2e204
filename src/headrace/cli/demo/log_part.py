"""The log at work: appends, transactions, a live reader, a process that is killed; and the outbox that sends to it.

An order that is rolled back sends nothing, one that is committed arrives.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.demo.voice import console, say, tell
from headrace.log import Log, transaction
from headrace.model import NewRecord, Position, Record, TopicConfig, TopicPartition

__all__ = ["show_log", "show_outbox"]

_WRITER = """
import asyncio, headrace
async def write():
    async with headrace.connect({address!r}) as hr:
        n = 0
        while True:
            await hr.log.append([headrace.NewRecord({topic!r}, b"n", b"%d" % n)])
            print(n, flush=True)
            n += 1
asyncio.run(write())
"""


async def show_log(log: Log, address: str, suffix: str) -> None:
    """Append, read back, commit and abort, follow, and kill a writer."""
    accounts = f"records{suffix}"
    say(f"A log at {address}, with a topic of 3 partitions")
    await log.admin.create(accounts, partitions=3, config=TopicConfig())
    await _append(log, accounts)
    await _read(log, accounts)
    await _transact(log, accounts, suffix)
    await _follow(log, accounts)
    await _kill(log, address, suffix)


async def _append(log: Log, topic: str) -> None:
    say("Appending: each key has its partition, each record its offset")
    changes = (("alice", "opened with 100"), ("bob", "opened with 50"), ("carol", "opened with 70"), ("alice", "+ 20"))
    records = [NewRecord(topic, name.encode(), change.encode()) for name, change in changes]
    _show_positions(records, await log.append(records))


async def _read(log: Log, topic: str) -> None:
    say("Reading it back, partition by partition")
    for partition in range(3):
        at = TopicPartition(topic, partition)
        bounds = await log.bounds(at)
        async for batch in log.read(at, bounds.start, bounds.end):
            for record in batch.records:
                _show(record)


async def _transact(log: Log, accounts: str, suffix: str) -> None:
    say("A transaction over two topics is all or nothing")
    ledger = f"ledger{suffix}"
    await log.admin.create(ledger, partitions=1, config=TopicConfig())
    producer = await log.transactional(f"demo{suffix}")
    async with transaction(producer) as opened:
        await opened.append(NewRecord(accounts, b"alice", b"- 30"), NewRecord(ledger, b"1", b"alice to bob: 30"))
    positions = " and ".join(f"{TopicPartition(p.topic, p.partition)} offset {p.offset}" for p in opened.positions)
    console.print(f"  committed at {positions}", markup=False)
    await producer.begin()
    await producer.append([NewRecord(ledger, b"2", b"bob to carol: 1000000")])
    await producer.abort()
    await producer.close()
    bounds = await log.bounds(TopicPartition(ledger, 0))
    seen = [r async for batch in log.read(TopicPartition(ledger, 0), 0, bounds.end) for r in batch.records]
    console.print(f"  aborted another: the ledger ends at offset {bounds.end}, and readers see {len(seen)} record")


async def _follow(log: Log, topic: str) -> None:
    say("A reader that waits is woken by the next append")
    at = TopicPartition(topic, 0)
    reader = log.read(at, (await log.bounds(at)).end)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0.05)
    started = time.perf_counter()
    await log.append([NewRecord(topic, b"dave", b"opened with 5", partition=0)])
    (record,) = (await waiting).records
    _show(record)
    console.print(f"  {(time.perf_counter() - started) * 1000:.1f} ms from append to reader")


async def _kill(log: Log, address: str, suffix: str) -> None:
    say("Another process appends as fast as it can, and is killed with -9")
    topic = f"counted{suffix}"
    await log.admin.create(topic, partitions=1, config=TopicConfig())
    script = _WRITER.format(address=address, topic=topic)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    acknowledged = -1
    assert child.stdout is not None  # noqa: S101  (it was asked for)
    while acknowledged < 200:
        acknowledged = int(await child.stdout.readline() or 10**9)
    child.send_signal(signal.SIGKILL)
    rest, _ = await child.communicate()
    acknowledged = int((rest.split(b"\n")[:-1] or [b"%d" % acknowledged])[-1])
    end = (await log.bounds(TopicPartition(topic, 0))).end
    console.print(f"  {acknowledged + 1} of its records were acknowledged; the log holds {end}")


def _show_positions(records: Sequence[NewRecord], positions: Sequence[Position]) -> None:
    for record, position in zip(records, positions, strict=True):
        text = f"{(record.key or b'').decode():8}{(record.value or b'').decode():18}"
        console.print(f"  {text}→ partition {position.partition}, offset {position.offset}")


def _show(record: Record) -> None:
    text = f"{(record.key or b'').decode():8}{(record.value or b'').decode():18}"
    console.print(f"  partition {record.partition} offset {record.offset:<3} {text}", markup=False)


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
            tell(f"the topic holds {await _values_of(log, topic)}")

            say("Another one is committed")
            with engine.begin() as db:
                db.execute(text("INSERT INTO orders VALUES (2, 'a lamp')"))
                orders.publish(db, {"order": 2, "item": "a lamp"}, key="order-2")
            await relay.drain()
            tell(f"the topic holds {await _values_of(log, topic)}")
        engine.dispose()


async def _values_of(log: Log, topic: str) -> list[str]:
    at = TopicPartition(topic, 0)
    bounds = await log.bounds(at)
    if bounds.start == bounds.end:
        return []
    batches = log.read(at, bounds.start, bounds.end)
    return [(record.value or b"").decode() async for batch in batches for record in batch.records]
