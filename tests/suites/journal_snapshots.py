"""Snapshots: the storage cases, a ring of a few, and incarnations that never see one another's."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.suites.journal_setting import JournalSetting, numbers, replicate

from headrace.errors import BadArgument, HeadraceError, NoStateYet, SnapshotDamaged
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event
from headrace.store import Store

__all__ = ["SnapshotRing"]


class SnapshotRing(JournalSetting):
    """R22."""

    @pytest.mark.parametrize("saved", [(5,), (2, 5)], ids=["S(5)", "S(2) and S(5)"])
    @pytest.mark.parametrize("is_deleted", [False, True], ids=["events kept", "events deleted"])
    @pytest.mark.parametrize("is_replicated", [False, True], ids=["in the log", "replicated"])
    async def test_the_storage_cases(
        self,
        log: Log,
        store: Store,
        journal: Journal,
        topic: str,
        saved: tuple[int, ...],
        is_deleted: bool,
        is_replicated: bool,
    ) -> None:
        """R22: S(5), S(2) and S(5), events kept or deleted; load newest, by seq_nr, by time."""
        await journal.append("k", [Event(n) for n in range(1, 6)])
        for seq_nr in saved:
            await journal.snapshots.save("k", seq_nr, {"at": seq_nr}, timestamp_ms=1000 * seq_nr)
        if is_deleted:
            await journal.delete("k", to=5)
        if is_replicated:
            await replicate(log, store, topic)
        newest = await journal.snapshots.load("k")
        assert newest is not None
        assert (newest.seq_nr, newest.payload) == (5, {"at": 5})
        older = await journal.snapshots.load("k", max_seq_nr=4)
        by_time = await journal.snapshots.load("k", max_timestamp_ms=4000)
        assert (older.seq_nr if older else None) == (2 if 2 in saved else None)
        assert by_time == older
        assert await numbers(journal, "k", newest.seq_nr + 1) == []
        assert await numbers(journal, "k") == ([] if is_deleted else [1, 2, 3, 4, 5])
        await journal.append("k", [Event(6)])
        assert await numbers(journal, "k", newest.seq_nr + 1) == [6]

    async def test_no_state_beyond_the_pointer_can_be_saved(self, journal: Journal) -> None:
        """R22: a snapshot ahead of its journal, or of none, is refused in words about snapshots."""
        await journal.append("k", [Event(1), Event(2)])
        for id_, pointer in (("k", 2), ("none", 0)):
            with pytest.raises(NoStateYet, match=f"snapshot of '{id_}' as of seq_nr 3: the journal is at {pointer}"):
                await journal.snapshots.save(id_, 3, "ahead")

    async def test_a_purge_removes_them(self, log: Log, store: Store, journal: Journal, topic: str) -> None:
        """R22: the next incarnation never sees them, before and after replication."""
        await journal.append("k", [Event(1), Event(2)])
        await journal.snapshots.save("k", 2, "old", timestamp_ms=1)
        await journal.purge("k")
        assert await journal.snapshots.load("k") is None
        await journal.append("k", [Event(1), Event(2)])
        assert await journal.snapshots.load("k") is None
        await replicate(log, store, topic)
        assert await journal.snapshots.load("k") is None
        assert list(await store.snapshots.load(topic, "k")) == []
        await journal.snapshots.save("k", 1, "new", timestamp_ms=2)
        loaded = await journal.snapshots.load("k")
        assert loaded is not None
        assert loaded.payload == "new"

    async def test_the_ring_keeps_the_newest(self, journal: Journal) -> None:
        """R22: of five saved three are left, the newest; one of the same number replaces the one before it."""
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
            await journal.snapshots.save("k", n, n, timestamp_ms=n)
        await journal.snapshots.save("k", 5, "again", timestamp_ms=6)
        found = [await journal.snapshots.load("k", max_seq_nr=n) for n in range(1, 6)]
        assert [snapshot.payload if snapshot else None for snapshot in found] == [None, None, 3, 4, "again"]

    async def test_an_older_one_takes_the_place_of_no_newer_one(
        self, store: Store, topic: str, journal: Journal
    ) -> None:
        """R22: the newest three are left, in whatever order they were saved, and no more rows than that."""
        await journal.append("k", [Event(n) for n in range(1, 41)])
        for n in (20, 5, 30, 10, 40, 1, 30):
            await journal.snapshots.save("k", n, n)
        assert sorted(row.seq_nr for row in await store.snapshots.load(topic, "k")) == [20, 30, 40]

    async def test_processes_that_save_at_once_lose_no_snapshot(self, log: Log, store: Store, topic: str) -> None:
        """R22: what was saved is there, whoever saved an older state at the same time; its events may be gone."""
        ours, theirs = (Journal(log, store, topic, cache=None) for _ in range(2))
        for round_ in range(6):
            await ours.append("k", [Event(10 * round_ + n) for n in range(1, 11)])
            last = 10 * round_ + 10
            await asyncio.gather(ours.snapshots.save("k", last, last), theirs.snapshots.save("k", last - 1, last - 1))
            found = [await ours.snapshots.load("k", max_seq_nr=n) for n in (last, last - 1)]
            assert [snapshot.seq_nr if snapshot else None for snapshot in found] == [last, last - 1]

    async def test_a_deleted_snapshot_can_be_saved_again(self, journal: Journal) -> None:
        """R22: deleting and saving in the same state of the journal loses nothing."""
        await journal.append("k", [Event(1), Event(2)])
        await journal.snapshots.save("k", 1, "one", timestamp_ms=1)
        await journal.snapshots.save("k", 2, "two", timestamp_ms=2)
        assert await journal.snapshots.delete("k", max_seq_nr=1) == 1
        assert await journal.snapshots.delete("k") == 1
        assert await journal.snapshots.load("k") is None
        await journal.snapshots.save("k", 2, "two again", timestamp_ms=3)
        loaded = await journal.snapshots.load("k")
        assert loaded is not None
        assert loaded.payload == "two again"

    async def test_one_snapshot_of_several_can_be_deleted(self, journal: Journal) -> None:
        """R22: those from one seq_nr to another; the others stay."""
        await journal.append("k", [Event(n) for n in range(1, 6)])
        for seq_nr in (1, 3, 5):
            await journal.snapshots.save("k", seq_nr, seq_nr)
        assert await journal.snapshots.delete("k", min_seq_nr=2, max_seq_nr=4) == 1
        left = [await journal.snapshots.load("k", max_seq_nr=seq_nr) for seq_nr in (5, 4)]
        assert [snapshot.seq_nr if snapshot else None for snapshot in left] == [5, 1]
        assert await journal.snapshots.delete("k", min_seq_nr=6) == 0
        assert await journal.snapshots.delete("k", min_seq_nr=5) == 1
        with pytest.raises(BadArgument):
            await journal.snapshots.delete("k", min_seq_nr=0)

    async def test_a_snapshot_that_can_not_be_decoded_is_named(
        self, store: Store, journal: Journal, topic: str
    ) -> None:
        """R22: with journal and seq_nr; the older ones can still be loaded, and it can be deleted or saved again."""
        await journal.append("k", [Event(n) for n in range(1, 6)])
        for seq_nr in (3, 5):
            await journal.snapshots.save("k", seq_nr, {"at": seq_nr})
        (newest,) = [row for row in await store.snapshots.load(topic, "k") if row.seq_nr == 5]
        await store.snapshots.save(topic, "k", msgspec.structs.replace(newest, payload=b"{", offset=newest.offset + 1))
        with pytest.raises(SnapshotDamaged, match=r"snapshot of 'k' as of seq_nr 5 can't be decoded") as damaged:
            await journal.snapshots.load("k")
        assert (damaged.value.key, damaged.value.seq_nr) == ("k", 5)
        older = await journal.snapshots.load("k", max_seq_nr=4)
        assert older is not None
        assert older.payload == {"at": 3}
        assert await journal.snapshots.delete("k", min_seq_nr=5) == 1
        assert await journal.snapshots.load("k") == older

    async def test_a_snapshot_of_what_is_not_there_is_refused(self, journal: Journal) -> None:
        """R22: of a missing journal, or above its pointer."""
        with pytest.raises(HeadraceError):
            await journal.snapshots.save("k", 1, "x", timestamp_ms=1)
        await journal.append("k", [Event(1)])
        with pytest.raises(HeadraceError):
            await journal.snapshots.save("k", 2, "x", timestamp_ms=1)
        assert await journal.snapshots.load("k") is None

    async def test_snapshots_of_many_journals(self, journal: Journal) -> None:
        """R22: each journal has its own."""
        await asyncio.gather(*(journal.append(f"k{n}", [Event(1)]) for n in range(5)))
        await asyncio.gather(*(journal.snapshots.save(f"k{n}", 1, n, timestamp_ms=n) for n in range(5)))
        loaded = [await journal.snapshots.load(f"k{n}") for n in range(5)]
        assert [snapshot.payload if snapshot else None for snapshot in loaded] == list(range(5))
