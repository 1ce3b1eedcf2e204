"""Snapshots: a ring of slots, guarded by the place each one covers."""

from __future__ import annotations

import uuid

import pytest

from headrace.store import Place, Store
from headrace.testing.conformance.store_setting import StoreSetting, events, read_rows, snapshot

__all__ = ["SavedStates"]


class SavedStates(StoreSetting):
    """R22, as far as the store goes: which snapshots are there."""

    async def test_every_field_of_a_snapshot_comes_back(self, store: Store, topic: str) -> None:
        """Absent and empty stay apart; they come by slot."""
        rows = [
            snapshot(0, 5, payload_type=None, payload=None),
            snapshot(1, 6, payload_type="binary", payload=bytes(range(256)), metadata="", origin="", version=""),
            snapshot(2, 7, payload_type="text", payload="Grüße".encode(), metadata="{}", origin="host", version="1"),
            snapshot(3, 2**44, generation=4, seq_nr=2**50, record_id=uuid.uuid4(), payload=b""),
        ]
        for row in reversed(rows):
            await store.snapshots.save(topic, "id", row)
        assert await store.snapshots.load(topic, "id") == rows
        assert await store.snapshots.load(topic, "nobody") == []

    async def test_a_large_snapshot_comes_back(self, store: Store, topic: str) -> None:
        """A megabyte of state is one snapshot."""
        row = snapshot(0, 1, payload_type="binary", payload=bytes(1_000_000))
        await store.snapshots.save(topic, "id", row)
        assert await store.snapshots.load(topic, "id") == [row]

    @pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 2, 1)])
    async def test_a_slot_keeps_the_later_snapshot(self, store: Store, topic: str, order: tuple[int, ...]) -> None:
        """What a slot held before goes if it was older, and stays if it was not."""
        rows = {1: snapshot(0, 5, origin="old", metadata="{}"), 2: snapshot(0, 9)}
        for each in order:
            await store.snapshots.save(topic, "id", rows[each])
        assert await store.snapshots.load(topic, "id") == [rows[2]]

    async def test_a_slot_is_emptied_up_to_a_place(self, store: Store, topic: str) -> None:
        """A deletion takes its slot's snapshot if it is not above the place, and late ones like it."""
        for row in (snapshot(0, 5), snapshot(1, 6)):
            await store.snapshots.save(topic, "id", row)
        await store.snapshots.delete(topic, "id", 0, at=Place(0, 4))
        assert await store.snapshots.load(topic, "id") == [snapshot(0, 5), snapshot(1, 6)]
        await store.snapshots.delete(topic, "id", 0, at=Place(0, 5))
        await store.snapshots.save(topic, "id", snapshot(0, 5))
        assert await store.snapshots.load(topic, "id") == [snapshot(1, 6)]
        await store.snapshots.save(topic, "id", snapshot(0, 7))
        assert await store.snapshots.load(topic, "id") == [snapshot(0, 7), snapshot(1, 6)]

    async def test_a_purge_removes_snapshots_and_keeps_late_ones_out(self, store: Store, topic: str) -> None:
        """R22: a snapshot of the old incarnation that is saved after the purge loses; the next one's stays."""
        for slot in range(3):
            await store.snapshots.save(topic, "id", snapshot(slot, 5 + slot))
        await store.snapshots.save(topic, "other", snapshot(0, 5))
        await store.writer.delete_snapshots(topic, "id", at=Place(0, 10))
        await store.snapshots.save(topic, "id", snapshot(0, 9))
        await store.snapshots.save(topic, "id", snapshot(1, 10))
        assert await store.snapshots.load(topic, "id") == []
        await store.snapshots.save(topic, "id", snapshot(2, 11))
        assert await store.snapshots.load(topic, "id") == [snapshot(2, 11)]
        assert await store.snapshots.load(topic, "other") == [snapshot(0, 5)]

    async def test_an_older_purge_leaves_newer_snapshots(self, store: Store, topic: str) -> None:
        """A purge that is replayed late removes only what it saw, and weakens no later one."""
        await store.writer.delete_snapshots(topic, "id", at=Place(0, 10))
        await store.snapshots.save(topic, "id", snapshot(0, 12))
        await store.writer.delete_snapshots(topic, "id", at=Place(0, 3))
        await store.snapshots.save(topic, "id", snapshot(1, 9))
        assert await store.snapshots.load(topic, "id") == [snapshot(0, 12)]

    async def test_snapshots_and_rows_are_apart(self, store: Store, topic: str) -> None:
        """Removing snapshots leaves the events."""
        await store.writer.write_rows(topic, "id", events(1, 3))
        await store.snapshots.save(topic, "id", snapshot(0, 3))
        await store.writer.delete_snapshots(topic, "id", at=Place(0, 9))
        assert await read_rows(store, topic, "id") == events(1, 3)
