"""Feeds and listeners, without any log: who is served from where, who waits for whom, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from headrace.errors import Closed, OffsetOutOfRange, UnknownTopic
from headrace.log import follower as following
from headrace.log.follower import Feed, Following
from headrace.model import Batch, Bounds, Record, TopicPartition
from headrace.testing.conformance.log_setting import eventually

AT = TopicPartition("t", 0)


def records(start: int, end: int) -> list[Record]:
    return [Record("t", 0, offset, 1, b"k", b"v", ()) for offset in range(start, end)]


class ScriptSource:
    """A source that brings what the test says, and counts what it was asked."""

    def __init__(self) -> None:
        self.feeds: dict[TopicPartition, Feed] = {}
        self.running: set[TopicPartition] = set()
        self.starts: list[int] = []
        self.slices: list[tuple[int, int]] = []
        self.end_offset = 0

    def start(self, feed: Feed) -> None:
        self.feeds[feed.at] = feed
        self.running.add(feed.at)
        self.starts.append(feed.position)

    def stop(self, feed: Feed) -> None:
        self.running.discard(feed.at)

    def end(self, feed: Feed) -> None:
        self.running.discard(feed.at)
        self.feeds.pop(feed.at, None)

    def bring(self, end: int, *, next_offset: int | None = None) -> None:
        """Bring records up to an offset, as many at a time as the feed takes."""
        self.end_offset = max(self.end_offset, next_offset or end)
        feed = self.feeds[AT]
        while AT in self.running and feed.position < end:
            some = min(end, feed.position + 100)
            after = next_offset if next_offset and some == end else some
            feed.take(Batch(records(feed.position, some), after), feed.turn)

    async def read(self, at: TopicPartition, start: int, end: int, *, timeout_s: float) -> AsyncGenerator[Batch, None]:
        self.slices.append((start, end))
        for first in range(start, end, 100):
            last = min(first + 100, end)
            yield Batch(records(first, last), last)

    async def bounds(self, at: TopicPartition) -> Bounds:
        return Bounds(0, self.end_offset, self.end_offset)


@pytest.fixture
def source() -> ScriptSource:
    return ScriptSource()


@pytest.fixture
def log(source: ScriptSource, monkeypatch: pytest.MonkeyPatch) -> Following:
    monkeypatch.setattr(following, "_MOST_RECORDS", 2000)
    return Following(source, source.read, source.bounds, name="a log")


async def started(batches: AsyncIterator[Batch]) -> asyncio.Future[Batch]:
    """Begin to wait for the next batch."""
    waiting = asyncio.ensure_future(anext(batches))
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting


def offsets(batch: Batch) -> list[int]:
    return [record.offset for record in batch.records]


async def test_listeners_of_a_partition_share_one_feed(log: Following, source: ScriptSource) -> None:
    """FT8: each gets everything from its place on; the log is asked once, also for one that comes later."""
    one, two = log.follow(AT, 0), log.follow(AT, 0)
    waiting = [await started(one), await started(two)]
    source.bring(3)
    assert [offsets(await each) for each in waiting] == [[0, 1, 2], [0, 1, 2]]
    late = log.follow(AT, 1)
    assert offsets(await anext(late)) == [1, 2]
    assert (source.starts, source.slices, log.feeds) == ([0], [], 1)
    for each in (one, two, late):
        await each.aclose()
    assert (log.feeds, source.running) == (0, set())


async def test_hidden_offsets_move_the_position(log: Following, source: ScriptSource) -> None:
    """Aborted and control records are passed by batches without records, or whose next offset lies further."""
    batches = log.follow(AT, 0)
    waiting = await started(batches)
    source.bring(2, next_offset=4)
    assert (await waiting).next_offset == 4
    waiting = await started(batches)
    source.feeds[AT].take(Batch([], 9), source.feeds[AT].turn)
    assert await waiting == Batch([], 9)
    await batches.aclose()


async def test_a_slow_listener_holds_up_nobody_and_costs_no_memory(log: Following, source: ScriptSource) -> None:
    """FT8: the fast one has it all while the slow one sits; the slow one then catches up from the log."""
    slow, fast = log.follow(AT, 0, max_records=10), log.follow(AT, 0)
    waiting = [await started(slow), await started(fast)]
    source.bring(100)
    assert offsets(await waiting[0]) == list(range(10))
    seen = offsets(await waiting[1])
    for end in range(200, 10_001, 100):
        following_one = await started(fast)
        source.bring(end)
        seen += offsets(await following_one)
    assert seen == list(range(10_000))
    feed = source.feeds[AT]
    assert feed.position - feed.first <= following._MOST_RECORDS
    rest: list[int] = []
    while len(rest) < 9_990:
        rest += offsets(await anext(slow))
    assert rest == list(range(10, 10_000))
    assert source.starts == [0]
    await slow.aclose()
    await fast.aclose()
    assert log._memory.used_bytes == 0


async def test_a_feed_waits_for_the_listener_that_is_furthest(log: Following, source: ScriptSource) -> None:
    """FT8: who takes nothing makes the log read no further than what is kept; it goes on when something is taken."""
    batches = log.follow(AT, 0)
    waiting = await started(batches)
    source.bring(10_000)
    feed = source.feeds[AT]
    assert AT not in source.running
    assert feed.position <= following._MOST_RECORDS + 100
    assert offsets(await waiting)[0] == 0
    seen = 1000
    while seen < 10_000:
        source.bring(10_000)
        seen = (await anext(batches)).next_offset
    await batches.aclose()


async def test_one_who_is_ahead_is_not_held_up_by_one_who_waits(log: Following, source: ScriptSource) -> None:
    """FT8: the feed goes where the furthest listener is; the other reads what lies between."""
    lazy = log.follow(AT, 0, max_records=100)
    waiting = await started(lazy)
    source.bring(5_000)
    await waiting
    source.end_offset = 5_000
    eager = log.follow(AT, 5_000)
    waiting = await started(eager)
    source.bring(5_003)
    assert offsets(await waiting) == [5_000, 5_001, 5_002]
    seen = 100
    while seen < 5_003:
        batch = await anext(lazy)
        assert offsets(batch) == list(range(seen, batch.next_offset))
        seen = batch.next_offset
    assert source.slices
    await lazy.aclose()
    await eager.aclose()


async def test_one_who_comes_to_the_end_of_a_waiting_feed_is_not_held_up(log: Following, source: ScriptSource) -> None:
    """A feed that waits for a slow listener goes on for one who begins exactly where it stands."""
    lazy = log.follow(AT, 0, max_records=100)
    waiting = await started(lazy)
    source.bring(5_000)
    await waiting
    source.bring(5_000)
    feed = source.feeds[AT]
    assert AT not in source.running
    eager = log.follow(AT, feed.position)
    waiting = await started(eager)
    first = feed.position
    source.bring(first + 3)
    assert offsets(await asyncio.wait_for(waiting, 5)) == [first, first + 1, first + 2]
    await lazy.aclose()
    await eager.aclose()


async def test_one_who_is_behind_gets_nothing_of_a_topic_that_took_the_place(
    log: Following, source: ScriptSource
) -> None:
    """Once the followed topic is gone, the log is not read any more for those who are behind the feed's records."""
    slow, fast = log.follow(AT, 0, max_records=10), log.follow(AT, 0)
    waiting = [await started(slow), await started(fast)]
    source.bring(100)
    await asyncio.gather(*waiting)
    for end in range(200, 5_001, 100):
        following_one = await started(fast)
        source.bring(end)
        await following_one
    assert source.feeds[AT].first > 10
    source.feeds[AT].fail(UnknownTopic("t"))
    with pytest.raises(UnknownTopic):
        await anext(slow)
    await fast.aclose()


