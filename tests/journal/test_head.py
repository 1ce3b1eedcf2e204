"""The head cache: exact, or it says that it does not know."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.suites.journal_memory import MemoryStore
from tests.suites.journal_script import Script
from tests.suites.journal_script_log import ScriptLog

from headrace.errors import Closed, RecordsLost, TimedOut, Unreachable
from headrace.journal import HeadCache, Journal, replicate_batch
from headrace.journal.window import Windows
from headrace.model import Batch, TopicPartition
from headrace.protocol.entries import entry_of
from headrace.protocol.fold import Entry
from headrace.protocol.head import Head, HeadAnswer, HeadKind
from headrace.protocol.layout import Generation, Layout
from headrace.store import ReplicatedOffset
from headrace.testing.conformance.log_on_top import ReadCall
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.plugin import Size

AT = TopicPartition("t", 0)
LAYOUT = Layout("t", "script", (Generation(1),))


def entries(script: Script) -> list[Entry]:
    found = [entry_of(record, 0) for record in script.records]
    return [entry for entry in found if entry is not None]


def fed(script: Script, *, start: int = 0) -> Head:
    head = Head(start)
    head.take(entries(script), script.offset)
    return head


def offsets(answer: HeadAnswer) -> list[int]:
    assert answer.kind is HeadKind.KNOWN
    return [entry.offset for entry in answer.entries]


class TestHead:
    """Pure knowledge of one partition."""

    def test_it_keeps_actions_not_results(self) -> None:
        """P5: the actions of a key in the window asked for, in order; marks are none."""
        script = Script()
        script.append("k", 1)
        script.mark("k")
        script.append("other", 1)
        script.delete("k", 1)
        head = fed(script)
        assert head.actions == 3
        assert offsets(head.ask("k", after=-1, up_to=3)) == [0, 3]
        assert offsets(head.ask("k", after=0, up_to=3)) == [3]
        assert offsets(head.ask("k", after=-1, up_to=2)) == [0]
        assert offsets(head.ask("nobody", after=-1, up_to=3)) == []

    def test_repetitions_change_nothing(self) -> None:
        """A record that is delivered again is known already."""
        script = Script()
        script.append("k", 1)
        script.delete("k", 1)
        head = fed(script)
        head.take(entries(script), 2)
        head.take(entries(script)[:1], 1)
        assert (head.actions, head.position) == (2, 2)

    def test_a_purge_clears_what_came_before_it(self) -> None:
        """An unconditional purge stands for all before it; a conditional one may turn out void."""
        script = Script()
        script.append("k", 1)
        script.purge("k")
        script.append("k", 1)
        assert offsets(fed(script).ask("k", after=-1, up_to=2)) == [1, 2]
        script = Script()
        script.append("k", 1)
        script.purge("k", last_append=0)
        assert offsets(fed(script).ask("k", after=-1, up_to=1)) == [0, 1]

    def test_a_window_that_ends_before_a_purge_is_unknown(self) -> None:
        """P11: what the purge cleared is not "nothing" for a reader whose barrier lies before it."""
        script = Script()
        script.append("k", 1)
        script.delete("k", 1)
        script.purge("k")
        assert fed(script).ask("k", after=-1, up_to=1).kind is HeadKind.UNKNOWN

    def test_a_purge_behind_poison_clears_nothing(self) -> None:
        """The journal is held: the purge counts for nothing, and a reader must learn why."""
        script = Script()
        script.poison("k")
        script.purge("k")
        assert offsets(fed(script).ask("k", after=-1, up_to=1)) == [0, 1]

    def test_the_bound_is_on_actions(self) -> None:
        """P5: the oldest keys become unknown, the others stay exact; marks never count."""
        script = Script()
        for id_ in ("a", "b", "c"):
            script.append(id_, 1)
            script.mark(id_)
        script.append("a", 2)
        head = fed(script)
        assert head.evict(3) == 1
        assert head.actions == 3
        assert head.ask("b", after=-1, up_to=6).kind is HeadKind.UNKNOWN
        assert offsets(head.ask("c", after=-1, up_to=6)) == [4]
        assert offsets(head.ask("a", after=-1, up_to=6)) == [0, 6]
        assert head.ask("nobody", after=-1, up_to=6).kind is HeadKind.UNKNOWN
        assert offsets(head.ask("nobody", after=6, up_to=6)) == []

    def test_a_key_that_comes_back_is_unknown_for_what_lies_before(self) -> None:
        """P5: until replication has passed the eviction."""
        script = Script()
        script.append("k", 1)
        head = fed(script)
        head.evict(0)
        script.append("k", 2)
        script.purge("x")
        head.take(entries(script), 3)
        assert head.ask("k", after=-1, up_to=2).kind is HeadKind.UNKNOWN
        assert offsets(head.ask("k", after=0, up_to=2)) == [1]
        head.replicated(0)
        assert offsets(head.ask("k", after=0, up_to=2)) == [1]
        assert offsets(head.ask("nobody", after=0, up_to=2)) == []

    def test_what_is_replicated_is_dropped(self) -> None:
        """P10: entries at or below the replicated offset go."""
        script = Script()
        for n in range(1, 11):
            script.append(f"k{n % 3}", n)
        head = fed(script)
        head.replicated(6)
        assert (head.actions, head.start) == (3, 7)
        head.replicated(3)
        assert (head.actions, head.start) == (3, 7)
        head.replicated(50)
        assert (head.actions, head.position) == (0, 51)

    def test_a_reader_that_is_behind_is_told_so(self) -> None:
        """P11: with replicated offset 10 and a head trimmed to 20 it is never told "nothing"."""
        script = Script()
        for n in range(1, 31):
            script.append("k", n)
        head = fed(script)
        head.replicated(20)
        for id_ in ("k", "nobody"):
            assert head.ask(id_, after=10, up_to=29).kind is HeadKind.BEHIND
            assert head.ask(id_, after=19, up_to=29).kind is HeadKind.BEHIND
        assert offsets(head.ask("k", after=20, up_to=29)) == list(range(21, 30))
        assert offsets(head.ask("k", after=25, up_to=29)) == list(range(26, 30))


class Cached:
    """A script, a log that holds it, an empty store, and a cache over both."""

    def __init__(self, **options: float) -> None:
        self.script = Script()
        self.log = ScriptLog("t", self.script.records, random.Random(1))
        self.store = MemoryStore()
        self.cache = HeadCache(self.log, self.store, **options)  # type: ignore[arg-type]

    async def reach(self, offset: int) -> None:
        await self.log.move(offset)

    def ask(self, id_: str = "k", *, after: int = -1, up_to: int, timeout_s: float = 10) -> asyncio.Task[HeadAnswer]:
        asked = self.cache.ask(AT, 0, id_, after=after, up_to=up_to, timeout_s=timeout_s)
        return asyncio.create_task(asked)

    async def replicate(self, up_to: int) -> None:
        await replicate_batch(self.store, LAYOUT, AT, self.script.records, up_to=up_to)


@pytest_asyncio.fixture
async def cached() -> AsyncIterator[Cached]:
    made = Cached(trim_every_s=0.01)
    for n in range(1, 6):
        made.script.append("k", n)
    yield made
    await made.cache.close()


async def is_waiting(task: asyncio.Task[HeadAnswer]) -> bool:
    for _ in range(50):
        await asyncio.sleep(0)
    return not task.done()


class TestWaiting:
    """The cache and the log."""

    async def test_it_waits_for_what_is_asked(self, cached: Cached) -> None:
        """P1: empty, asked for offset 1: waits; record 1 arrives: answers."""
        asked = cached.ask(up_to=1)
        assert await is_waiting(asked)
        await cached.reach(2)
        assert offsets(await asked) == [0, 1]

    async def test_what_the_store_has_needs_no_waiting(self, cached: Cached) -> None:
        """P2: the stored pointer is at or past the asked offset: an answer at once, that sends the reader there."""
        asked = cached.ask(up_to=4)
        assert await is_waiting(asked)
        await cached.replicate(4)
        assert (await asked).kind is HeadKind.BEHIND
        assert (await cached.ask(up_to=2)).kind is HeadKind.BEHIND

    async def test_an_earlier_record_is_not_enough(self, cached: Cached) -> None:
        """P3: asked for 2, record 1 arrives: still waits; record 2: answers."""
        asked = cached.ask(up_to=2)
        await cached.reach(2)
        assert await is_waiting(asked)
        await cached.reach(3)
        assert offsets(await asked) == [0, 1, 2]

    async def test_a_full_cache_forgets_and_says_so(self) -> None:
        """P5: the bound holds while the log is followed, and reads stay right."""
        cached = Cached(max_actions=3)
        for n in range(1, 21):
            cached.script.append(f"k{n % 5}", n)
        await cached.reach(20)
        assert (await cached.ask("k0", up_to=19)).kind is HeadKind.INDEXED
        assert cached.cache.actions <= 3
        journal = Journal(cached.log, cached.store, "t", cache=cached.cache, read_only=True)
        for n in range(5):
            assert [event.seq_nr async for event in journal.read(f"k{n}")] == list(range(n or 5, 21, 5))
        await cached.cache.close()

    async def test_no_answer_in_time(self, cached: Cached) -> None:
        """P6: TimedOut; the caller falls back to the log."""
        with pytest.raises(TimedOut):
            await cached.ask(up_to=4, timeout_s=0.01)
        await cached.reach(5)
        slow = Slow(cached.log)
        cache = HeadCache(slow, cached.store)
        windows = Windows(slow, cache, timeout_s=0.2)
        window = await windows.find(AT, 0, "k", after=-1, up_to=4)
        assert [entry.offset for entry in window.entries] == [0, 1, 2, 3, 4]
        await cache.close()

    async def test_closing_wakes_those_who_wait(self, cached: Cached) -> None:
        """P7: they get Closed, and so does whoever asks later."""
        asked = cached.ask(up_to=4)
        assert await is_waiting(asked)
        await cached.cache.close()
        with pytest.raises(Closed):
            await asked
        with pytest.raises(Closed):
            await cached.ask(up_to=1)

    @pytest.mark.parametrize("error", [Unreachable("somewhere", "gone"), RuntimeError("a bug in a driver")])
    async def test_a_consumer_that_fails_is_made_again(self, cached: Cached, error: Exception) -> None:
        """P8: it fails after offset 0: it is re-created and goes on at 1."""
        failing = Failing(cached.log, error)
        cache = HeadCache(failing, cached.store)
        await cached.reach(5)
        answer = await cache.ask(AT, 0, "k", after=-1, up_to=4, timeout_s=10)
        assert offsets(answer) == [0, 1, 2, 3, 4]
        assert failing.starts == [0, 1]
        await cache.close()

    async def test_memory_is_bounded(self, size: Size) -> None:
        """P10: a topic of 1 000 000 keys: as many actions as the bound says, and flat memory."""
        keys, most = size(50_000, 1_000_000), 10_000
        head = Head(0)
        script = Script()
        (template,) = entries_of_one(script)
        tracemalloc.start()
        peak_at_half = 0
        for start in range(0, keys, 1000):
            batch = [
                Entry(
                    topic="t",
                    id=f"key-{n}",
                    generation=0,
                    partition=0,
                    offset=n,
                    timestamp_ms=1,
                    action=template.action,
                )
                for n in range(start, start + 1000)
            ]
            head.take(batch, start + 1000)
            head.evict(most)
            if start == keys // 2:
                peak_at_half = tracemalloc.get_traced_memory()[1]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert head.actions == most
        assert peak < peak_at_half * 1.1
        head.replicated(keys)
        assert head.actions == 0

    async def test_an_idle_partition_is_dropped(self) -> None:
        """P10: nobody asked for a while: it is followed no more, and again when somebody asks."""
        cached = Cached(idle_s=0.02, trim_every_s=0.005)
        cached.script.append("k", 1)
        await cached.reach(1)
        assert offsets(await cached.ask(up_to=0)) == [0]

        async def is_dropped() -> bool:
            return cached.cache.actions == 0

        await eventually(is_dropped, within_s=5, every_s=0.01)
        assert offsets(await cached.ask(up_to=0)) == [0]
        await cached.cache.close()

    async def test_a_stale_reader_is_sent_back_to_the_store(
        self, cached: Cached, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P11: a reader with an older replicated offset reads that and the head again, and asks again."""
        await cached.reach(5)
        assert offsets(await cached.ask(up_to=4)) == [0, 1, 2, 3, 4]
        await cached.replicate(3)

        async def is_trimmed() -> bool:
            return cached.cache.actions == 1

        await eventually(is_trimmed, within_s=5, every_s=0.01)
        stale = Stale(cached.store, times=2)
        journal = Journal(cached.log, stale, "t", cache=cached.cache, read_only=True)
        assert [event.seq_nr async for event in journal.read("k")] == [1, 2, 3, 4, 5]
        assert stale.asked == 0, "the cache knows a newer one"
        monkeypatch.setattr(cached.cache, "replicated", lambda at: None)
        assert [event.seq_nr async for event in journal.read("k")] == [1, 2, 3, 4, 5]
        assert stale.asked >= 3

    async def test_a_head_of_a_topic_that_was_made_anew_is_not_believed(self, cached: Cached) -> None:
        """P11: its records are those of another topic; who knows of the new one's generation is not told of them."""
        await cached.reach(5)
        assert offsets(await cached.ask(up_to=4)) == [0, 1, 2, 3, 4]
        waiting = cached.ask(up_to=7)
        assert await is_waiting(waiting)
        anew = cached.cache.ask(AT, 1, "k", after=-1, up_to=4, timeout_s=10)
        assert (await anew).kind is HeadKind.UNKNOWN
        with pytest.raises(TimedOut):
            await waiting
        again = await cached.cache.ask(AT, 1, "k", after=-1, up_to=4, timeout_s=10)
        assert [entry.generation for entry in again.entries] == [1] * 5

    async def test_the_newest_records_are_kept_within_their_bytes(self, cached: Cached) -> None:
        """P10: what does not fit is dropped, oldest first, and read from the log; actions stay."""
        cache = HeadCache(cached.log, cached.store, max_record_bytes=1500)
        await cached.reach(5)
        answer = await cache.ask(AT, 0, "k", after=-1, up_to=4, timeout_s=10)
        assert offsets(answer) == [0, 1, 2, 3, 4]
        assert list(answer.records) == [3, 4]
        assert cache.record_bytes <= 1500
        journal = Journal(cached.log, cached.store, "t", cache=cache, read_only=True)
        assert [event.seq_nr async for event in journal.read("k")] == [1, 2, 3, 4, 5]
        await cache.close()

    async def test_a_head_that_retention_overtook_begins_anew(self, cached: Cached) -> None:
        """J25, P8: what is gone is named; once the store has it, reads go on."""
        await cached.reach(5)
        cached.log.start = 3
        journal = Journal(cached.log, cached.store, "t", cache=cached.cache, read_only=True)
        with pytest.raises(RecordsLost):
            await journal.pointer("k")
        await cached.replicate(4)
        assert await journal.pointer("k") == 5


