"""Live reads as every tier must give them: what exists, then each event as it is appended, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from tests.suites.journal_faults import StoreOnTop, WatchedLog, WatchedReader
from tests.suites.journal_holds import poison
from tests.suites.journal_made_again import make_again
from tests.suites.journal_setting import JournalSetting, new_topic, replicate

from headrace.errors import Closed, JournalHeld, JournalPurged, TimedOut, Unreachable, WrongSeqNr
from headrace.journal import HeadCache, Journal, grow_topic
from headrace.journal.retention import remove_replicated
from headrace.log import Log
from headrace.model import Event, NewRecord, Position, StoredEvent
from headrace.protocol.actions import Mark
from headrace.protocol.headers import decode_action
from headrace.store import JournalMeta, ReplicatedOffset, Store, StoreReader
from headrace.testing.conformance.log_setting import eventually

__all__ = ["LiveReading", "Reader"]

LEASE_S = 0.05
PATIENCE_S = 30.0
LIVE_IDS = ("a", "b", "c", "d")


class Reader:
    """A live read in a task of its own; it stops after `most` events, until it is told to go on."""

    def __init__(self, journal: Journal, id_: str, from_seq_nr: int = 1, **options: Any) -> None:
        self.events: list[StoredEvent] = []
        self._found: AsyncGenerator[StoredEvent, None] = journal.read(id_, from_seq_nr, live=True, **options)
        self._task = asyncio.create_task(self._run())
        self.error: BaseException | None = None
        self.has_ended = False

    @property
    def numbers(self) -> list[int]:
        """The numbers of the events so far."""
        return [event.seq_nr for event in self.events]

    async def _run(self) -> None:
        try:
            async for event in self._found:
                self.events.append(event)
        except Exception as error:
            self.error = error
        self.has_ended = True

    async def has(self, numbers: Sequence[int]) -> None:
        """Wait until the read has given these events, and no others."""

        async def is_so() -> bool:
            return self.has_ended or len(self.events) >= len(numbers)

        await eventually(is_so, within_s=PATIENCE_S, every_s=0.002, what=f"{self.numbers} is {list(numbers)}")
        if self.error is not None and len(self.events) < len(numbers):
            raise self.error
        assert self.numbers == list(numbers)

    async def ends(self) -> BaseException | None:
        """Wait until the read has ended; return the error if it raised one."""
        await asyncio.wait_for(self._task, PATIENCE_S)
        return self.error

    async def stop(self) -> None:
        """Cancel the read."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._found.aclose()