async def test_a_start_beyond_the_end_is_refused(log: Following, source: ScriptSource) -> None:
    """The other listeners don't notice."""
    batches = log.follow(AT, 0)
    waiting = await started(batches)
    source.bring(3)
    await waiting
    with pytest.raises(OffsetOutOfRange):
        await anext(log.follow(AT, 4_000))
    assert source.starts == [0]
    await batches.aclose()


async def test_an_error_comes_after_what_was_before_it(log: Following, source: ScriptSource) -> None:
    """Each listener gets what the feed has, then the error; whoever comes then begins a new feed."""
    one, two = log.follow(AT, 0), log.follow(AT, 0, max_records=1)
    waiting = [await started(one), await started(two)]
    source.bring(3)
    await asyncio.gather(*waiting)
    source.feeds[AT].fail(UnknownTopic("t"))
    with pytest.raises(UnknownTopic):
        await anext(one)
    assert [offsets(await anext(two)), offsets(await anext(two))] == [[1], [2]]
    with pytest.raises(UnknownTopic):
        await anext(two)
    again = log.follow(AT, 0)
    waiting_again = await started(again)
    assert source.starts == [0, 0]
    source.bring(1)
    assert offsets(await waiting_again) == [0]
    await again.aclose()


async def test_closing_wakes_all(log: Following, source: ScriptSource) -> None:
    """They get Closed, and so does who comes later."""
    waiting = await started(log.follow(AT, 0))
    await log.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await anext(log.follow(AT, 0))


async def test_a_feed_lingers_for_those_who_come_back(source: ScriptSource) -> None:
    """FT8: a query that is opened again finds the partition followed; after a while nobody follows it."""
    log = Following(source, source.read, source.bounds, name="a log", linger_s=0.05)
    first = log.follow(AT, 0)
    waiting = await started(first)
    source.bring(3)
    await waiting
    await first.aclose()
    again = log.follow(AT, 2)
    assert offsets(await anext(again)) == [2]
    assert source.starts == [0]
    await again.aclose()

    async def is_over() -> bool:
        return log.feeds == 0

    await eventually(is_over, within_s=5, every_s=0.01)


async def test_values_are_left_out_for_those_who_want_none(log: Following, source: ScriptSource) -> None:
    """One listener wants headers only; another one of the same feed gets whole records."""
    bare, whole = log.follow(AT, 0, headers_only=True), log.follow(AT, 0)
    waiting = [await started(bare), await started(whole)]
    source.bring(1)
    assert [(await each).records[0].value for each in waiting] == [None, b"v"]
    await bare.aclose()
    await whole.aclose()
