"""Many journals at once: their heads read together, their rows and heads written together."""

from __future__ import annotations

import uuid

from headrace.store import JournalWrite, Place, PlainRows, RowDeletion, Store, segment_of
from headrace.testing.conformance.store_setting import NOW_MS, StoreSetting, events, head, read_rows, seq_nrs

__all__ = ["ManyJournals"]

MANY = 700


class ManyJournals(StoreSetting):
    """What a store promises about the journals of a whole batch."""

    async def test_heads_of_many_journals_are_read_at_once(self, store: Store, topic: str) -> None:
        """Missing ones are left out, purge markers are there, and ids that differ in case are apart."""
        marker = head(topic, "gone", 5, is_purged=True, purged_at=Place(0, 5), record_id=None, created_ms=None)
        full = head(topic, "ID", 2, seq_nr=2**40, delete_to=12, properties={"a": ""}, expire_after="1 day", origin="o")
        heads = [marker, full, head(topic, "id", 1), *(head(topic, f"k{n}", n) for n in range(MANY))]
        await store.writer.write_journals([JournalWrite(meta, []) for meta in heads])
        asked = [*(meta.id for meta in heads), "nobody", "Id", "id"]
        assert await store.reader.metas_of(topic, asked) == {meta.id: meta for meta in heads}
        assert await store.reader.metas_of(topic, ["nobody"]) == {}
        assert await store.reader.metas_of(f"{topic}-2", ["id"]) == {}
        assert await store.reader.metas_of(topic, []) == {}

    async def test_rows_and_heads_of_many_journals_are_written_at_once(self, store: Store, topic: str) -> None:
        """All that was given is there, each journal's own, also one that only gets a head."""
        journals = [JournalWrite(head(topic, f"k{n}", n), events(1, n)) for n in range(20)]
        await store.writer.write_journals(journals)
        await store.writer.write_journals([])
        for meta, rows in journals:
            assert await store.reader.meta(topic, meta.id) == meta
            assert await read_rows(store, topic, meta.id) == rows

    async def test_the_highest_place_wins_among_many(self, store: Store, topic: str) -> None:
        """R19: as with single writes: a later head stays, a deletion holds off the rows below it."""
        later = head(topic, "later", 9, seq_nr=4)
        await store.writer.write_meta(later)
        await store.writer.delete_rows(topic, "cut", [RowDeletion(0, 2)], at=Place(0, 5))
        earlier = [JournalWrite(head(topic, id_, 3, seq_nr=3), events(1, 3)) for id_ in ("later", "cut")]
        await store.writer.write_journals(earlier)
        assert await store.reader.meta(topic, "later") == later
        assert seq_nrs(await read_rows(store, topic, "cut")) == [3]

    async def test_plain_rows_come_back_as_rows(self, store: Store, topic: str) -> None:
        """Columns or single rows make no difference: kinds of payload, segments, absent and empty values."""
        payloads = [
            ("binary", bytes(range(256))),
            ("binary", b""),
            ("text", "Grüße 🌍".encode()),
            ("text", b""),
            (None, None),
        ]
        for id_, origin, version, size in (("full", "host", "", 2), ("bare", None, None, 10)):
            rows = PlainRows(
                generation=1,
                partition=3,
                record_id=uuid.uuid4(),
                segment_size=size,
                origin=origin,
                version=version,
                seq_nrs=[1, 2, 3, 5, 6],
                offsets=[7, 7, 9, 2**45, 2**45],
                log_times_ms=[NOW_MS] * 5,
                timestamps_ms=[NOW_MS - n for n in range(5)],
                payload_types=[kind for kind, _ in payloads],
                payloads=[payload for _, payload in payloads],
            )
            await store.writer.write_journals([JournalWrite(head(topic, id_, 2**45, generation=1), rows)])
            assert await read_rows(store, topic, id_, size=size) == list(rows)
            assert [row.segment for row in rows] == [segment_of(row.seq_nr, size) for row in rows]

    async def test_plain_rows_lose_to_deletions(self, store: Store, topic: str) -> None:
        """Rows that are written late bring nothing back."""
        rows = PlainRows(
            generation=0,
            partition=0,
            record_id=uuid.uuid4(),
            segment_size=10,
            origin=None,
            version=None,
            seq_nrs=[1, 2],
            offsets=[1, 2],
            log_times_ms=[NOW_MS, NOW_MS],
            timestamps_ms=[NOW_MS, NOW_MS],
            payload_types=["binary", "binary"],
            payloads=[b"1", b"2"],
        )
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, 1)], at=Place(0, 1))
        await store.writer.write_rows(topic, "id", rows)
        assert await read_rows(store, topic, "id") == [rows[1]]
