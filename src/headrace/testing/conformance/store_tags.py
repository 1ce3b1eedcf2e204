"""Views by tag in a store: rows in buckets, in the order of their timeuuids; numbers; epochs."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import pytest_asyncio

from headrace.store import Place, Store, TagNumber, TagRow, TagTime, tag_time_of, timeuuid
from headrace.testing.conformance.store_rows import counted
from headrace.testing.conformance.store_setting import NOW_MS, StoreSetting

__all__ = ["TaggedRows", "read_bucket", "tag_number", "tag_row"]

HOUR_MS = 3_600_000


class TaggedRows(StoreSetting):
    """What the views by tag promise, as far as a store goes."""

    @pytest_asyncio.fixture
    async def tagged(self, store: Store) -> Store:
        """Return the store with its tables for tags."""
        await store.tags.prepare()
        return store

    @pytest_asyncio.fixture
    async def tag(self) -> str:
        """Return an unused tag."""
        return f"tag-{uuid.uuid4().hex[:12]}"

    async def test_every_column_of_a_tag_row_comes_back(self, tagged: Store, tag: str) -> None:
        """Absent and empty stay apart; tags keep their order."""
        rows = [
            tag_row(tag, 1, payload_type=None, payload=None),
            tag_row(tag, 2, payload_type="text", payload=b"", metadata="", origin="", version=""),
            tag_row(tag, 3, payload_type="binary", payload=bytes(range(256)), tags=("b", "a", "ß", "")),
            tag_row(tag, 4, payload_type="text", payload="Grüße 🌍\x00".encode(), headers={"k": "v", "ключ": ""}),
            tag_row(tag, 5, pid="Ünï/':\"🌍", metadata='{"header": {"data": 1}}', origin="host", version="1"),
        ]
        await tagged.tags.views.write(rows)
        assert await read_bucket(tagged, tag) == rows

    async def test_rows_of_one_log_time_are_sorted_around_the_sign_bits(self, tagged: Store, tag: str) -> None:
        """T40: offsets around 127/128 and 32767/32768, in every byte, stay in order in the store's own sort order."""
        offsets = sorted({edge + near for bits in range(7, 48, 8) for edge in (1 << bits,) for near in (-1, 0, 1)})
        partitions = (0, 127, 128, 255, 256, 32767, 32768)
        edges = itertools.product((0, 9, 9999), partitions, offsets)
        times = [TagTime(NOW_MS, topic, partition, offset) for topic, partition, offset in edges]
        rows = [tag_row(tag, n, at=at) for n, at in enumerate(times, 1)]
        await tagged.tags.views.write(random.Random(1).sample(rows, len(rows)))
        found = [tag_time_of(row.timestamp) for row in await read_bucket(tagged, tag)]
        assert found == times == sorted(times)

    async def test_log_times_are_sorted_before_anything_else(self, tagged: Store, tag: str) -> None:
        """The next millisecond comes after every topic, partition and offset of the one before."""
        last, first = TagTime(NOW_MS, 9999, 65_535, (1 << 48) - 1), TagTime(NOW_MS + 1, 0, 0, 0)
        await tagged.tags.views.write([tag_row(tag, 2, at=first), tag_row(tag, 1, at=last)])
        assert [row.number for row in await read_bucket(tagged, tag)] == [1, 2]

    async def test_a_range_of_a_bucket_includes_both_ends(self, tagged: Store, tag: str) -> None:
        """Pages of any size cover `first` to `last`, and nothing else."""
        rows = [tag_row(tag, n) for n in range(1, 24)]
        await tagged.tags.views.write(rows)
        for size in (1, 3, 500):
            first, last = tag_time_of(rows[4].timestamp), tag_time_of(rows[19].timestamp)
            pages = tagged.tags.views.read(tag, bucket_of(rows[0]), first=first, last=last, page_size=size)
            found = [page async for page in pages]
            assert [row for page in found for row in page] == rows[4:20]
            assert all(1 <= len(page) <= size for page in found)

    async def test_pages_of_a_bucket_are_fetched_as_they_are_asked_for(self, tagged: Store, tag: str) -> None:
        """T4: a reader that takes one page of many causes two to be fetched at most."""
        await tagged.tags.views.write([tag_row(tag, n) for n in range(1, 101)])
        before = counted("headrace_store_pages_total")
        pages = tagged.tags.views.read(tag, bucket_of(tag_row(tag, 1)), page_size=5)
        assert [row.number for row in await anext(aiter(pages))] == [1, 2, 3, 4, 5]
        await tagged.tags.views.tags()
        assert counted("headrace_store_pages_total") - before <= 3
        await pages.aclose()  # type: ignore[attr-defined]

    async def test_buckets_and_tags_that_exist_are_listed(self, tagged: Store, tag: str) -> None:
        """T6, X6: only buckets with rows, rising, within bounds; all tags, sorted; epochs are no tags."""
        await tagged.tags.put_epoch("e")
        hours = [0, 1, 5, 1000]
        starts = [bucket_of(tag_row(tag, 1)) + hour * HOUR_MS for hour in hours]
        await tagged.tags.views.write([tag_row(tag, n, bucket_ms=start) for n, start in enumerate(starts, 1)])
        await tagged.tags.views.write([tag_row(f"{tag}-2", 1)])
        views = tagged.tags.views
        assert list(await views.buckets(tag)) == starts
        assert list(await views.buckets(tag, first_ms=starts[1], last_ms=starts[2])) == starts[1:3]
        assert list(await views.buckets("nobody")) == []
        assert {tag, f"{tag}-2"} <= set(await views.tags())
        assert all(not found.startswith("\x00") for found in await views.tags())

    async def test_a_bucket_that_was_dropped_is_gone_with_its_rows(self, tagged: Store, tag: str) -> None:
        """T6: the bucket is listed no more; others, and the same bucket of another tag, stay; again changes nothing."""
        views, start = tagged.tags.views, bucket_of(tag_row(tag, 1))
        await views.write([tag_row(tag, n, bucket_ms=start + n * HOUR_MS) for n in (0, 1, 2)])
        await views.write([tag_row(f"{tag}-2", 1)])
        for _ in range(2):
            await tagged.tags.drop_bucket(tag, start)
            assert list(await views.buckets(tag)) == [start + HOUR_MS, start + 2 * HOUR_MS]
            assert await read_bucket(tagged, tag, start) == []
        assert [row.number for row in await read_bucket(tagged, tag, start + HOUR_MS)] == [1]
        assert [row.number for row in await read_bucket(tagged, f"{tag}-2", start)] == [1]
        for n in (1, 2):
            await tagged.tags.drop_bucket(tag, start + n * HOUR_MS)
        assert tag not in await views.tags()

    async def test_many_rows_of_many_buckets_are_taken_in_one_call(self, tagged: Store, tag: str) -> None:
        """W1, W2, W4: 400 rows in three buckets, of several pids, large ones among them."""
        rows = [
            tag_row(tag, n, pid=f"p{n % 5}", bucket_ms=bucket_of(tag_row(tag, 1)) + n % 3 * HOUR_MS,
                    payload_type="binary", payload=bytes(9000 if n % 40 == 0 else 10))
            for n in range(1, 401)
        ]  # fmt: skip
        await tagged.tags.views.write(rows)
        found = [
            row for bucket in await tagged.tags.views.buckets(tag) for row in await read_bucket(tagged, tag, bucket)
        ]
        assert sorted(found, key=lambda row: row.number) == rows

    async def test_tag_rows_converge_whatever_their_order(self, tagged: Store, tag: str) -> None:
        """X7: writes repeated and shuffled leave the same rows; the later place wins."""
        rows = [tag_row(tag, n) for n in range(1, 9)]
        for seed in range(5):
            await tagged.tags.views.write(random.Random(seed).sample(rows, 5))
        await tagged.tags.views.write(rows)
        assert await read_bucket(tagged, tag) == rows

    async def test_a_redacted_row_keeps_its_place_and_loses_its_payload(self, tagged: Store, tag: str) -> None:
        """T37: payload, metadata and headers go, also from what a late writer brings; numbers stay."""
        rows = [tag_row(tag, n, metadata="{}", headers={"k": "v"}) for n in (1, 2, 3)]
        await tagged.tags.views.write(rows)
        await tagged.tags.views.redact(rows[:2], at=Place(0, 100))
        await tagged.tags.views.write(rows)
        found = await read_bucket(tagged, tag)
        assert [(row.number, row.payload, row.metadata, row.headers, row.is_redacted) for row in found] == [
            (1, None, None, {}, True),
            (2, None, None, {}, True),
            (3, rows[2].payload, "{}", {"k": "v"}, False),
        ]

    async def test_a_redacted_row_stays_so_when_it_is_written_again(self, tagged: Store, tag: str) -> None:
        """FT13: a repair at a later place that has the payload from the log does not bring it back."""
        rows = [tag_row(tag, n, metadata="{}", headers={"k": "v"}) for n in (1, 2)]
        await tagged.tags.views.write(rows)
        await tagged.tags.views.redact(rows[:1], at=Place(0, 100))
        await tagged.tags.views.write(rows, at=Place(0, 200))
        found = await read_bucket(tagged, tag)
        assert [(row.number, row.payload, row.metadata, row.headers, row.is_redacted) for row in found] == [
            (1, None, None, {}, True),
            (2, rows[1].payload, "{}", {"k": "v"}, False),
        ]

    async def test_deleted_rows_stay_deleted_until_a_later_repair(self, tagged: Store, tag: str) -> None:
        """X6: delete for one pid leaves others; a late writer loses, a repair at a later place wins."""
        mine, others = [tag_row(tag, n, pid="a") for n in (1, 2)], [tag_row(tag, n + 5, pid="b") for n in (1, 2)]
        await tagged.tags.views.write(mine + others)
        await tagged.tags.views.delete(mine, at=Place(0, 50))
        await tagged.tags.views.write(mine)
        assert await read_bucket(tagged, tag) == others
        await tagged.tags.views.write(mine, at=Place(0, 51))
        assert await read_bucket(tagged, tag) == mine + others

    async def test_numbers_are_kept_by_place_not_by_seq_nr(self, tagged: Store, topic: str) -> None:
        """X7: the higher (generation, offset) wins, in whatever order; a purge that restarts seq_nr resets nothing."""
        first, later = tag_number(topic, 5, seq_nr=100, number=10), tag_number(topic, 9, seq_nr=1, number=11)
        next_generation = tag_number(topic, 2, seq_nr=1, number=12, generation=1)
        for order in ([first, later], [later, first], [next_generation, first, later]):
            for number in order:
                await tagged.tags.numbers.write([number])
        assert await tagged.tags.numbers.of(topic, "p") == {"t": next_generation}

    async def test_numbers_of_all_tags_of_a_pid_are_listed(self, tagged: Store, topic: str) -> None:
        """X6, W2: tags of a pid can be listed; each pid has its own."""
        numbers = [tag_number(topic, 1, tag=f"t{n}", pid=pid) for n in range(3) for pid in ("p", "q")]
        await tagged.tags.numbers.write(numbers)
        assert sorted(await tagged.tags.numbers.of(topic, "p")) == ["t0", "t1", "t2"]
        assert await tagged.tags.numbers.of(topic, "nobody") == {}
        await tagged.tags.numbers.delete(topic, "p", "t1", at=Place(0, 5))
        await tagged.tags.numbers.write(numbers)
        assert sorted(await tagged.tags.numbers.of(topic, "p")) == ["t0", "t2"]
        assert sorted(await tagged.tags.numbers.of(topic, "q")) == ["t0", "t1", "t2"]

    async def test_where_numbers_begin_is_kept_while_they_go_on(self, tagged: Store, topic: str) -> None:
        """FT5: rows below a number were removed: that stays so when numbers go on, until the number is forgotten."""
        numbers, known = tagged.tags.numbers, tag_number(topic, 5, number=7)
        await numbers.write([known])
        assert (await numbers.of(topic, "p"))["t"].first == 1
        await numbers.begin_at(topic, "p", "t", 8, at=Place(0, 6))
        await numbers.write([tag_number(topic, 7, number=8)])
        found = (await numbers.of(topic, "p"))["t"]
        assert (found.number, found.first) == (8, 8)
        await numbers.begin_at(topic, "p", "t", 3, at=Place(0, 8))
        assert (await numbers.of(topic, "p"))["t"].first == 3
        await numbers.delete(topic, "p", "t", at=Place(0, 9))
        await numbers.write([tag_number(topic, 10, number=1)])
        assert (await numbers.of(topic, "p"))["t"].first == 1
        await numbers.begin_at(topic, "nobody", "t", 3, at=Place(0, 8))
        assert await numbers.of(topic, "nobody") == {}

    async def test_each_table_carries_its_epoch(self, tagged: Store) -> None:
        """X2: the last epoch is found in every table; preparing again changes nothing."""
        await tagged.tags.put_epoch("one")
        await tagged.tags.put_epoch("two")
        await tagged.tags.prepare()
        epochs = await tagged.tags.epochs()
        assert set(epochs) == {"tag_views", "tag_views_buckets", "tag_views_progress"}
        assert set(epochs.values()) == {"two"}


