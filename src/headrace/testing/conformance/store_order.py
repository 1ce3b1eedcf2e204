"""Convergence: the place of the record that caused a write decides, whatever the order of writes."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.store import Place, RowDeletion, Store
from headrace.testing.conformance.store_history import Histories, History, state_of
from headrace.testing.conformance.store_setting import (
    ByHand,
    OpenStore,
    StoreSetting,
    event,
    events,
    head,
    read_rows,
    seq_nrs,
)

__all__ = ["Order", "Ranges"]

# One suite for many backends (executors), on the store of the test: each example uses a journal of its own.
_FINE = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow)


class Order(StoreSetting):
    """Deletions, late writers, two writers, edits by hand."""

    async def test_a_deletion_wins_over_rows_of_its_place_and_below(self, store: Store, topic: str) -> None:
        """Also over those that come later; rows of later places stay, whichever comes first."""
        await store.writer.write_rows(topic, "id", [event(1, 1), event(3, 7)])
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None)], at=Place(0, 5))
        await store.writer.write_rows(topic, "id", [event(1, 1), event(2, 5), event(4, 6)])
        assert seq_nrs(await read_rows(store, topic, "id")) == [3, 4]

    async def test_a_deletion_drops_whole_segments_and_a_range_of_the_last(self, store: Store, topic: str) -> None:
        """R11: segments of 2, delete to 5: segments 0 and 1 whole, 2 up to 5."""
        await store.writer.write_rows(topic, "id", events(1, 8, size=2))
        deletions = [RowDeletion(0, None), RowDeletion(1, None), RowDeletion(2, 5)]
        await store.writer.delete_rows(topic, "id", deletions, at=Place(0, 9))
        await store.writer.write_rows(topic, "id", events(1, 8, size=2))
        assert seq_nrs(await read_rows(store, topic, "id", size=2)) == [6, 7, 8]

    async def test_an_older_deletion_that_comes_late_leaves_newer_rows(self, store: Store, topic: str) -> None:
        """A purge that is replayed after the next incarnation began removes only what it saw."""
        await store.writer.write_rows(topic, "id", [event(1, 10), event(2, 11)])
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None)], at=Place(0, 10))
        assert seq_nrs(await read_rows(store, topic, "id")) == [2]

    async def test_deletions_in_any_order_add_up(self, store: Store, topic: str) -> None:
        """A wide old one and a narrow new one: each keeps out what it covers."""
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, 3)], at=Place(0, 20))
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, 6)], at=Place(0, 10))
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, 2)], at=Place(0, 15))
        rows = [event(n, place) for n in (3, 5, 8) for place in (10,)] + [event(2, 18), event(4, 11), event(6, 9)]
        await store.writer.write_rows(topic, "id", rows)
        assert seq_nrs(await read_rows(store, topic, "id")) == [4, 8]

    async def test_generations_come_before_offsets(self, store: Store, topic: str) -> None:
        """R21: a record of a later generation is later, however small its offset."""
        await store.writer.write_rows(topic, "id", [event(1, 3, generation=1), event(2, 900)])
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None)], at=Place(0, 1000))
        assert seq_nrs(await read_rows(store, topic, "id")) == [1]

    async def test_deletions_of_one_journal_leave_others_alone(self, store: Store, topic: str) -> None:
        """Neither another id nor another topic nor another case of the id is touched."""
        journals = [(topic, "id"), (topic, "ID"), (f"{topic}-2", "id")]
        for each in journals:
            await store.writer.write_rows(*each, events(1, 2))
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None)], at=Place(0, 9))
        assert [len(await read_rows(store, *each)) for each in journals] == [0, 2, 2]

    async def test_writing_the_same_again_changes_nothing(self, store: Store, topic: str) -> None:
        """A replay changes nothing."""
        for _ in range(3):
            await store.writer.write_rows(topic, "id", events(1, 25))
            await store.writer.write_meta(head(topic, "id", 25))
        assert await read_rows(store, topic, "id") == events(1, 25)
        assert await store.reader.meta(topic, "id") == head(topic, "id", 25)

    @settings(max_examples=30, deadline=None, suppress_health_check=_FINE)
    @given(history=Histories, data=st.data())
    async def test_any_order_with_duplicates_ends_like_one_pass_in_order(
        self, store: Store, another: OpenStore, topic: str, history: History, data: st.DataObject
    ) -> None:
        """R24: a journal's history, shuffled, partly doubled, by two writers at once, ends as the oracle says."""
        id_ = uuid.uuid4().hex
        writes = history.writes(topic, id_)
        order = data.draw(st.permutations(range(len(writes))))
        doubled = data.draw(st.lists(st.sampled_from(range(len(writes))), max_size=4)) if writes else []
        other = await another() if data.draw(st.booleans(), label="two writers") else store
        shuffled = [writes[n] for n in (*order, *doubled)]
        half = len(shuffled) // 2

        async def run(store: Store, some: slice) -> None:
            for write in shuffled[some]:
                await write(store)

        await asyncio.gather(run(store, slice(half)), run(other, slice(half, None)))
        if other is not store:
            await other.close()
        assert await state_of(store, topic, id_) == history.outcome(topic, id_)

    async def test_two_writers_of_one_journal_converge(self, store: Store, another: OpenStore, topic: str) -> None:
        """Two replicators that apply the same records at once leave what one would."""
        other = await another()

        async def replicate(store: Store) -> None:
            for seq_nr in range(1, 21):
                await store.writer.write_rows(topic, "id", [event(seq_nr)])
                await store.writer.write_meta(head(topic, "id", seq_nr, seq_nr=seq_nr))
            await store.writer.delete_rows(topic, "id", [RowDeletion(0, 4)], at=Place(0, 21))

        await asyncio.gather(replicate(store), replicate(other))
        assert await read_rows(store, topic, "id") == events(5, 20)
        assert await store.reader.meta(topic, "id") == head(topic, "id", 20, seq_nr=20)

    async def test_edits_by_hand_are_put_right_by_writing_again(
        self, store: Store, topic: str, by_hand: ByHand
    ) -> None:
        """R23: a row deleted, one changed, also in a column that is absent, are as they should be after a repair."""
        rows = [event(n, payload_type="text", payload=b"right") for n in (1, 2, 3)]
        await store.writer.write_rows(topic, "id", rows)
        await by_hand.delete(topic, "id", rows[0])
        await by_hand.change(topic, "id", rows[1], payload="wrong", origin="somebody")
        await store.writer.write_rows(topic, "id", rows)
        assert await read_rows(store, topic, "id") == rows

    @pytest.mark.parametrize("to", [None, 9])
    async def test_a_deletion_removes_what_was_added_by_hand(
        self, store: Store, topic: str, by_hand: ByHand, to: int | None
    ) -> None:
        """R23: rows put there by hand have no place, so any purge or delete takes them along."""
        await store.writer.write_rows(topic, "id", events(1, 2))
        await by_hand.add(topic, "id", event(5, 2**44, generation=7, payload_type="text", payload=b"added"))
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, to)], at=Place(0, 3))
        assert await read_rows(store, topic, "id") == []

    async def test_a_repair_replaces_a_row_added_by_hand_in_its_place(
        self, store: Store, topic: str, by_hand: ByHand
    ) -> None:
        """R23: a row typed in before the true one was written loses to it."""
        await by_hand.add(topic, "id", event(1, 2**44, generation=7, payload_type="text", payload=b"added"))
        await store.writer.write_rows(topic, "id", [event(1)])
        assert await read_rows(store, topic, "id") == [event(1)]