def entries_of_one(script: Script) -> list[Entry]:
    script.append("k", 1)
    return entries(script)


class OnTop(ScriptLog):
    """A ScriptLog over another one."""

    def __init__(self, log: ScriptLog) -> None:
        super().__init__("t", log.records, random.Random(2))
        self.under = log

    @property
    def end(self) -> int:  # type: ignore[override]
        return self.under.end

    @end.setter
    def end(self, value: int) -> None: ...


class Slow(OnTop):
    """Followers get nothing; bounded reads are answered."""

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        if reading.end is None:
            await asyncio.Event().wait()
        async for batch in super().batches(reading):
            yield batch


class Failing(OnTop):
    """The first reader fails behind offset 0."""

    def __init__(self, log: ScriptLog, error: Exception) -> None:
        super().__init__(log)
        self.starts: list[int] = []
        self.error = error

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        self.starts.append(reading.start)
        if len(self.starts) == 1:
            yield Batch(list(self.records[:1]), 1)
            raise self.error
        async for batch in super().batches(reading):
            yield batch


class Stale(MemoryStore):
    """Answers with an old replicated offset a few times, as a reader would that was held up in between."""

    def __init__(self, store: MemoryStore, *, times: int) -> None:
        super().__init__(store.tables)
        self.asked = 0
        self._times = times

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        self.asked += 1
        return None if self.asked <= self._times else await super().replicated(at)