def tag_row(tag: str, number: int, *, at: TagTime | None = None, **columns: Any) -> TagRow:  # noqa: ANN401
    """Make a row; its time follows its number unless given."""
    at = at or TagTime(NOW_MS + number, 0, 0, number)
    given: dict[str, Any] = {
        "bucket_ms": at.log_time_ms // HOUR_MS * HOUR_MS,
        "timestamp": timeuuid(at),
        "pid": "p",
        "seq_nr": number,
        "topic": "t",
        "generation": 0,
        "partition": at.partition,
        "offset": at.offset,
        "timestamp_ms": at.log_time_ms,
        "payload_type": "json",
        "payload": b'{"n":%d}' % number,
    }
    return TagRow(tag=tag, number=number, **{**given, **columns})


def tag_number(topic: str, offset: int, **columns: Any) -> TagNumber:  # noqa: ANN401
    """Make a number."""
    given: dict[str, Any] = {"pid": "p", "tag": "t", "seq_nr": 1, "number": 1, "generation": 0}
    return TagNumber(topic=topic, offset=offset, **{**given, **columns})


def bucket_of(row: TagRow) -> int:
    """Return the bucket of the row's time."""
    return tag_time_of(row.timestamp).log_time_ms // HOUR_MS * HOUR_MS


async def read_bucket(store: Store, tag: str, bucket_ms: int | None = None) -> list[TagRow]:
    """Return the rows of a bucket, of the first one by default."""
    start_ms = bucket_of(tag_row(tag, 1)) if bucket_ms is None else bucket_ms
    return [row async for page in store.tags.views.read(tag, start_ms) for row in page]
