"""The list of journals as every tier must give it: with `unreplicated`, whatever replication has reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.suites.journal_faults import WatchedLog
from tests.suites.journal_holds import poison
from tests.suites.journal_live import DownLog
from tests.suites.journal_setting import JournalSetting, new_topic, replicate

from headrace.errors import VoidAppend, WrongSeqNr
from headrace.journal import Journal, grow_topic, pass_verdict
from headrace.journal.retention import remove_replicated
from headrace.log import Log
from headrace.model import Bounds, Event, TopicPartition
from headrace.store import Store
from headrace.testing.conformance.log_on_top import LogOnTop
from headrace.testing.conformance.log_setting import eventually

__all__ = ["ListedIds", "listed"]

LEASE_S = 0.05


async def listed(journal: Journal) -> list[str]:
    """Return the ids of all journals, sorted; one that comes twice is there twice."""
    return sorted([id_ async for id_ in journal.ids(unreplicated=True)])


class ListedIds(JournalSetting):
    """The tests of `ids(unreplicated=True)`."""

    @pytest.mark.parametrize("is_reader", [False, True], ids=["writer", "read only"])
    async def test_journals_are_listed_before_they_are_replicated(
        self, log: Log, store: Store, topic: str, is_reader: bool
    ) -> None:
        """Each once: in the store, in the log, in both; purged ones and those with void appends only are left out."""
        writer = Journal(log, store, topic, cache=None)
        journal = Journal(log, store, topic, cache=None, read_only=is_reader)
        assert await listed(journal) == []
        for id_ in ("stored", "both", "gone", "again"):
            await writer.append(id_, [Event(1)])
        await replicate(log, store, topic)
        await writer.append("both", [Event(2)])
        await writer.append("new", [Event(1)])
        await writer.append("emptied", [Event(1)])
        await writer.delete("emptied", to=1)
        for id_ in ("gone", "again", "never"):
            await writer.purge(id_)
        await writer.append("again", [Event(1)])
        await writer.append("short", [Event(1)])
        await writer.purge("short")
        void = await writer.prepare("void")
        await writer.purge("void")
        with pytest.raises(Exception, match="void"):
            await writer.append("void", [Event(1)], attempt=void)
        expected = ["again", "both", "emptied", "new", "stored"]
        assert await listed(journal) == expected
        assert sorted([id_ async for id_ in journal.ids()]) == ["again", "both", "gone", "stored"]
        await replicate(log, store, topic)
        assert await listed(journal) == expected
        assert sorted([id_ async for id_ in journal.ids()]) == expected

    async def test_journals_of_a_grown_topic_are_listed_once(self, log: Log, store: Store) -> None:
        """Their actions lie in several partitions, and those of before the growth are not replicated either."""
        topic = await new_topic(log, partitions=2)
        journal = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        ids = sorted(f"k{n}" for n in range(12))
        for id_ in ids:
            await journal.append(id_, [Event(1)])
        await grow_topic(log, store.settings, topic, partitions=3, lease_s=LEASE_S)
        for id_ in ids[::2]:
            await journal.purge(id_)
        await journal.append(ids[0], [Event(1)])
        expected = sorted([ids[0], *ids[1::2]])
        assert await listed(journal) == expected
        for _ in range(2):
            await replicate(log, store, topic)
        layout = await journal._topology.layout()
        assert await remove_replicated(log, store, layout, retention_ms=1, now_ms=1 << 42) > 0
        assert await listed(journal) == expected

    async def test_held_journals_are_listed_as_they_were_before(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """A record that can't be decoded hides no journal, and a skipped one counts as if it were not there."""
        await journal.append("k", [Event(1)])
        await poison(log, topic, "k")
        await poison(log, topic, "first")
        await journal.append("first", [Event(1)])
        assert await listed(journal) == ["k"]
        await replicate(log, store, topic)
        assert await listed(journal) == ["k"]
        await pass_verdict(log, store, topic, "first", skip=True)
        await replicate(log, store, topic)
        assert await listed(journal) == ["first", "k"]

    async def test_a_topic_that_nobody_wrote_has_no_ids(self, log: Log, store: Store) -> None:
        """J1: as for reads, it is empty, and no error."""
        assert await listed(Journal(log, store, "nobody-wrote-this", cache=None)) == []

    async def test_a_live_list_continues_with_new_journals(self, log: Log, store: Store) -> None:
        """Each id once: what exists, then what is begun, in a topic that is not there yet, grows, and is replicated."""
        topic = f"{await new_topic(log)}-later"
        journal = Journal(log, store, topic, cache=None, partitions=2, lease_s=LEASE_S)
        found = Collected(Journal(log, store, topic, cache=None, read_only=True, lease_s=LEASE_S))
        await journal.append("a", [Event(1)])
        await found.has(["a"])
        for n in range(10):
            await journal.append(f"k{n}", [Event(1)], expected=None)
        await found.has(["a", *(f"k{n}" for n in range(10))])  # a journal that is purged at once need not show
        await journal.append("a", [Event(2)])
        await journal.purge("k1")
        with pytest.raises(WrongSeqNr):
            await journal.append("void", [Event(2)], expected=1)
        await replicate(log, store, topic)
        await grow_topic(log, store.settings, topic, partitions=3, lease_s=LEASE_S)
        for n in range(5, 15):
            await journal.append_next(f"k{n}", ["x"])
        await journal.append("k1", [Event(1)])
        attempt = await journal.prepare("last")
        await journal.append("last", [Event(1)], attempt=attempt)
        await found.has(["a", *(f"k{n}" for n in range(15)), "last"])
        late = Collected(journal)
        await late.has(["a", *(f"k{n}" for n in range(15)), "last"])
        for each in (found, late):
            await each.stop()

    async def test_a_live_list_asks_nobody_about_journals_that_are_begun_later(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """It has seen all purges that could make an append void, unless that was first tried before the list began."""
        watched = WatchedLog(log)
        writer = Journal(log, store, topic, cache=None)
        await writer.append("a", [Event(1)])
        early, early_void = await writer.prepare("early"), await writer.prepare("early void")
        await writer.purge("early void")
        found = Collected(Journal(watched, store, topic, cache=None))
        await found.has(["a"])
        void = await writer.prepare("void")
        await writer.purge("void")
        for id_, attempt in (("void", void), ("early void", early_void)):
            with pytest.raises(VoidAppend):
                await writer.append(id_, [Event(1)], attempt=attempt)
        ids = [f"k{n}" for n in range(10)]
        for id_ in ids:
            await writer.append(id_, [Event(1)], expected=None)
        await found.has(["a", *ids])
        assert len(watched.appended) == 1  # a read's mark
        await writer.append("early", [Event(1)], attempt=early)
        await writer.append("void", [Event(1)])
        await found.has(["a", *ids, "early", "void"])
        assert len(watched.appended) == 2
        await found.stop()

    async def test_a_live_list_that_is_suspended_while_its_topic_grows_goes_on(self, log: Log, store: Store) -> None:
        """It knew the old partitions, and the ends that it is given then lie behind the boundaries."""
        topic = await new_topic(log, partitions=1)
        journal = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        await journal.append("a", [Event(1)])

        async def grow() -> None:
            await grow_topic(log, store.settings, topic, partitions=3, lease_s=LEASE_S)

        found = Collected(Journal(SuspendedLog(log, grow), store, topic, cache=None, read_only=True, lease_s=LEASE_S))
        await found.has(["a"])
        ids = [f"k{n}" for n in range(10)]
        for id_ in ids:
            await journal.append(id_, [Event(1)])
        await found.has(["a", *ids])
        await found.stop()

    async def test_a_live_list_waits_for_outages_and_leaves_nothing_behind(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """The log goes down while it lists and while it follows: it goes on, and gives no id twice."""
        down = DownLog(log)
        writer = Journal(log, store, topic, cache=None)
        await writer.append("a", [Event(1)])
        before = asyncio.all_tasks()
        down.fails = 1
        found = Collected(Journal(down, store, topic, cache=None, read_only=True))
        await found.has(["a"])
        down.fails = 1
        down.cut()
        for id_ in ("b", "c"):
            await writer.append(id_, [Event(1)])
            await found.has(["a", "b", "c"][: "abc".index(id_) + 1])
        await found.stop()

        async def is_clean() -> bool:
            names = [task.get_name() for task in asyncio.all_tasks() - before]
            return not any(name.startswith("headrace-live") or not name.startswith("headrace-") for name in names)

        await eventually(is_clean)


class SuspendedLog(LogOnTop):
    """Does something `meanwhile`, before it tells an end for the first time, as if this process had been frozen."""

    def __init__(self, log: Log, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(log)
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def bounds(self, at: TopicPartition) -> Bounds:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await super().bounds(at)


class Collected:
    """The ids that a live list has given, in a task of its own."""

    def __init__(self, journal: Journal) -> None:
        self.ids: list[str] = []
        self._found = journal.ids(live=True)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for id_ in self._found:
            self.ids.append(id_)

    async def has(self, ids: Sequence[str]) -> None:
        """Wait until these are given, and check that nothing else was, and nothing twice."""

        async def is_so() -> bool:
            return self._task.done() or len(self.ids) >= len(ids)

        await eventually(is_so, every_s=0.002, what=f"{self.ids} are {ids}")
        assert sorted(self.ids) == sorted(ids)

    async def stop(self) -> None:
        """Cancel the list."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._found.aclose()