class LiveReading(JournalSetting):
    """The tests of `read(live=True)`."""

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    @pytest.mark.parametrize("is_reader", [False, True], ids=["writer", "read only"])
    async def test_a_live_read_goes_on_with_what_is_appended(
        self, log: Log, store: Store, topic: str, cache: HeadCache, is_cached: bool, is_reader: bool
    ) -> None:
        """Stored events first, then those of the log, then each new one; payloads and tags are as a read gives them."""
        writer = Journal(log, store, topic, cache=None)
        journal = Journal(log, store, topic, cache=cache if is_cached else None, read_only=is_reader)
        await writer.append("k", [Event(1, "a"), Event(2, "b", ("t",))])
        await replicate(log, store, topic)
        await writer.append("k", [Event(3, "c")])
        reader = Reader(journal, "k")
        await reader.has([1, 2, 3])
        for n in range(4, 10):
            await writer.append("other", [Event(n)])
            await writer.append("k", [Event(n, {"n": n}, ("t",)), Event(n + 100, b"x")] if n == 9 else [Event(n)])
            await reader.has([*range(1, n + 1), *([109] if n == 9 else [])])
            if n == 6:
                await replicate(log, store, topic)
        assert reader.events == [event async for event in writer.read("k")]
        await reader.stop()

    async def test_it_begins_anywhere_and_ends_where_it_is_told(self, journal: Journal) -> None:
        """A first number that the journal has not reached is waited for; with a last one the read ends there."""
        ahead = Reader(journal, "k", 3, to_seq_nr=5)
        await journal.append("k", [Event(1), Event(2)])
        await journal.append("k", [Event(3), Event(4)])
        await ahead.has([3, 4])
        await journal.append("k", [Event(7), Event(8)])
        assert await ahead.ends() is None
        assert ahead.numbers == [3, 4]
        past = Reader(journal, "k", 2, to_seq_nr=4)
        assert await past.ends() is None
        assert past.numbers == [2, 3, 4]
        assert await Reader(journal, "k", 5, to_seq_nr=4).ends() is None

    async def test_a_topic_that_does_not_exist_is_waited_for(self, log: Log, store: Store) -> None:
        """The read begins before the first append of the topic, and shows it."""
        topic = await new_topic(log)
        await log.admin.delete(topic)
        reader = Reader(Journal(log, store, topic, cache=None, read_only=True), "k")
        writer = Journal(log, store, topic, cache=None, partitions=2)
        await asyncio.sleep(0)

        async def is_written() -> bool:  # a broker may still be deleting the topic
            try:
                await writer.append("k", [Event(1)], append_id="first")
            except (TimedOut, Unreachable):
                return False
            return True

        await eventually(is_written)
        await reader.has([1])
        await writer.append("k", [Event(2)])
        await reader.has([1, 2])
        await reader.stop()

    async def test_void_appends_and_deleted_events_do_not_show(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """What lost its check, or came with taken numbers, is left out; a delete moves the read past its events."""
        other = Journal(log, store, topic, cache=None)
        slow = journal.read("k", live=True)
        await journal.append("k", [Event(1, "a"), Event(2, "b")])
        assert (await anext(slow)).seq_nr == 1
        reader = Reader(journal, "k")
        await reader.has([1, 2])
        await other.append("k", [Event(2, "void"), Event(3, "void")])
        await journal.append("k", [Event(3, "c")], expected=2)
        await other.append("k", [Event(4, "d"), Event(5, "e"), Event(6, "f")])
        await journal.delete("k", to=5)
        await journal.append("k", [Event(7, "g")])
        await eventually_last(reader, 7)
        assert [(await anext(slow)).payload for _ in range(3)] == ["b", "f", "g"]
        await slow.aclose()
        assert [event.payload for event in reader.events if event.payload == "void"] == []
        await reader.stop()
        await journal.delete("k", to=7)
        after = Reader(journal, "k")
        await journal.append("k", [Event(8)])
        await after.has([8])
        await after.stop()

    @pytest.mark.parametrize("is_replicated", [False, True])
    async def test_a_purge_ends_a_read_that_has_given_events(
        self, log: Log, store: Store, journal: Journal, topic: str, is_replicated: bool
    ) -> None:
        """JournalPurged names the next number; a read that has given nothing, from 1 on, goes on with the new journal.

        Events of two incarnations are never mixed: who builds a state from them must drop it.
        """
        empty, later = Reader(journal, "k"), Reader(journal, "k", 2)
        await journal.append("k", [Event(1, "old")])
        await empty.has([1])
        fresh = journal.read("k", live=True)
        await journal.delete("k", to=1)
        waiting = asyncio.ensure_future(anext(fresh))
        if is_replicated:
            await replicate(log, store, topic)
        await journal.purge("k")
        await journal.append("k", [Event(1, "new"), Event(2, "new")])
        if is_replicated:
            await replicate(log, store, topic)
        error = await empty.ends()
        assert isinstance(error, JournalPurged)
        assert (error.key, error.next_seq_nr) == ("k", 2)
        assert [event.payload for event in empty.events] == ["old"]
        event = await asyncio.wait_for(waiting, PATIENCE_S)
        assert (event.seq_nr, event.payload) == (1, "new")
        await fresh.aclose()
        await later.stop()

    async def test_a_topic_that_is_created_again_ends_the_read(self, log: Log, store: Store) -> None:
        """The journal is gone with its topic: events of the new topic are not taken for later ones of the old."""
        topic = await new_topic(log)
        cache = HeadCache(log, store.reader)
        journal = Journal(log, store, topic, cache=cache)
        await journal.append("k", [Event(1, "old"), Event(2, "old")])
        reader = Reader(journal, "k")
        await reader.has([1, 2])
        await make_again(log, topic, partitions=2)
        other = Journal(log, store, topic, cache=None)
        await other.append("k", [Event(1, "new"), Event(2, "new"), Event(3, "new")])
        assert isinstance(await reader.ends(), JournalPurged)
        assert [event.payload for event in reader.events] == ["old", "old"]
        await cache.close()

    async def test_the_deletion_of_the_topic_ends_the_read(self, log: Log, store: Store) -> None:
        """Nothing has to take its name for that. A read that has given nothing waits for the next topic."""
        topic = await new_topic(log)
        cache = HeadCache(log, store.reader)
        journal = Journal(log, store, topic, cache=cache, partitions=1)
        await journal.append("k", [Event(1)])
        reader, waiting = Reader(journal, "k"), Reader(journal, "other")
        await reader.has([1])
        await log.admin.delete(topic)
        error = await reader.ends()
        assert isinstance(error, JournalPurged)
        assert (error.key, error.next_seq_nr) == ("k", 2)
        assert not waiting.has_ended
        await waiting.stop()
        await cache.close()

    async def test_a_held_journal_raises_and_goes_on_when_read_again(
        self, log: Log, journal: Journal, topic: str
    ) -> None:
        """A record that can't be decoded ends the read with JournalHeld; reads of other journals go on."""
        reader, other = Reader(journal, "k"), Reader(journal, "other")
        await journal.append("k", [Event(1)])
        await reader.has([1])
        await poison(log, topic, "k")
        await journal.append("other", [Event(1)])
        assert isinstance(await reader.ends(), JournalHeld)
        await other.has([1])
        await other.stop()
        assert isinstance(await Reader(journal, "k").ends(), JournalHeld)

    @pytest.mark.parametrize("is_replicated", [False, True])
    async def test_growth_moves_live_reads_with_their_keys(self, log: Log, store: Store, is_replicated: bool) -> None:
        """Keys go to other partitions while they are followed: nothing is lost or doubled."""
        topic = await new_topic(log, partitions=2)
        cache = HeadCache(log, store.reader, trim_every_s=0.01)
        journal = Journal(log, store, topic, cache=cache, lease_s=LEASE_S)
        ids = [f"k{n}" for n in range(8)]
        readers = [Reader(journal, id_) for id_ in ids]
        for n, partitions in enumerate((3, 5, 6), 1):
            for id_ in ids:
                await journal.append(id_, [Event(2 * n - 1), Event(2 * n)])
            for reader in readers[::2]:
                await reader.has(range(1, 2 * n + 1))
            await grow_topic(log, store.settings, topic, partitions=partitions, lease_s=LEASE_S)
            if is_replicated:
                await replicate(log, store, topic)
        for id_ in ids:
            await journal.append(id_, [Event(7)])
        for reader in readers:
            await reader.has(range(1, 8))
            await reader.stop()
        await cache.close()

    @pytest.mark.parametrize("seed", range(2))
    async def test_readers_that_stop_and_resume_see_what_a_random_history_did(
        self, log: Log, store: Store, seed: int
    ) -> None:
        """Appends, void ones, deletes, purges, replication and growth, in the order in which they were acknowledged."""
        rng = random.Random(seed)
        topic = await new_topic(log, partitions=2)
        cache = HeadCache(log, store.reader, trim_every_s=0.01, max_actions=rng.choice((3, 1000)))
        journal = Journal(log, store, topic, cache=cache, lease_s=LEASE_S)
        history = LiveHistory(journal, Journal(log, store, topic, cache=None, lease_s=LEASE_S), rng)
        readers = [RestingReader(journal, id_, rng) for id_ in LIVE_IDS for _ in range(2)]

        async def all_have_everything() -> bool:
            return all(history.is_whole(reader) for reader in readers)

        try:
            for step in range(1, 81):
                await history.act()
                if step % 9 == 0:
                    await replicate(log, store, topic)
                if step in (30, 60):
                    await grow_topic(log, store.settings, topic, partitions=2 + step // 30, lease_s=LEASE_S)
            for id_ in LIVE_IDS:
                await history.append(id_)
            await eventually(all_have_everything, within_s=PATIENCE_S, every_s=0.01)
        finally:
            for reader in readers:
                await reader.stop()
            await cache.close()
        for reader in readers:
            for first, given in reader.sessions:
                history.check(reader.id, first, given)

    async def test_a_slow_caller_is_overtaken_by_replication_and_gets_everything(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """What it has not read moves to the store, and out of the log; it goes on there. Nothing is kept for it."""
        cache = HeadCache(log, store.reader, trim_every_s=0.01, max_actions=20, max_record_bytes=2000)
        journal = Journal(log, store, topic, cache=cache)
        slow, quick = journal.read("k", live=True), Reader(journal, "k")
        await journal.append("k", [Event(1)])
        assert (await anext(slow)).seq_nr == 1
        for n in range(2, 61):
            await journal.append("k", [Event(n, "x" * 100)])
        await replicate(log, store, topic)

        async def is_trimmed() -> bool:
            return cache.actions == 0

        await quick.has(range(1, 61))
        await eventually(is_trimmed)
        layout = await journal._topology.layout()
        assert await remove_replicated(log, store, layout, retention_ms=1, now_ms=1 << 42) > 0
        await journal.append("k", [Event(61)])
        assert [(await anext(slow)).seq_nr for _ in range(60)] == list(range(2, 62))
        await quick.has(range(1, 62))
        await slow.aclose()
        await quick.stop()
        await cache.close()

    async def test_many_live_reads_cost_no_reader_and_no_mark_for_an_event(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """Thirty reads of ten journals in one partition: one reading of the log, and nothing is asked of the store."""
        watched, reader = WatchedLog(log), CountingReader(store.reader)
        cache = HeadCache(watched, store.reader)
        journal = Journal(watched, StoreOnTop(store, reader), topic, cache=cache)
        writer = Journal(log, store, topic, cache=None)
        readers = {(id_, n): Reader(journal, id_) for id_ in map(str, range(10)) for n in range(3)}
        for id_ in map(str, range(10)):
            await writer.append(id_, [Event(1)])
        for each in readers.values():
            await each.has([1])
        asked = reader.calls
        for n in range(2, 12):
            for id_ in map(str, range(10)):
                await writer.append(id_, [Event(n)])
        for each in readers.values():
            await each.has(range(1, 12))
        assert len([call for call in watched.readings if call.end is None]) == 1
        assert reader.calls == asked
        assert len([record for record in watched.appended if is_mark(record)]) == 30
        for each in readers.values():
            await each.stop()
        await cache.close()

    async def test_outages_of_log_and_store_are_waited_for(self, log: Log, store: Store, topic: str) -> None:
        """At the start, during the first view, and later: the read goes on by itself where it was."""
        down = DownLog(log)
        reader = CountingReader(store.reader)
        cache = HeadCache(down, reader)
        journal = Journal(down, StoreOnTop(store, reader), topic, cache=cache)
        writer = Journal(log, store, topic, cache=None)
        await writer.append("k", [Event(1)])
        reader.fails = 1
        down.fails = 1
        live = Reader(journal, "k")
        await live.has([1])
        down.fails, reader.fails = 2, 10
        down.cut()
        await writer.append("k", [Event(2)])
        await live.has([1, 2])
        await writer.append("k", [Event(3)])
        await live.has([1, 2, 3])
        await live.stop()
        await cache.close()

    async def test_cancelled_and_half_used_reads_leave_nothing_behind(self, journal: Journal, cache: HeadCache) -> None:
        """Neither watches nor tasks stay, however the read ends."""
        await journal.append("k", [Event(1), Event(2)])
        before = asyncio.all_tasks()
        half = journal.read("k", live=True)
        assert (await anext(half)).seq_nr == 1
        readers = [Reader(journal, "k") for _ in range(20)]
        for n, reader in enumerate(readers):
            if n % 2:
                await reader.has([1, 2])
            await reader.stop()
        async for event in journal.read("k", live=True):
            if event.seq_nr == 2:
                break
        await half.aclose()

        async def is_clean() -> bool:
            left = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("headrace-")}
            return not left and not any(followed.watches for followed in cache._followed.values())

        await eventually(is_clean)

    async def test_closing_ends_live_reads(self, log: Log, store: Store, topic: str) -> None:
        """A read that waits gets Closed."""
        cache = HeadCache(log, store.reader)
        reader = Reader(Journal(log, store, topic, cache=cache), "k")
        await Journal(log, store, topic, cache=None).append("k", [Event(1)])
        await reader.has([1])
        await cache.close()
        assert isinstance(await reader.ends(), Closed)


async def eventually_last(reader: Reader, number: int) -> None:
    """Wait until a read has given an event with a number."""

    async def is_so() -> bool:
        return number in reader.numbers

    await eventually(is_so, every_s=0.002)


def is_mark(record: NewRecord) -> bool:
    """Return True for a Mark."""
    return isinstance(decode_action(record), Mark)  # type: ignore[arg-type]


class CountingReader(WatchedReader):
    """Counts what is asked of a store; the next `fails` calls fail."""

    def __init__(self, reader: StoreReader) -> None:
        super().__init__(reader)
        self.calls = 0
        self.fails = 0

    def _count(self) -> None:
        self.calls += 1
        if self.fails > 0:
            self.fails -= 1
            raise TimedOut("a read of the store", 1.0)

    async def replicated(self, at: Any) -> ReplicatedOffset | None:
        self._count()
        return await super().replicated(at)

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        self._count()
        return await super().meta(topic, id_)


class DownLog(WatchedLog):
    """Its next `fails` appends and readings fail; `cut` breaks the readings that are open."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.fails = 0
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """Break the open readings at their next batch."""
        self._cut.set()

    def _fail(self) -> None:
        if self.fails > 0:
            self.fails -= 1
            raise Unreachable("the log", "it is down")

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        self._fail()
        return await super().append(records)

    async def batches(self, reading: Any) -> Any:
        self._fail()
        async for batch in super().batches(reading):
            if self._cut.is_set():
                self._cut.clear()
                raise Unreachable("the log", "it went down")
            yield batch


class LiveHistory:
    """Acts on a few journals, one action after the other, and knows what each incarnation had and lost."""

    def __init__(self, journal: Journal, other: Journal, rng: random.Random) -> None:
        self._journal = journal
        self._other = other
        self._rng = rng
        self._deleted: dict[str, list[dict[int, bool]]] = {id_: [{}] for id_ in LIVE_IDS}

    async def act(self) -> None:
        """Do something to one of the journals."""
        id_ = self._rng.choice(LIVE_IDS)
        events = self._deleted[id_][-1]
        match self._rng.choices(("append", "void", "checked", "delete", "purge"), (60, 10, 10, 12, 8))[0]:
            case "void" if events:
                with contextlib.suppress(WrongSeqNr):  # it refuses by itself what it has written before
                    await self._other.append(id_, [Event(max(events), "void"), Event(max(events) + 1, "void")])
            case "checked":
                with contextlib.suppress(WrongSeqNr):
                    wrong = max(events, default=0) + 1
                    await self._journal.append(id_, [Event(wrong + 1, "void")], expected=wrong)
            case "delete" if events:
                to = self._rng.randint(1, max(events))
                await self._journal.delete(id_, to=to)
                events.update({n: True for n in events if n <= to})
            case "purge" if events:
                await self._journal.purge(id_)
                self._deleted[id_].append({})
            case _:
                await self.append(id_)

    async def append(self, id_: str) -> None:
        """Append one to three events."""
        number, events = len(self._deleted[id_]) - 1, self._deleted[id_][-1]
        first = max(events, default=0) + 1
        new = [Event(n, [number, n]) for n in range(first, first + self._rng.randint(1, 3))]
        await self._journal.append(id_, new)
        events.update({event.seq_nr: False for event in new})

    def check(self, id_: str, first: int, given: Sequence[StoredEvent]) -> int:
        """Check that events are of one incarnation, in order, and that what is left out was deleted; return which."""
        (number,) = {event.payload[0] for event in given} or {-1}
        numbers = [event.seq_nr for event in given]
        assert numbers == sorted(set(numbers)) == [event.payload[1] for event in given]
        known = self._deleted[id_][number]
        assert all(known[n] for n in known if first <= n <= max(numbers, default=0) and n not in numbers)
        return number

    def is_whole(self, reader: RestingReader) -> bool:
        """Return True if the reader has all that is alive."""
        first, given = reader.sessions[-1]
        journals = self._deleted[reader.id]
        alive = {n for n, is_deleted in journals[-1].items() if n >= first and not is_deleted}
        is_last = not given or self.check(reader.id, first, given) == len(journals) - 1
        return is_last and alive <= {event.seq_nr for event in given}


class RestingReader:
    """Reads a journal live; stops now and then, and resumes behind the last event, or from 1 on after a purge."""

    def __init__(self, journal: Journal, id_: str, rng: random.Random) -> None:
        self.id = id_
        self.sessions: list[tuple[int, list[StoredEvent]]] = []
        self._journal = journal
        self._rng = rng
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        first = 1
        while True:
            given: list[StoredEvent] = []
            self.sessions.append((first, given))
            try:
                await self._read(first, given, self._rng.choice((1, 4, 1000)))
                first = given[-1].seq_nr + 1
            except JournalPurged:
                first = 1

    async def _read(self, first: int, given: list[StoredEvent], most: int) -> None:
        async with contextlib.aclosing(self._journal.read(self.id, first, live=True)) as events:
            async for event in events:
                given.append(event)
                if len(given) == most:
                    return

    async def stop(self) -> None:
        """Cancel it; raises what it raised."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
