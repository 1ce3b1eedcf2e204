"""Rows of events: they come back as they were written, in order, page by page as asked for."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client import REGISTRY

from headrace.errors import BadArgument
from headrace.store import EventRow, Place, RowDeletion, Store
from headrace.testing.conformance.store_setting import StoreSetting, event, events, read_rows, seq_nrs

__all__ = ["Rows", "counted"]


class Rows(StoreSetting):
    """What a reader of rows gets."""

    async def test_every_column_comes_back_as_it_was_written(self, store: Store, topic: str) -> None:
        """Absent and empty stay apart, tags keep their order, text is any text."""
        rows = [
            event(1, payload_type=None, payload=None, metadata=None, origin=None, version=None),
            event(2, payload_type="text", payload=b"", metadata="", origin="", version=""),
            event(3, payload_type="binary", payload=b""),
            event(4, payload_type="binary", payload=bytes(range(256)), tags=("b", "a", "b", "ß", "")),
            event(5, payload_type="text", payload="Grüße, 世界 🌍\x00".encode(), headers={"k": "v", "ключ": ""}),
            event(
                6, payload_type="json", payload=b'{"a": 1}', metadata='{"data": {"x": [1]}}', origin="host", version="1"
            ),
            event(7, generation=3, partition=31, offset=2**45, timestamp_ms=0, log_time_ms=1, record_id=uuid.uuid4()),
        ]
        await store.writer.write_rows(topic, "id", rows)
        assert await read_rows(store, topic, "id") == rows

    @pytest.mark.parametrize("id_", ["ascii", "Ünïcödé-世界-🌍", "a/b:c'd\"e f", "x" * 500])
    async def test_any_id_names_a_journal(self, store: Store, topic: str, id_: str) -> None:
        """Whatever characters an id has, its rows and head are found by it."""
        await store.writer.write_rows(topic, id_, events(1, 3))
        assert seq_nrs(await read_rows(store, topic, id_)) == [1, 2, 3]
        assert await read_rows(store, topic, f"{id_}!") == []

    async def test_ids_that_differ_in_case_are_different_journals(self, store: Store, topic: str) -> None:
        """R20: they may share a segment of the metajournal, never their rows."""
        await store.writer.write_rows(topic, "id", events(1, 2))
        await store.writer.write_rows(topic, "ID", events(1, 5))
        assert seq_nrs(await read_rows(store, topic, "id")) == [1, 2]
        assert seq_nrs(await read_rows(store, topic, "ID")) == [1, 2, 3, 4, 5]

    async def test_one_id_in_two_topics_is_two_journals(self, store: Store, topic: str) -> None:
        """Topics share a store and nothing else."""
        await store.writer.write_rows(topic, "id", events(1, 2))
        await store.writer.write_rows(f"{topic}-2", "id", events(3, 4))
        assert seq_nrs(await read_rows(store, topic, "id")) == [1, 2]
        assert seq_nrs(await read_rows(store, f"{topic}-2", "id")) == [3, 4]

    async def test_rows_lie_in_segments(self, store: Store, topic: str) -> None:
        """R3: with segments of 2, rows 1 to 3 are in 0, 0, 1; with 10 000 all are in 0."""
        await store.writer.write_rows(topic, "small", events(1, 3, size=2))
        await store.writer.write_rows(topic, "large", events(1, 3, size=10_000))
        assert [row.segment for row in await read_rows(store, topic, "small", size=2)] == [0, 0, 1]
        assert [row.segment for row in await read_rows(store, topic, "large", size=10_000)] == [0, 0, 0]

    @pytest.mark.parametrize("page_size", [1, 3, 4, 500])
    @pytest.mark.parametrize("size", [1, 4, 1000])
    async def test_pages_cover_the_range_whatever_the_sizes(
        self, store: Store, topic: str, page_size: int, size: int
    ) -> None:
        """Every row of the range once, rising; no page is empty or above its size."""
        await store.writer.write_rows(topic, "id", events(1, 23, size=size))
        pages = store.reader.rows(topic, "id", segment_size=size, first=3, last=21, page_size=page_size)
        sizes, found = [], []
        async for page in pages:
            sizes.append(len(page))
            found += seq_nrs(page)
        assert found == list(range(3, 22))
        assert all(1 <= each <= page_size for each in sizes)

    async def test_empty_segments_are_passed(self, store: Store, topic: str) -> None:
        """Gaps at the start, in the middle and at the end cost the reader nothing but the search."""
        rows = [event(seq_nr, size=2) for seq_nr in (21, 22, 23, 301, 302, 640)]
        await store.writer.write_rows(topic, "id", rows)
        assert await read_rows(store, topic, "id", size=2, page_size=2) == rows

    async def test_far_apart_rows_need_few_questions(self, store: Store, topic: str) -> None:
        """5000 empty segments between two rows are not asked for one by one."""
        await store.writer.write_rows(topic, "id", [event(1), event(50_001)])
        before = counted("headrace_store_requests_total")
        assert seq_nrs(await read_rows(store, topic, "id", last=60_000)) == [1, 50_001]
        assert counted("headrace_store_requests_total") - before < 200

    async def test_pages_are_fetched_as_they_are_asked_for(self, store: Store, topic: str) -> None:
        """A reader that takes one page of many causes at most two to be fetched, and may stop there."""
        await store.writer.write_rows(topic, "id", events(1, 200))
        before = counted("headrace_store_pages_total")
        pages = store.reader.rows(topic, "id", segment_size=10, first=1, last=200, page_size=5)
        assert seq_nrs(await anext(aiter(pages))) == [1, 2, 3, 4, 5]
        assert seq_nrs(await store_barrier(store, topic)) == []
        assert counted("headrace_store_pages_total") - before <= 3  # the barrier's own page included
        await pages.aclose()  # type: ignore[attr-defined]

    async def test_rows_of_another_segmentation_do_not_break_the_order(self, store: Store, topic: str) -> None:
        """R17: what an earlier incarnation with larger segments left behind is shown in its place or not at all."""
        await store.writer.write_rows(topic, "id", [event(n, size=100, timestamp_ms=1) for n in (1, 2, 50, 51)])
        await store.writer.write_rows(topic, "id", [event(n, 100 + n, size=2, timestamp_ms=2) for n in (1, 2, 3, 4)])
        found = seq_nrs(await read_rows(store, topic, "id", size=2))
        assert found == sorted(found)
        assert {1, 2, 3, 4} <= set(found)

    async def test_two_rows_of_one_seq_nr_are_both_shown(self, store: Store, topic: str) -> None:
        """R18: the reader decides by record_id which one counts."""
        old, new = event(1, 5, timestamp_ms=1), event(1, 9, timestamp_ms=2, record_id=uuid.uuid4())
        await store.writer.write_rows(topic, "id", [new, old])
        assert await read_rows(store, topic, "id") == [old, new]

    async def test_large_rows_and_many_rows_are_taken_in_one_call(self, store: Store, topic: str) -> None:
        """A call may hold more than any request the backend makes of it."""
        rows = [event(n, payload_type="binary", payload=bytes([n % 256]) * 15_000) for n in range(1, 101)]
        rows.append(event(101, payload_type="binary", payload=bytes(900_000)))
        rows += events(102, 900)
        await store.writer.write_rows(topic, "id", rows)
        assert await read_rows(store, topic, "id") == rows

    async def test_nothing_to_write_or_delete_is_fine(self, store: Store, topic: str) -> None:
        """Empty lists change nothing."""
        await store.writer.write_rows(topic, "id", [])
        await store.writer.delete_rows(topic, "id", [], at=Place(0, 1))
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None)], at=Place(0, 1))
        assert await read_rows(store, topic, "id") == []

    async def test_what_was_written_is_seen_by_another_client(self, store: Store, topic: str, another: object) -> None:
        """An acknowledged write is visible to every later read."""
        assert callable(another)
        other: Store = await another()
        for seq_nr in range(1, 6):
            await store.writer.write_rows(topic, "id", [event(seq_nr)])
            assert seq_nrs(await read_rows(other, topic, "id"))[-1] == seq_nr

    @pytest.mark.parametrize(("name", "asked"), [("page_size", (10, 0)), ("segment_size", (0, 10))])
    async def test_impossible_sizes_are_refused(
        self, store: Store, topic: str, name: str, asked: tuple[int, int]
    ) -> None:
        """The error names the argument."""
        with pytest.raises(BadArgument, match=name):
            await anext(
                aiter(store.reader.rows(topic, "id", segment_size=asked[0], first=1, last=1, page_size=asked[1]))
            )

    async def test_an_empty_range_has_no_pages(self, store: Store, topic: str) -> None:
        """A range that ends before it starts is empty; what lies below 1 is not there."""
        await store.writer.write_rows(topic, "id", events(1, 5))
        assert await read_rows(store, topic, "id", first=4, last=3) == []
        assert await read_rows(store, topic, "id", first=-5, last=0) == []
        assert seq_nrs(await read_rows(store, topic, "id", first=-5, last=2)) == [1, 2]


async def store_barrier(store: Store, topic: str) -> list[EventRow]:
    """Read something else and wait for the answer, so that all earlier requests have been answered too."""
    return await read_rows(store, topic, "nobody", last=1)


def counted(name: str) -> float:
    """Return the sum of a counter over all labels."""
    return sum(sample.value for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name)
