"""What replication makes of the store, by key: records in, rows and heads out, over any backend."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore, Tables
from tests.suites.journal_script import FIRST_MS, Script
from tests.suites.journal_setting import JournalSetting, numbers, replicate

from headrace.errors import IntegrityBroken
from headrace.journal import Journal, replicate_batch
from headrace.log import Log
from headrace.model import Event, Record, TopicPartition
from headrace.protocol.entries import batch_of
from headrace.protocol.fold import exists, pointer_of, record_id_of
from headrace.protocol.key_writes import KeyFold, KeyWrites, fold_key
from headrace.protocol.layout import Generation, Layout
from headrace.store import EventRow, JournalMeta, Place, RowDeletion, Store, StoreWriter, meta_segment
from headrace.testing.conformance.store_rows import counted

__all__ = ["EventualStore", "Replica"]

DAY_MS = 24 * 60 * 60 * 1000


class Replica:
    """A partition's replica in a store, fed from a script."""

    def __init__(self, store: Store, *, offset: int = 0) -> None:
        self.store = store
        self.script = Script(f"r-{uuid.uuid4().hex[:12]}", offset=offset)
        self.topic = self.script.at.topic
        self._layout = Layout(self.topic, "script", (Generation(1),))

    async def apply(self) -> None:
        """Replicate what the script holds."""
        records = self.script.records
        await replicate_batch(self.store, self._layout, self.script.at, records, up_to=records[-1].offset)

    async def late(self, records: Sequence[Record], *, generation: int = 0, on: JournalMeta | None = None) -> KeyFold:
        """Apply records of the key "k" as a writer would that does not know how far others are."""
        meta = on if on is not None else await self.meta()
        fold = fold_key(meta, batch_of(records, generation).by_id["k"])
        await write_pieces(self.store.writer, self.topic, "k", fold.pieces)
        return fold

    async def meta(self, id_: str = "k") -> JournalMeta | None:
        """Return a journal's head."""
        return await self.store.reader.meta(self.topic, id_)

    async def head(self, id_: str = "k") -> tuple[int, int, int]:
        """Return seq_nr, delete_to and offset of a journal that has a head."""
        meta = await self.meta(id_)
        assert meta is not None
        return meta.seq_nr, meta.delete_to, meta.offset

    async def rows(self, id_: str = "k", *, segment_size: int = 10_000, last: int = 100) -> list[EventRow]:
        """Return all rows of a journal."""
        pages = self.store.reader.rows(self.topic, id_, segment_size=segment_size, first=1, last=last)
        return [row async for page in pages for row in page]

    async def numbers(self, *, segment_size: int = 10_000, last: int = 100) -> list[int]:
        """Return the numbers of all rows."""
        return [row.seq_nr for row in await self.rows(segment_size=segment_size, last=last)]


async def write_pieces(writer: StoreWriter, topic: str, id_: str, pieces: Sequence[KeyWrites]) -> None:
    """Write what a fold asks for, in its order."""
    for piece in pieces:
        await writer.write_rows(topic, id_, piece.rows)
        await writer.write_gaps(topic, id_, piece.gaps)
        if piece.meta is not None:
            await writer.write_meta(piece.meta)
        for deletion, at in piece.deletions:
            await writer.delete_rows(topic, id_, [deletion], at=at)


