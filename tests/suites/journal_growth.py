"""Growth as every tier must survive it: an emptied store, and clients with other leases."""

from __future__ import annotations

from tests.suites.journal_memory import MemoryStore
from tests.suites.journal_setting import JournalSetting, new_topic, numbers, replicate

from headrace.journal import Journal, Topology, grow_topic
from headrace.journal.retention import remove_replicated
from headrace.log import Log
from headrace.model import Event
from headrace.store import Store

__all__ = ["Growth"]

LEASE_S = 0.05
IDS = [f"k{n}" for n in range(12)]


class Growth(JournalSetting):
    """E12, by tier."""

    async def test_a_store_that_is_empty_beside_a_grown_topic_learns_its_layout(self, log: Log, store: Store) -> None:
        """FJ3: the boundaries are in the log: reads and replication beside an empty store are whole."""
        topic = await new_topic(log, partitions=2)
        journal = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        for n, partitions in enumerate((3, 5), 1):
            for id_ in IDS:
                await journal.append(id_, [Event(n)])
            layout = await grow_topic(log, store.settings, topic, partitions=partitions, lease_s=LEASE_S)
        for id_ in IDS:
            await journal.append(id_, [Event(3)])
        empty = MemoryStore()
        beside = Journal(log, empty, topic, cache=None, lease_s=LEASE_S)
        for id_ in IDS:
            assert await numbers(beside, id_) == [1, 2, 3]
        assert await Topology(log, empty.settings, topic).layout() == layout
        for _ in range(3):
            await replicate(log, empty, topic)
            await replicate(log, store, topic)
        for id_ in IDS:
            assert await numbers(beside, id_) == [1, 2, 3]
        assert await remove_replicated(log, store, layout, retention_ms=1, now_ms=1 << 42) > 0
        assert await Topology(log, MemoryStore().settings, topic).layout() == layout
        for id_ in IDS:
            assert await numbers(journal, id_) == [1, 2, 3]