class TestIndex:
    """What a head knows of keys that it has forgotten."""

    def indexed(self, script: Script, most: int) -> Head:
        head = Head(0, has_index=True)
        head.take(entries(script), script.offset)
        head.evict(most)
        return head

    def test_a_key_that_did_nothing_is_known_after_an_eviction(self) -> None:
        """FT9: a new journal needs no pass over the head; of an evicted one the offsets are known."""
        script = Script()
        for id_ in ("a", "b", "c", "a", "b"):
            script.append(id_, script.offset + 1)
        head = self.indexed(script, 1)
        assert offsets(head.ask("nobody", after=-1, up_to=4)) == []
        answer = head.ask("a", after=-1, up_to=4)
        assert (answer.kind, answer.offsets, answer.entries) == (HeadKind.INDEXED, [0, 3], ())
        assert head.ask("a", after=0, up_to=4).offsets == [3]
        assert head.ask("a", after=-1, up_to=2).offsets == [0]
        assert head.indexed == 5 - head.actions

    def test_what_a_key_did_later_is_added(self) -> None:
        """FT9: offsets of what was evicted, and the actions since."""
        script = Script()
        script.append("a", 1)
        head = self.indexed(script, 0)
        script.append("b", 1)
        script.append("a", 2)
        head.take(entries(script), 3)
        answer = head.ask("a", after=-1, up_to=2)
        assert (answer.offsets, [entry.offset for entry in answer.entries]) == ([0], [2])
        assert offsets(head.ask("a", after=0, up_to=2)) == [2]

    def test_what_came_before_a_purge_is_not_taken_for_known(self) -> None:
        """FT9: the purge cleared it, so the index does not have it: windows that begin before are unknown."""
        script = Script()
        script.append("a", 1)
        script.purge("a")
        script.append("b", 1)
        head = self.indexed(script, 0)
        assert head.ask("a", after=-1, up_to=2).kind is HeadKind.UNKNOWN
        assert head.ask("a", after=0, up_to=2).offsets == [1]
        assert offsets(head.ask("b", after=2, up_to=2)) == []

    def test_a_purge_behind_an_eviction_does_not_clear_what_is_not_known(self) -> None:
        """FT9: what was evicted may hold poison, and then the purge counts for nothing."""
        script = Script()
        script.poison("a")
        head = self.indexed(script, 0)
        script.purge("a")
        head.take(entries(script), 2)
        assert head.ask("a", after=-1, up_to=1).kind is HeadKind.UNKNOWN

    def test_the_index_goes_with_replication(self) -> None:
        """FT9: what the store has is thrown out."""
        script = Script()
        for n in range(1, 101):
            script.append(f"k{n % 7}", n)
        head = self.indexed(script, 0)
        for _ in range(20):
            head.replicated(49)
            head.replicated(50)
        assert head.ask("k1", after=50, up_to=99).offsets == [56, 63, 70, 77, 84, 91, 98]
        head.replicated(99)
        assert head.indexed == 0

    def test_without_room_keys_are_unknown(self) -> None:
        """FT9: an index that was dropped says nothing about what lay before."""
        script = Script()
        script.append("a", 1)
        head = self.indexed(script, 0)
        head.drop_index()
        assert head.ask("nobody", after=-1, up_to=0).kind is HeadKind.UNKNOWN
        assert offsets(head.ask("nobody", after=0, up_to=0)) == []

    async def test_new_journals_cost_no_pass_over_a_head_that_is_too_long(self) -> None:
        """FT9: 20 000 un-replicated records, a tenth kept: 100 new journals and 20 old ones read hardly anything."""
        cached = Cached(max_actions=2000)
        for n in range(1, 20_001):
            cached.script.append(f"k{n}", 1)
        await cached.reach(20_000)
        counting = Counting(cached.log)
        cache = HeadCache(counting, cached.store, max_actions=2000)
        journal = Journal(counting, cached.store, "t", cache=cache, read_only=True)
        assert await journal.pointer("new") is None
        counting.records_read = 0
        for n in range(100):
            assert await journal.pointer(f"new{n}") is None
        assert counting.records_read == 0
        for n in range(1, 20_000, 1000):
            assert [event.seq_nr async for event in journal.read(f"k{n}")] == [1]
        assert counting.records_read <= 3 * 20
        assert cache.actions <= 2000
        await cache.close()