class EventualStore(JournalSetting):
    """The R lines."""

    @pytest.fixture
    def replica(self, store: Store) -> Replica:
        """Return a replica of a topic of its own."""
        return Replica(store)

    async def test_the_first_append(self, store: Store, replica: Replica) -> None:
        """R1: a head with seq_nr 1, nothing deleted, a record_id, created = updated; listed once a pointer is there."""
        replica.script.append("k", 1)
        fold = fold_key(None, batch_of(replica.script.records, 0).by_id["k"])
        await write_pieces(store.writer, replica.topic, "k", fold.pieces)
        assert replica.topic not in await store.reader.topics()
        await replica.apply()
        assert replica.topic in await store.reader.topics()
        meta = await replica.meta()
        assert meta is not None
        assert await replica.head() == (1, 0, 0)
        assert meta.record_id == record_id_of(replica.topic, 0, 0, 0)
        assert meta.created_ms == meta.updated_ms == FIRST_MS + 1
        assert meta.last_append == Place(0, 0)

    async def test_a_late_beginning(self, store: Store) -> None:
        """R2: first append is 5,6,7@10: delete_to 4, pointer (10, 7), rows 5,6,7."""
        replica = Replica(store, offset=10)
        replica.script.append("k", 5, 7)
        await replica.apply()
        assert await replica.head() == (7, 4, 10)
        assert await replica.numbers() == [5, 6, 7]

    @pytest.mark.parametrize(("segment_size", "segments"), [(2, [0, 0, 1]), (None, [0, 0, 0])])
    async def test_segments(self, replica: Replica, segment_size: int | None, segments: list[int]) -> None:
        """R3: segment_size 2, append 1..3: segments 0,0,1; size 10 000: all in 0."""
        if segment_size is not None:
            replica.script.mark("k", segment_size=segment_size)
        replica.script.append("k", 1, 3)
        await replica.apply()
        assert [row.segment for row in await replica.rows(segment_size=segment_size or 10_000)] == segments

    async def test_an_append_at_or_below_the_stored_place_changes_nothing(self, replica: Replica) -> None:
        """R4: nothing changes, and nothing is written."""
        first = replica.script.append("k", 1)
        replica.script.append("k", 2)
        await replica.apply()
        before = await replica.meta(), await replica.rows()
        for records in ([first], replica.script.records[1:], replica.script.records):
            fold = await replica.late(records)
            assert fold.pieces == []
        assert (await replica.meta(), await replica.rows()) == before

    async def test_deletes_of_rows(self, replica: Replica) -> None:
        """R6, R7, R10: delete_to is clamped, rows go; again only the offset moves; an older one does nothing."""
        replica.script.append("k", 1)
        replica.script.skip()
        replica.script.delete("k", (1 << 63) - 1)
        await replica.apply()
        assert (await replica.head(), await replica.rows()) == ((1, 1, 2), [])
        replica.script.delete("k", (1 << 63) - 1)
        await replica.apply()
        assert (await replica.head(), await replica.rows()) == ((1, 1, 3), [])
        await replica.late(replica.script.records[1:2])
        assert await replica.head() == (1, 1, 3)

    async def test_a_delete_of_a_missing_journal(self, replica: Replica) -> None:
        """R8: delete(5)@1: no rows, pointer (1, 5); append 6: [6]; append 1 is void."""
        replica.script.skip()
        replica.script.delete("k", 5)
        await replica.apply()
        assert (await replica.head(), await replica.rows()) == ((5, 5, 1), [])
        replica.script.append("k", 1)
        await replica.apply()
        assert (await replica.head(), await replica.rows()) == ((5, 5, 1), [])
        replica.script.append("k", 6)
        await replica.apply()
        assert (await replica.head(), await replica.numbers()) == ((6, 5, 3), [6])

    async def test_a_delete_over_segments(self, replica: Replica) -> None:
        """R11: full segments go whole, the last one by range."""
        replica.script.mark("k", segment_size=3)
        replica.script.append("k", 1, 11)
        await replica.apply()
        for to, left in ((2, range(3, 12)), (7, range(8, 12)), (9, range(10, 12)), (11, range(0))):
            replica.script.delete("k", to)
            await replica.apply()
            assert await replica.numbers(segment_size=3) == list(left)

    async def test_a_purge(self, replica: Replica) -> None:
        """R12: a marker stays, rows go in every segment; an older one is a no-op, the same one finishes."""
        script = replica.script
        script.mark("k", segment_size=1)
        script.append("k", 1, 2)
        script.offset = 4
        script.purge("k")
        await replica.apply()
        marker = await replica.meta()
        assert marker is not None
        assert (exists(marker), marker.is_purged, marker.offset, marker.seq_nr) == (False, True, 4, 2)
        assert await replica.numbers(segment_size=1) == []
        older = Script(replica.topic, offset=3)
        older.purge("k")
        await replica.late(older.records)
        assert await replica.meta() == marker
        again = await replica.late(script.records[-1:])
        assert [piece.deletions for piece in again.pieces] == [[(RowDeletion(0, None, 1), Place(0, 4))]]
        assert await replica.meta() == marker

    async def test_a_purge_of_a_missing_journal_keeps_late_writers_out(self, replica: Replica) -> None:
        """R12: nothing visible changes, but the marker is written: an older append can't bring the journal back."""
        append = replica.script.append("k", 1)
        replica.script.purge("k")
        await replica.late(replica.script.records[1:])
        meta = await replica.meta()
        assert meta is not None
        assert meta.is_purged
        await replica.late([append])
        assert await replica.meta() == meta
        assert await replica.rows() == []

    async def test_a_purge_of_many_segments(self, replica: Replica) -> None:
        """R13: 10 × segment_size events, purge: every segment is empty."""
        replica.script.mark("k", segment_size=4)
        replica.script.append("k", 1, 40)
        await replica.apply()
        assert len(await replica.rows(segment_size=4)) == 40
        replica.script.purge("k")
        await replica.apply()
        assert await replica.rows(segment_size=4) == []

    @pytest.mark.parametrize("size", [1, 10_000])
    async def test_a_gap_of_a_hundred_million_numbers_costs_nothing(self, replica: Replica, size: int) -> None:
        """FJ6: replication stood still over one deletion a segment, and reads asked for each empty segment."""
        script, far = replica.script, 10**8
        script.mark("k", segment_size=size)
        before = counted("headrace_store_requests_total")
        script.append("k", 1, 2)
        script.append("k", far, far + 1)
        await replica.apply()
        script.append("k", 3 * far)
        await replica.apply()
        assert await replica.numbers(segment_size=size, last=3 * far) == [1, 2, far, far + 1, 3 * far]
        script.delete("k", far)
        await replica.apply()
        assert await replica.numbers(segment_size=size, last=3 * far) == [far + 1, 3 * far]
        script.purge("k")
        await replica.apply()
        assert await replica.rows(segment_size=size, last=4) == []
        await replica.late(script.records[-1:])
        script.append("k", 2 * far)
        await replica.apply()
        assert await replica.numbers(segment_size=size, last=2 * far) == [2 * far]
        script.append("k", 2 * far + 1)
        script.purge("k")
        await replica.apply()
        assert counted("headrace_store_requests_total") - before < 150

    async def test_a_jump_of_an_earlier_incarnation_hides_nothing(self, replica: Replica) -> None:
        """FJ6: notes of jumps outlive a purge; the next incarnation's rows lie where the first one jumped over."""
        script = replica.script
        script.mark("k", segment_size=1)
        script.append("k", 1)
        script.append("k", 10**6)
        script.purge("k")
        for n in (1, 200, 400, 10**5):
            script.append("k", n)
        await replica.apply()
        assert await replica.numbers(segment_size=1, last=10**5) == [1, 200, 400, 10**5]
        script.purge("k")
        await replica.apply()
        script.append("k", 1)
        await replica.apply()
        assert await replica.numbers(segment_size=1, last=10**5) == [1]

    async def test_a_head_whose_delete_to_ran_ahead(self, store: Store, replica: Replica) -> None:
        """R14, R15: meta(seq_nr n, delete_to n+1): both segments cleaned; delete_to is monotone and counts."""
        replica.script.mark("k", segment_size=4)
        replica.script.append("k", 1, 4)
        replica.script.append("k", 5)
        await replica.apply()
        for ends_with, head in ((replica.script.delete, (5, 5, 4)), (None, None)):
            meta = await replica.meta()
            assert meta is not None
            ahead = msgspec.structs.replace(meta, offset=replica.script.offset, seq_nr=4, delete_to=5)
            await store.writer.write_meta(ahead)
            replica.script.skip()
            if ends_with is not None:
                ends_with("k", 2)
                await replica.apply()
                assert await replica.head() == head
        replica.script.purge("k")
        await replica.apply()
        assert await replica.rows(segment_size=4) == []

    async def test_an_incarnation_keeps_its_segment_size(self, replica: Replica) -> None:
        """R17: the topic's size becomes 2: the journal keeps 10 000; purge then append: the new one uses 2."""
        replica.script.append("k", 1, 3)
        await replica.apply()
        replica.script.mark("k", segment_size=2)
        await replica.apply()
        replica.script.append("k", 4)
        await replica.apply()
        meta = await replica.meta()
        assert meta is not None
        assert meta.segment_size == 10_000
        assert [row.segment for row in await replica.rows()] == [0, 0, 0, 0]
        replica.script.purge("k")
        await replica.apply()
        replica.script.append("k", 1, 3)
        await replica.apply()
        meta = await replica.meta()
        assert meta is not None
        assert meta.segment_size == 2
        assert [row.segment for row in await replica.rows(segment_size=2)] == [0, 0, 1]

    async def test_rows_of_another_incarnation_are_not_read(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """R18: only those of the current record_id; a true duplicate raises, naming key and seq_nr."""
        await journal.append("k", [Event(1, "one"), Event(2, "two")])
        await replicate(log, store, topic)
        pages = store.reader.rows(topic, "k", segment_size=10_000, first=1, last=9)
        first, _ = [row async for page in pages for row in page]
        alien = msgspec.structs.replace(first, record_id=uuid.uuid4(), timestamp_ms=first.timestamp_ms - 5)
        await store.writer.write_rows(topic, "k", [alien])
        assert await numbers(journal, "k") == [1, 2]
        double = msgspec.structs.replace(first, timestamp_ms=first.timestamp_ms + 5)
        await store.writer.write_rows(topic, "k", [double])
        with pytest.raises(IntegrityBroken) as broken:
            await numbers(journal, "k")
        assert (broken.value.key, broken.value.seq_nr) == ("k", 1)

    @pytest.mark.parametrize(
        "damage",
        [
            {"payload_type": "json", "payload": b'{"cut":'},
            {"payload_type": "json", "payload": b"1e400"},
            {"payload_type": "text", "payload": b"\xff"},
            {"metadata": "no JSON"},
            {"metadata": '{"header":5}'},
        ],
        ids=str,
    )
    async def test_a_row_that_can_not_be_decoded_is_named(
        self, log: Log, store: Store, journal: Journal, topic: str, damage: dict[str, Any]
    ) -> None:
        """R18, R23: an integrity error with key and seq_nr, which says what repairs it; other events are read."""
        await journal.append("k", [Event(n) for n in (1, 2, 3)])
        await replicate(log, store, topic)
        pages = store.reader.rows(topic, "k", segment_size=10_000, first=2, last=2)
        (row,) = [row async for page in pages for row in page]
        await store.writer.write_rows(topic, "k", [msgspec.structs.replace(row, **damage)])
        for reading in (numbers(journal, "k"), _numbers_of_many(journal, "k")):
            with pytest.raises(
                IntegrityBroken, match=r"at seq_nr 2: its row can't be decoded.*audit --repair"
            ) as broken:
                await reading
            assert (broken.value.key, broken.value.seq_nr) == ("k", 2)
        assert await numbers(journal, "k", 3) == [3]

    @pytest.mark.parametrize(("text", "ms"), [("1 minute", 60_000), ("1 day", DAY_MS)])
    async def test_expiry(self, replica: Replica, text: str, ms: int) -> None:
        """R19: expire_on is exact; a delete does not touch it; the next append without it removes it."""
        replica.script.append("k", 1, expire_after=text)
        await replica.apply()
        for expected in ((text, FIRST_MS + 1 + ms), (text, FIRST_MS + 1 + ms), (None, None)):
            meta = await replica.meta()
            assert meta is not None
            assert (meta.expire_after, meta.expire_on_ms) == expected
            if len(replica.script.records) == 1:
                replica.script.delete("k", 1)
            else:
                replica.script.append("k", 2)
            await replica.apply()

    async def test_ids_that_differ_in_case(self, replica: Replica) -> None:
        """R20: the same meta segment, distinct journals."""
        assert meta_segment("id", 10_000) == meta_segment("ID", 10_000)
        replica.script.append("id", 1)
        replica.script.append("ID", 1, 3)
        await replica.apply()
        assert [(await replica.head(id_))[0] for id_ in ("id", "ID")] == [1, 3]

    async def test_a_key_that_moved_to_another_partition(self, store: Store) -> None:
        """R21: after the topic grew no append is dropped because its offset is smaller."""
        replica = Replica(store, offset=100)
        replica.script.append("k", 1)
        await replica.apply()
        moved = Script(replica.topic, 5, offset=3)
        moved.append("k", 2)
        moved.delete("k", 1)
        await replica.late(moved.records, generation=1)
        meta = await replica.meta()
        assert meta is not None
        assert (meta.place, meta.partition, pointer_of(meta)) == (Place(1, 4), 5, 2)
        assert await replica.numbers() == [2]
        await replica.late(replica.script.records)
        assert await replica.numbers() == [2]

    async def test_random_order_duplicates_and_two_writers(self, store: Store) -> None:
        """R24: they end in the same rows and heads as one pass in order."""
        for seed in range(6):
            rng = random.Random(seed)
            replica = Replica(store)
            replica.script = random_history(rng, actions=20, topic=replica.topic)
            await asyncio.gather(*(_stumble(rng, replica) for _ in range(2)))
            await replica.apply()
            expected = await _in_order(replica)
            for id_ in IDS:
                meta = expected.metas.get((replica.topic, id_))
                assert await replica.meta(id_) == meta, f"seed {seed}, {id_}"
                size, last = (meta.segment_size, meta.seq_nr + 1) if meta is not None else (10_000, 100)
                found = await replica.rows(id_, segment_size=size, last=last)
                rows = expected.rows.get((replica.topic, id_), {}).values()
                assert found == sorted(rows, key=lambda row: row.seq_nr), f"seed {seed}, {id_}"


async def _stumble(rng: random.Random, replica: Replica) -> None:
    """Replicate in random slices, some of them long done, as a rival that is late would."""
    records, store = replica.script.records, replica.store
    layout = Layout(replica.topic, "script", (Generation(1),))
    for _ in range(12):
        done = await store.reader.replicated(TopicPartition(replica.topic, 0))
        reached = done.offset if done is not None else -1
        up_to = min(records[-1].offset, max(0, reached + rng.randint(-5, 6)))
        begin = rng.randint(0, reached + 1)
        some = [record for record in records if begin <= record.offset <= up_to]
        await replicate_batch(store, layout, replica.script.at, some, up_to=up_to)


async def _in_order(replica: Replica) -> Tables:
    memory = MemoryStore()
    records = replica.script.records
    layout = Layout(replica.topic, "script", (Generation(1),))
    await replicate_batch(memory, layout, replica.script.at, records, up_to=records[-1].offset)
    return memory.tables


async def _numbers_of_many(journal: Journal, *ids: str) -> list[int]:
    return [event.seq_nr async for _, events in journal.read_many(ids) async for event in events]
