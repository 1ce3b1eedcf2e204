"""What a client of the journal sees: writing and reading back, at every place of the replica."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from tests.suites.journal_faults import RepeatingLog
from tests.suites.journal_setting import (
    JournalSetting,
    actions_of,
    new_topic,
    numbers,
    read,
    replicate,
)

from headrace.errors import NoStateYet, UnknownTopic
from headrace.journal import HeadCache, Journal
from headrace.log import Log
from headrace.model import MAX_SEQ_NR, Event
from headrace.protocol.actions import Delete, Mark
from headrace.store import Store

__all__ = ["Clients"]

PAYLOADS: dict[str, Any] = {"none": None, "binary": b"\x00\xff", "text": "té\nxt", "json": {"a": [1, None, "x"]}}


class Clients(JournalSetting):
    """The tests of `Journal.append`, `read`, `pointer`, `delete`, `purge`, `mark`."""

    async def test_nothing_written(self, log: Log, journal: Journal, topic: str) -> None:
        """J1: read gives [], pointer None; delete(max) returns None and writes no record but marks."""
        assert await numbers(journal, "k") == []
        assert await journal.pointer("k") is None
        assert await journal.delete("k", to=MAX_SEQ_NR) is None
        assert all(isinstance(action, Mark) for action in await actions_of(log, topic))

    async def test_appends_are_read_whatever_the_split(self, journal: Journal) -> None:
        """J2, J3, J4: append [1], [2,3], [4]: 1 to 4, from anywhere; from the greatest number nothing."""
        for first, last in ((1, 1), (2, 3), (4, 4)):
            await journal.append("k", [Event(n, n) for n in range(first, last + 1)])
        assert [event.payload for event in await read(journal, "k")] == [1, 2, 3, 4]
        assert await journal.pointer("k") == 4
        assert await numbers(journal, "k", 3) == [3, 4]
        assert await numbers(journal, "k", MAX_SEQ_NR) == []

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    @pytest.mark.parametrize("replicated", [-1, 0, 1, 2, 9])
    async def test_a_read_can_end_early(
        self, log: Log, store: Store, topic: str, is_cached: bool, replicated: int
    ) -> None:
        """A read up to a number gives what the whole read gives up to there, wherever replication is."""
        cache = HeadCache(log, store.reader) if is_cached else None
        journal = Journal(log, store, topic, cache=cache)
        for first, last in ((1, 2), (3, 5), (8, 9), (10, 12)):
            await journal.append("k", [Event(n, n) for n in range(first, last + 1)])
        await journal.delete("k", to=1)
        await replicate(log, store, topic, up_to=replicated)
        whole = await numbers(journal, "k")
        assert whole == [2, 3, 4, 5, 8, 9, 10, 11, 12]
        for first in (1, 2, 4, 9):
            for last in (1, 2, 4, 6, 8, 11, 12, 13, MAX_SEQ_NR, MAX_SEQ_NR + 1):
                found = [event.seq_nr async for event in journal.read("k", first, to_seq_nr=last)]
                assert found == [n for n in whole if first <= n <= last], (first, last)
        if cache is not None:
            await cache.close()

    async def test_a_topic_that_nobody_wrote_is_empty(self, log: Log, store: Store) -> None:
        """FN6: reads of a topic that does not exist give nothing, make nothing, and see what is written later."""
        name = f"j-{uuid.uuid4().hex[:12]}"
        reader = Journal(log, store, name, cache=None, read_only=True)
        writer = Journal(log, store, name, cache=None)
        creator = Journal(log, store, name, cache=None, partitions=1)
        for journal in (reader, writer, creator):
            assert await numbers(journal, "k") == []
            assert await journal.pointer("k") is None
            assert await journal.snapshots.load("k") is None
            with pytest.raises(UnknownTopic):
                await journal.stats()
        for journal in (writer, creator):
            assert await journal.delete("k", to=1) is None
            with pytest.raises(NoStateYet):
                await journal.snapshots.save("k", 1, "state")
        with pytest.raises(UnknownTopic):
            await log.admin.describe(name)
        await creator.append("k", [Event(1)], expected=await creator.pointer("k"))
        for journal in (reader, writer, creator):
            assert await numbers(journal, "k") == [1]
        await log.admin.delete(name)

    async def test_who_looks_and_who_writes_at_once_make_one_topic(self, log: Log, store: Store) -> None:
        """FN6: an append that comes while a read looks for the topic creates it, and does not get the read's answer."""
        name = f"j-{uuid.uuid4().hex[:12]}"
        journal = Journal(log, store, name, cache=None, partitions=1)
        looking = asyncio.ensure_future(journal.pointer("k"))
        await asyncio.sleep(0)
        looking.cancel()  # what it began to read is joined by the next call
        (appended,) = await journal.append_next("k", ["x"])
        assert (appended.seq_nr, await numbers(journal, "k")) == (1, [1])
        await asyncio.gather(looking, return_exceptions=True)
        await log.admin.delete(name)

    @pytest.mark.parametrize(("to", "left"), [(5, []), (MAX_SEQ_NR, []), (1, [2, 3, 4, 5]), (4, [5])])
    async def test_deletes(
        self, log: Log, store: Store, journal: Journal, topic: str, to: int, left: list[int]
    ) -> None:
        """J5, J6, J7, J8: before and after replication; the pointer stays, the record is clamped to it."""
        await journal.append("k", [Event(n) for n in range(1, 6)])
        await journal.delete("k", to=to)
        for _ in range(2):
            assert await numbers(journal, "k") == left
            assert await journal.pointer("k") == 5
            await replicate(log, store, topic)
        (deleted,) = await actions_of(log, topic, Delete)
        assert isinstance(deleted, Delete)
        assert deleted.to == min(to, 5)

    async def test_a_purge_and_a_new_beginning(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """J10: none of the old events, before and after replication."""
        await journal.append("k", [Event(n, "old") for n in range(1, 6)])
        await replicate(log, store, topic)
        await journal.purge("k")
        for _ in range(2):
            assert await numbers(journal, "k") == []
            assert await journal.pointer("k") is None
            await replicate(log, store, topic)
        await journal.append("k", [Event(1, "new")])
        for _ in range(2):
            assert [(event.seq_nr, event.payload) for event in await read(journal, "k")] == [(1, "new")]
            assert await journal.pointer("k") == 1
            await replicate(log, store, topic)

    async def test_a_mark_changes_nothing(self, log: Log, journal: Journal, topic: str) -> None:
        """J11: read and pointer unchanged; exactly one mark record with its id."""
        await journal.append("k", [Event(n) for n in range(1, 6)])
        await journal.mark("k", "x")
        assert await numbers(journal, "k") == [1, 2, 3, 4, 5]
        assert await journal.pointer("k") == 5
        marks = [mark for mark in await actions_of(log, topic, Mark) if isinstance(mark, Mark)]
        assert [mark.id for mark in marks].count("x") == 1

    async def test_a_journal_can_begin_late(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """J12: append 2: [2]; delete(max), purge, append 2 with expiry: [2]."""
        await journal.append("k", [Event(2)])
        assert await numbers(journal, "k") == [2]
        assert await journal.pointer("k") == 2
        await journal.delete("k", to=MAX_SEQ_NR)
        await journal.purge("k")
        await journal.append("k", [Event(2)], expire_after="1 day")
        for _ in range(2):
            (event,) = await read(journal, "k")
            assert (event.seq_nr, event.expire_after) == (2, "1 day")
            await replicate(log, store, topic)

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    @pytest.mark.parametrize("is_repeated", [False, True], ids=["once", "twice"])
    async def test_a_thousand_appends(self, log: Log, store: Store, is_cached: bool, is_repeated: bool) -> None:
        """J13, J15: with an empty replica, one 500 behind, delivered twice; then deleted and purged."""
        topic = await new_topic(log)
        seen: Log = RepeatingLog(log) if is_repeated else log
        cache = HeadCache(seen, store.reader) if is_cached else None
        journal = Journal(seen, store, topic, cache=cache)
        await asyncio.gather(*(journal.append("k", [Event(n, n)]) for n in range(1, 1001)))  # in this order
        assert await numbers(journal, "k") == list(range(1, 1001))
        await replicate(seen, store, topic, up_to=499, batch=100)
        assert await numbers(journal, "k") == list(range(1, 1001))
        assert await numbers(journal, "k", 501) == list(range(501, 1001))
        await journal.delete("k", to=1000)
        assert (await numbers(journal, "k"), await journal.pointer("k")) == ([], 1000)
        await journal.purge("k")
        assert (await numbers(journal, "k"), await journal.pointer("k")) == ([], None)
        if cache is not None:
            await cache.close()

    async def test_writers_at_once_keep_to_their_keys(self, log: Log, store: Store, cache: HeadCache) -> None:
        """J16: 10 concurrent writers on 10 keys × 11 events: each key reads its own 11."""
        topic = await new_topic(log, partitions=4)
        journal = Journal(log, store, topic, cache=cache)

        async def write(id_: str) -> None:
            for n in range(1, 12):
                await journal.append(id_, [Event(n, f"{id_}-{n}")])

        ids = [f"k{n}" for n in range(10)]
        await asyncio.gather(*map(write, ids))
        for id_ in ids:
            assert [event.payload for event in await read(journal, id_)] == [f"{id_}-{n}" for n in range(1, 12)]

    async def test_reads_are_equal(self, journal: Journal) -> None:
        """J17: 10 reads after one append of 10 are equal."""
        await journal.append("k", [Event(n, n) for n in range(1, 11)])
        found = await asyncio.gather(*(read(journal, "k") for _ in range(10)))
        assert all(events == found[0] for events in found)
        assert len(found[0]) == 10

    async def test_the_log_and_the_store_tell_the_same(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """J19: time, place, origin, version, both metadata and headers come back identical from either."""
        position = await journal.append(
            "k",
            [Event(1, {"a": 1}, ("x", "y")), Event(2, "t")],
            metadata={"m": [1, {"z": None}]},
            payload_metadata={"p": 2.5},
            headers={"h": "1", "ключ": ""},
            expire_after="1 day",
            origin="here",
            version="v1",
        )
        from_log = await read(journal, "k")
        await replicate(log, store, topic)
        from_store = await read(journal, "k")
        assert from_log == from_store
        first = from_store[0]
        assert (first.partition, first.offset, first.timestamp_ms) == position[1:]
        assert (first.metadata, first.payload_metadata) == ({"m": [1, {"z": None}]}, {"p": 2.5})
        assert (first.origin, first.version, first.headers) == ("here", "v1", {"h": "1", "ключ": ""})
        assert (first.tags, first.expire_after) == (("x", "y"), "1 day")

    @pytest.mark.parametrize("first", [1, 2, 10])
    async def test_payloads_of_all_kinds(
        self, log: Log, store: Store, journal: Journal, topic: str, first: int
    ) -> None:
        """J20: each alone, three together, and all four mixed: equal before and after replication."""
        lists = [[payload] * count for payload in PAYLOADS.values() for count in (1, 3)]
        lists += [list(PAYLOADS.values()), [b"", "", {}, [], 0, False, None]]
        for number, payloads in enumerate(lists):
            await journal.append(f"k{number}", [Event(first + n, payload) for n, payload in enumerate(payloads)])
        for _ in range(2):
            for number, payloads in enumerate(lists):
                found = await read(journal, f"k{number}")
                assert [event.payload for event in found] == payloads
                assert [type(event.payload) for event in found] == list(map(type, payloads))
                assert [event.seq_nr for event in found] == list(range(first, first + len(payloads)))
            await replicate(log, store, topic)

    async def test_gaps_are_allowed(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """J30: append [1,2], then [7]: 1,2,7, pointer 7; also a gap inside one append."""
        await journal.append("k", [Event(1), Event(2)])
        await journal.append("k", [Event(7), Event(9)])
        for _ in range(2):
            assert await numbers(journal, "k") == [1, 2, 7, 9]
            assert await numbers(journal, "k", 3) == [7, 9]
            assert await journal.pointer("k") == 9
            await replicate(log, store, topic)