class Counting(OnTop):
    """Counts the records of bounded reads."""

    def __init__(self, log: ScriptLog) -> None:
        super().__init__(log)
        self.records_read = 0

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        async for batch in super().batches(reading):
            if reading.end is not None:
                self.records_read += len([record for record in batch.records if record.offset < reading.end])
            yield batch


async def test_a_read_is_not_told_that_records_are_lost_which_only_another_one_needed() -> None:
    """P11: a head that began for a slower read meets the log's new start; a read of what lies behind it is answered."""
    script = Script()
    for n in range(1, 7):
        script.append("a", n)
    log = ScriptLog("t", script.records, random.Random(1))
    log.start, log.end = 4, script.offset
    cache = HeadCache(log, MemoryStore())
    windows = Windows(log, cache, timeout_s=5.0)
    slow, quick = await asyncio.gather(
        windows.find(AT, 0, "a", after=-1, up_to=5), windows.find(AT, 0, "a", after=3, up_to=5), return_exceptions=True
    )
    assert isinstance(slow, RecordsLost)
    assert (slow.first, slow.last) == (0, 3)
    assert not isinstance(quick, BaseException), quick
    assert [entry.offset for entry in quick.entries] == [4, 5]
    await cache.close()


async def test_a_watch_misses_nothing_if_replication_is_faster_than_the_head() -> None:
    """P11: the head is not trimmed beyond what it has read while somebody waits for a key."""
    script = Script()
    for n in range(1, 7):
        script.append("a", n)
    log, store = ScriptLog("t", script.records, random.Random(1)), MemoryStore()
    log.end = 2
    cache = HeadCache(log, store, trim_every_s=0.001)
    with cache.watch(AT, 0, "a", after=1) as watch:
        store.tables.replicated[AT] = ReplicatedOffset(
            at=AT, generation=0, offset=5, log_time_ms=0, created_ms=0, updated_ms=0
        )

        async def is_trimmed() -> bool:
            return cache.replicated(AT) is not None

        await eventually(is_trimmed, every_s=0.001)
        await log.move(script.offset)
        async with asyncio.timeout(5):
            span = await watch.span()
        assert span is not None
        assert span[0] == 1
    await cache.close()


async def test_a_watch_is_told_of_its_key_only() -> None:
    """Other journals and Marks wake nobody; what a watch has not fetched stays one stretch, and Closed ends it."""
    script = Script()
    script.append("b", 1)
    script.mark("a")
    script.append("b", 2)
    first = script.append("a", 1)
    script.append("b", 3)
    script.append("a", 2)
    log = ScriptLog("t", script.records, random.Random(1))
    cache = HeadCache(log, MemoryStore())
    with cache.watch(AT, 0, "a", after=-1) as watch:
        waiting = asyncio.ensure_future(watch.span())
        await log.move(first.offset)
        await cache.ask(AT, 0, "b", after=-1, up_to=first.offset - 1, timeout_s=5.0)
        assert not waiting.done()
        await log.move(script.offset)
        stretches = [await waiting]
        await cache.ask(AT, 0, "b", after=-1, up_to=script.offset - 1, timeout_s=5.0)
        if stretches[0] != (first.offset - 1, script.offset - 1):
            stretches.append(await watch.span())
        assert stretches[0] is not None
        assert stretches[0][0] == first.offset - 1
        assert stretches[-1] is not None
        assert stretches[-1][1] == script.offset - 1
        await cache.close()
        with pytest.raises(Closed):
            await watch.span()