class Ranges(StoreSetting):
    """Deletions of many segments at once."""

    async def test_a_range_of_segments_goes_whole(self, store: Store, topic: str) -> None:
        """FJ6: rows in the range go, rows outside it and above its place stay; a repetition changes nothing."""
        rows = [event(n, offset, size=2) for offset, n in enumerate((1, 2, 5, 201, 202, 203, 301))]
        await store.writer.write_rows(topic, "id", rows)
        for _ in range(2):
            await store.writer.delete_rows(topic, "id", [RowDeletion(1, None, 100)], at=Place(0, 4))
            assert seq_nrs(await read_rows(store, topic, "id", size=2)) == [1, 2, 203, 301]
        await store.writer.write_rows(topic, "id", [event(5, 9, size=2)])
        assert seq_nrs(await read_rows(store, topic, "id", size=2)) == [1, 2, 5, 203, 301]
        await store.writer.delete_rows(topic, "id", [RowDeletion(0, None, 300)], at=Place(0, 20))
        assert await read_rows(store, topic, "id", size=2) == []

    async def test_a_short_range_wins_over_rows_that_come_later(self, store: Store, topic: str) -> None:
        """FJ6: a rival that was held up writes what a range has removed: it stays removed."""
        await store.writer.delete_rows(topic, "id", [RowDeletion(2, None, 9)], at=Place(0, 9))
        await store.writer.delete_rows(topic, "id", [RowDeletion(2, None), RowDeletion(0, 1)], at=Place(0, 5))
        late = [event(n, n % 9, size=1) for n in (1, 2, 3, 5, 10, 11)]
        await store.writer.write_rows(topic, "id", late)
        assert seq_nrs(await read_rows(store, topic, "id", size=1)) == [2, 11]
