"""What the journal's tests stand on: a log, a store, topics of their own, and a replica brought to where it is wanted.

`replicate` is what tests of other rooms use too: it applies what the log holds to the store, as the pipeline would.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
import pytest_asyncio

from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.errors import RecordsLost
from headrace.journal import JOURNAL_TOPIC, HeadCache, Journal, replicate_batch
from headrace.journal.replicate import Views
from headrace.journal.topology import Topology
from headrace.log import Log, open_log
from headrace.model import Record, StoredEvent, TopicConfig, TopicPartition
from headrace.protocol.actions import Action
from headrace.protocol.headers import decode_action
from headrace.store import ReplicatedOffset, Store, open_store

__all__ = ["JournalSetting", "actions_of", "new_topic", "numbers", "read", "records_of", "replicate"]

AT_ONCE = 1000


@pytest.mark.asyncio(loop_scope="module")
class JournalSetting:
    """The fixtures. A tier overrides `log_address` and `store_address`; log and store are opened for each test."""

    @pytest.fixture
    def log_address(self) -> str:
        """Return where the log is."""
        raise NotImplementedError("override the fixture `log_address`")

    @pytest.fixture
    def store_address(self) -> str:
        """Return where the store is."""
        raise NotImplementedError("override the fixture `store_address`")

    @pytest_asyncio.fixture(loop_scope="module")
    async def log(self, log_address: str) -> AsyncIterator[Log]:
        """Open the log."""
        log = await open_log(log_address, settings=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
        yield log
        await log.close()

    @pytest_asyncio.fixture(loop_scope="module")
    async def store(self, store_address: str) -> AsyncIterator[Store]:
        """Open the store."""
        settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
        store = await open_store(store_address, settings=settings)
        yield store
        await store.close()

    @pytest_asyncio.fixture(loop_scope="module")
    async def topic(self, log: Log) -> str:
        """Make a topic with one partition."""
        return await new_topic(log)

    @pytest_asyncio.fixture(loop_scope="module")
    async def cache(self, log: Log, store: Store) -> AsyncIterator[HeadCache]:
        """Follow the head."""
        cache = HeadCache(log, store.reader)
        yield cache
        await cache.close()

    @pytest.fixture
    def journal(self, log: Log, store: Store, topic: str, cache: HeadCache) -> Journal:
        """Return the journals of the topic, with a head cache."""
        return Journal(log, store, topic, cache=cache)


async def new_topic(log: Log, *, partitions: int = 1, config: TopicConfig | None = None) -> str:
    """Make a topic with a name of its own."""
    name = f"j-{uuid.uuid4().hex[:12]}"
    await log.admin.create(name, partitions=partitions, config=config or JOURNAL_TOPIC)
    return name


async def replicate(
    log: Log,
    store: Store,
    topic: str,
    *,
    up_to: int | None = None,
    batch: int = AT_ONCE,
    move_to: int | None = None,
    views: Views | None = None,
    partitions: Sequence[int] | None = None,
) -> None:
    """Apply what the log holds to the store, up to an offset (inclusive) or all, a number of records at a time.

    All partitions, or those named; `views` get their part of it.

    With `move_to` rows and heads are all written, but the replicated offset stays there: as if the replicator died.
    Raises RecordsLost where the log has dropped what the store never got.
    """
    layout = await Topology(log, store.settings, topic).layout()
    target: Store = store if move_to is None else LaggingStore(store, move_to)  # type: ignore[assignment]
    for partition in partitions if partitions is not None else range(layout.partitions):
        at = TopicPartition(topic, partition)
        bounds, done = await log.bounds(at), await store.reader.replicated(at)
        start = done.offset + 1 if done is not None else 0
        if start < bounds.start:
            raise RecordsLost(topic, partition, start, bounds.start - 1)
        end = bounds.end if up_to is None else min(bounds.end, up_to + 1)
        if end > start:
            async for found in log.read(at, start, end, max_records=batch):
                last = found.next_offset - 1
                if (await replicate_batch(target, layout, at, found.records, up_to=last, views=views)).offset < last:
                    break  # it waits at a boundary: the rest is given again by the next call


class LaggingStore:
    """A store whose replicated offsets stop at a place, whatever is written."""

    def __init__(self, store: Store, most: int) -> None:
        self.reader = store.reader
        self.snapshots = store.snapshots
        self.settings = store.settings
        self.tags = store.tags
        self.writer = LaggingWriter(store, most)


class LaggingWriter:
    """Its writer."""

    def __init__(self, store: Store, most: int) -> None:
        self._writer = store.writer
        self._most = most

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Move it, not beyond."""
        if self._most >= 0:
            moved = msgspec.structs.replace(offset, offset=min(offset.offset, self._most))
            await self._writer.move_replicated(moved)


async def read(journal: Journal, id_: str, from_seq_nr: int = 1) -> list[StoredEvent]:
    """Return the events of a journal."""
    return [event async for event in journal.read(id_, from_seq_nr)]


async def numbers(journal: Journal, id_: str, from_seq_nr: int = 1) -> list[int]:
    """Return the numbers of a journal's events."""
    return [event.seq_nr for event in await read(journal, id_, from_seq_nr)]


async def records_of(log: Log, topic: str, partition: int = 0) -> list[Record]:
    """Return what the log holds."""
    at = TopicPartition(topic, partition)
    bounds = await log.bounds(at)
    if bounds.end == bounds.start:
        return []
    return [record async for batch in log.read(at, bounds.start, bounds.end) for record in batch.records]


async def actions_of(log: Log, topic: str, kind: type[Action] | None = None) -> list[Action]:
    """Return the actions that the log holds, of one kind or all."""
    found = [decode_action(record) for record in await records_of(log, topic)]
    return [action for action in found if action is not None and (kind is None or isinstance(action, kind))]
