"""Heads of journals, purge markers, replicated offsets."""

from __future__ import annotations

import asyncio

import pytest

from headrace.config import StoreSettings
from headrace.errors import BadArgument
from headrace.model import TopicPartition
from headrace.store import HeadShare, JournalMeta, Place, Store, java_hash, meta_segment
from headrace.testing.conformance.store_setting import OpenStore, StoreSetting, deadline, head, replicated

__all__ = ["Heads"]


class Heads(StoreSetting):
    """What a store keeps about a journal and about a partition."""

    async def test_every_field_of_a_head_comes_back(self, store: Store, topic: str) -> None:
        """Absent and empty stay apart; times are exact to the millisecond."""
        full = head(
            topic,
            "full",
            2**45,
            generation=2,
            partition=7,
            seq_nr=2**40,
            delete_to=12,
            purged_at=Place(1, 99),
            held_from=2**44,
            expire_after="1 day",
            expire_on_ms=1_800_000_000_999,
            origin="",
            properties={"a": "", "ключ": "値"},
            metadata="{}",
        )
        bare = JournalMeta(topic=topic, id="bare", generation=0, partition=0, offset=0, seq_nr=5, segment_size=10)
        for meta in (full, bare):
            await store.writer.write_meta(meta)
            assert await store.reader.meta(topic, meta.id) == meta
        assert await store.reader.meta(topic, "nobody") is None
        assert await store.reader.meta(f"{topic}-2", "full") is None

    async def test_heads_of_ids_that_differ_in_case_are_apart(self, store: Store, topic: str) -> None:
        """R20: they share a segment of the metajournal, by Java's hash of the lower-case id, and nothing else."""
        assert meta_segment("id", 10_000) == meta_segment("ID", 10_000) == abs(java_hash("id")) % 10_000
        for id_, offset in (("id", 1), ("ID", 2), ("Id", 3)):
            await store.writer.write_meta(head(topic, id_, offset))
        found = [await store.reader.meta(topic, id_) for id_ in ("id", "ID", "Id")]
        assert [meta.offset for meta in found if meta] == [1, 2, 3]

    @pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (3, 1, 3)])
    async def test_the_highest_place_wins_whole(self, store: Store, topic: str, order: tuple[int, ...]) -> None:
        """R19: a later head clears what an earlier one had set, whichever arrives first."""
        heads = {
            1: head(topic, "id", 1, expire_after="1 minute", expire_on_ms=5_000, properties={"a": "1", "b": "1"}),
            2: head(topic, "id", 2, delete_to=1, origin="two", metadata="{}", properties={"b": "2"}, held_from=4),
            3: head(topic, "id", 1, generation=1, seq_nr=2, properties={"c": "3"}),
        }
        for each in order:
            await store.writer.write_meta(heads[each])
        assert await store.reader.meta(topic, "id") == heads[3]

    async def test_a_purge_marker_is_seen_and_holds_off_older_heads(self, store: Store, topic: str) -> None:
        """R12: on a missing journal too; a newer incarnation takes its place."""
        marker = head(topic, "id", 5, is_purged=True, purged_at=Place(0, 5), record_id=None, created_ms=None)
        await store.writer.write_meta(marker)
        await store.writer.write_meta(head(topic, "id", 4))
        assert await store.reader.meta(topic, "id") == marker
        successor = head(topic, "id", 6, purged_at=Place(0, 5))
        await store.writer.write_meta(successor)
        await store.writer.write_meta(marker)
        assert await store.reader.meta(topic, "id") == successor

    async def test_a_purge_marker_expires_and_still_wins_over_older_heads(self, another: OpenStore, topic: str) -> None:
        """After its time to live it is not returned; an older head that is written late still loses."""
        store = await another(StoreSettings(marker_ttl_s=1))
        await store.writer.write_meta(head(topic, "other", 5))
        await store.writer.write_meta(head(topic, "id", 5, is_purged=True, purged_at=Place(0, 5)))
        is_late = deadline(10)
        while await store.reader.meta(topic, "id") is not None:
            assert not is_late()
            await asyncio.sleep(0.05)
        await store.writer.write_meta(head(topic, "id", 4))
        assert await store.reader.meta(topic, "id") is None
        assert [meta.id async for page in store.reader.metas(topic) for meta in page] == ["other"]
        await store.writer.write_meta(head(topic, "id", 6))
        assert await store.reader.meta(topic, "id") == head(topic, "id", 6)

    @pytest.mark.parametrize("page_size", [1, 7, 500])
    async def test_all_heads_of_a_topic_are_found(self, store: Store, topic: str, page_size: int) -> None:
        """Each once, markers included, in pages of at most the asked size; other topics stay out."""
        heads = {f"journal-{n}": head(topic, f"journal-{n}", n, is_purged=n == 3) for n in range(30)}
        await asyncio.gather(*(store.writer.write_meta(meta) for meta in heads.values()))
        await store.writer.write_meta(head(f"{topic}-2", "elsewhere", 1))
        pages = [list(page) async for page in store.reader.metas(topic, page_size=page_size)]
        assert all(1 <= len(page) <= page_size for page in pages)
        assert sorted(meta.id for page in pages for meta in page) == sorted(heads)
        assert {meta.id: meta for page in pages for meta in page} == heads

    @pytest.mark.parametrize("page_size", [2, 500])
    async def test_the_heads_of_one_partition_are_found(self, store: Store, topic: str, page_size: int) -> None:
        """Those whose last record lies there, and no empty page; all partitions together are all heads."""
        heads = [head(topic, f"journal-{n}", n, partition=n % 3) for n in range(30)]
        await asyncio.gather(*(store.writer.write_meta(meta) for meta in heads))
        for partition in range(4):
            pages = [list(page) async for page in store.reader.metas(topic, partition=partition, page_size=page_size)]
            assert all(1 <= len(page) <= page_size for page in pages)
            found = sorted(meta.id for page in pages for meta in page)
            assert found == sorted(meta.id for meta in heads if meta.partition == partition)

    @pytest.mark.parametrize("shares", [1, 3, 8])
    async def test_the_shares_of_a_topic_are_all_heads(self, store: Store, topic: str, shares: int) -> None:
        """FP3: each head is in one share, so that several readers can divide a topic among them."""
        heads = [head(topic, f"journal-{n}", n, partition=n % 2) for n in range(30)]
        await asyncio.gather(*(store.writer.write_meta(meta) for meta in heads))
        await store.writer.write_meta(head(f"{topic}-2", "elsewhere", 1))
        for partition in (None, 1):
            found = [
                meta.id
                for number in range(shares)
                async for page in store.reader.metas(topic, partition=partition, share=HeadShare(number, shares))
                for meta in page
            ]
            assert sorted(found) == sorted(meta.id for meta in heads if partition in (None, meta.partition))
        with pytest.raises(BadArgument, match="share"):
            await anext(aiter(store.reader.metas(topic, share=HeadShare(shares, shares))))

    async def test_a_topic_without_heads_has_no_pages(self, store: Store, topic: str) -> None:
        """Nothing is yielded; a page of nothing is refused."""
        assert [page async for page in store.reader.metas(topic)] == []
        with pytest.raises(BadArgument, match="page_size"):
            await anext(aiter(store.reader.metas(topic, page_size=0)))

    async def test_the_replicated_offset_never_goes_back(self, store: Store, topic: str) -> None:
        """Later generations count as later; each partition has its own."""
        at = TopicPartition(topic, 0)
        assert await store.reader.replicated(at) is None
        await store.writer.move_replicated(replicated(topic, 5))
        await store.writer.move_replicated(replicated(topic, 4))
        assert await store.reader.replicated(at) == replicated(topic, 5)
        await store.writer.move_replicated(replicated(topic, 2, generation=1))
        await store.writer.move_replicated(replicated(topic, 6))
        assert await store.reader.replicated(at) == replicated(topic, 2, generation=1)
        assert await store.reader.replicated(TopicPartition(topic, 1)) is None

    async def test_two_movers_at_once_end_at_the_highest(self, store: Store, another: OpenStore, topic: str) -> None:
        """E6 at the port: no interleaving moves it backwards."""
        other = await another()
        moves = [(store, other)[n % 2].writer.move_replicated(replicated(topic, n)) for n in (3, 9, 1, 8, 2, 7, 5)]
        await asyncio.gather(*moves)
        assert await store.reader.replicated(TopicPartition(topic, 0)) == replicated(topic, 9)

    async def test_a_topic_is_listed_once_it_has_a_replicated_offset(self, store: Store, topic: str) -> None:
        """R1: rows and heads alone don't list it; however many partitions, it is there once."""
        await store.writer.write_meta(head(topic, "id", 1))
        assert topic not in await store.reader.topics()
        for name, partition in ((topic, 0), (topic, 1), (f"{topic}-a", 0)):
            await store.writer.move_replicated(replicated(name, 1, partition=partition))
        listed = [name for name in await store.reader.topics() if name.startswith(topic)]
        assert listed == [topic, f"{topic}-a"]
