"""Subscriptions: every committed change once, in order, with its offset; a gap is never silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from tests.state.test_restoring import RETENTION_S

from headrace.errors import BadArgument, SubscriptionEnded
from headrace.model import TopicConfig
from headrace.state.subscriptions import ChangeFeed, FeedSource, Heartbeat, PresentValue, RawChange

IN_TIME_S = 20


async def take(changes: Any, count: int) -> list[Any]:
    return [await asyncio.wait_for(anext(changes), IN_TIME_S) for _ in range(count)]


async def test_a_key_subscriber_gets_every_change_of_its_key_and_a_listener_all(tier: Any) -> None:
    """S7: in order, with the offsets of the log, at the owner and at a copy; deletions are changes without a value."""
    spec = tier.spec()
    owner = await tier.owned(spec)
    copy = await tier.open(spec)
    copy.follow()
    subscribers = [(part.state(spec).changes("a"), part.state(spec).changes()) for part in (owner, copy)]
    for one, all_ in subscribers:
        assert [change.is_present for change in [*await take(one, 1), *await take(all_, 1)]] == [True, True]
    things, offsets = owner.state(spec), {}
    for n, key in enumerate("abacab"):
        await things.put(key, str(n))
        offsets[n] = owner.replicas[spec.name].entry(key.encode()).offset  # type: ignore[union-attr]
    await things.delete("a")
    for one, all_ in subscribers:
        mine = await take(one, 4)
        assert [(change.key, change.value) for change in mine] == [("a", "0"), ("a", "2"), ("a", "4"), ("a", None)]
        assert [change.offset for change in mine[:3]] == [offsets[0], offsets[2], offsets[4]]
        every = await take(all_, 7)
        assert [(change.key, change.value) for change in every[:6]] == [(k, str(n)) for n, k in enumerate("abacab")]
        assert [change.offset for change in every] == sorted({change.offset for change in every})
        await one.aclose()
        await all_.aclose()


async def test_a_subscriber_resumes_with_exactly_what_it_missed(tier: Any) -> None:
    """G13: after an offset, or after the token of a change, at another replica too: nothing twice, nothing missing."""
    spec = tier.spec()
    owner = await tier.owned(spec)
    copy = await tier.open(spec)
    copy.follow()
    things = owner.state(spec)
    changes = things.changes("a")
    await take(changes, 1)
    for n in range(6):
        await things.put("a", str(n))
        await things.put("other", str(n))
    first = await take(changes, 3)
    for resumed in (
        things.changes("a", after=first[-1].offset),
        copy.state(spec).changes("a", after=first[-1].token),
    ):
        assert [change.value for change in await take(resumed, 3)] == ["3", "4", "5"]
        await resumed.aclose()
    ahead = copy.state(spec).changes("a", after=first[-1].offset + 1000)
    waiting = asyncio.ensure_future(anext(ahead))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done, "a copy that has not come so far waits"
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    other = copy.state(spec).changes("a", after="another-topic:3")
    (present,) = await take(other, 1)
    assert (present.is_lagged, present.value) == (True, "5")
    with pytest.raises(BadArgument):
        await anext(things.changes("a", after="nonsense"))


async def test_a_change_that_is_not_committed_is_never_seen(embedded: Any) -> None:
    """G13: writes that fail, and units that are given up, reach nobody."""
    from tests.state.test_state import failing

    from headrace.errors import TransactionFailed

    spec = embedded.spec()
    partition, writer = await failing(embedded, spec)
    things = partition.state(spec)
    changes = things.changes()
    await take(changes, 1)
    writer.error = TransactionFailed("id", "refused")
    with pytest.raises(TransactionFailed):
        await things.put("a", "never")
    unit_of_work = partition.unit_of_work()
    unit = await unit_of_work.__aenter__()
    await partition.state(spec, unit).put("a", "given up")
    await things.put("b", "1")
    assert [(change.key, change.value) for change in await take(changes, 1)] == [("b", "1")]


async def test_a_copy_that_was_behind_compaction_ends_its_subscribers(embedded: Any) -> None:
    """S7: where changes may have been hidden, live subscribers end, and resuming says that there was a gap."""
    config = TopicConfig(min_compaction_lag_ms=100_000, tombstone_retention_ms=RETENTION_S * 1000)
    spec = embedded.spec(topic_config=config)
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    copy = await embedded.open(spec)
    changes = copy.state(spec).changes("a")
    (present,) = await take(changes, 1)
    embedded.clock.advance(80)
    for n in (2, 3, 4):
        await owner.state(spec).put("a", str(n))
    await copy.catch_up()
    with pytest.raises(SubscriptionEnded, match=f"resume after offset {present.offset}"):
        await take(changes, 1)
    resumed = copy.state(spec).changes("a", after=present.offset)
    (gap,) = await take(resumed, 1)
    assert (gap.is_lagged, gap.value) == (True, "4")
    await owner.state(spec).put("a", "5")
    await copy.catch_up()
    assert [change.value for change in await take(resumed, 1)] == ["5"]


async def test_a_new_owner_keeps_changes_back_until_its_wait_is_over(embedded: Any) -> None:
    """G13: nothing leaves a held owner, neither to live subscribers nor to new ones; then all of it comes, once."""
    spec = embedded.spec()
    partition = await embedded.open(spec)
    things = partition.state(spec)
    live = things.changes("a")
    await take(live, 1)
    partition.own(await embedded.writer(spec), is_held=True)
    await things.put("a", "1")
    await things.put("a", "2")
    late = things.changes("a")
    waiting = [asyncio.ensure_future(anext(each)) for each in (live, late)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    partition.release()
    first, present = await asyncio.gather(*waiting)
    assert (first.value, present.value, present.is_present) == ("1", "2", True)
    assert [change.value for change in await take(live, 1)] == ["2"]


def feed(values: dict[bytes, bytes] | None = None, **bounds: int) -> ChangeFeed:
    return ChangeFeed(FeedSource("s", (values or {}).get, lambda: 7), **bounds)


def change(offset: int, key: bytes = b"k") -> RawChange:
    return RawChange(key, b"%d" % offset, offset, 0)


async def test_the_ring_reaches_back_as_far_as_it_says() -> None:
    """S7: after evictions a resume gets all it missed or is told that it lags, whatever the offset."""
    ring = feed({b"k": b"now"}, max_changes=5)
    ring.advance([], 100)
    for offset in range(100, 130, 2):
        ring.advance([change(offset)], offset + 1)
    for after in range(95, 128):
        item = await anext(ring.subscribe(b"k", after=after))
        kept_from = 120
        if after + 1 < kept_from - 1:
            assert item == PresentValue(b"now", 128, is_lagged=True)
        else:
            assert isinstance(item, RawChange)
            assert item.offset == min(offset for offset in range(100, 130, 2) if offset > after)


async def test_a_slow_subscriber_is_told_that_it_lags() -> None:
    """S7: what waits for it is bounded; others are not slowed; it goes on from the present value."""
    values = {b"k": b"0"}
    ring = feed(values)
    ring.advance([], 0)
    slow = ring.subscribe(b"k", after=None, max_waiting=3)
    assert await anext(slow) == PresentValue(b"0", -1, is_lagged=False)
    for offset in range(10):
        values[b"k"] = b"%d" % offset
        ring.advance([change(offset)], offset + 1)
    assert await anext(slow) == PresentValue(b"9", 9, is_lagged=True)
    ring.advance([change(10)], 11)
    assert await anext(slow) == change(10)


async def test_a_change_is_handed_out_once() -> None:
    """G13: a change that comes to a subscriber a second time, live after a replay, is left out."""
    ring = feed()
    ring.advance([], 5)
    ring.advance([change(5), change(6)], 7)
    resumed = ring.subscribe(b"k", after=4, heartbeat_s=0.01)
    assert await anext(resumed) == change(5)
    resumed.push(change(5))
    resumed.push(change(6))
    ring.advance([change(7)], 8)
    assert [await anext(resumed) for _ in range(3)] == [change(6), change(7), Heartbeat(7, 7)]


async def test_a_subscriber_sees_a_due_value_until_its_tombstone_is_committed(embedded: Any) -> None:
    """S17: at the owner a key is gone when its tombstone is committed, for subscribers too; a standby hides it."""
    spec = embedded.spec(ttl=5)
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    standby = await embedded.open(spec)
    embedded.clock.advance(6)
    (at_owner,) = await take(changes := owner.state(spec).changes("a"), 1)
    (at_standby,) = await take(standby.state(spec).changes("a"), 1)
    assert (at_owner.value, at_standby.value) == ("1", None)
    assert await owner.state(spec).get("a") is None
    assert [(change.value, change.is_expiry) for change in await take(changes, 1)] == [(None, True)]


async def test_heartbeats_tell_how_far_and_how_old() -> None:
    """S7: while nothing changes a subscriber learns up to where, and as of when."""
    ring = feed()
    ring.advance([], 5)
    quiet = ring.subscribe(b"k", after=4, heartbeat_s=0.01)
    assert await anext(quiet) == Heartbeat(4, 7)
    ring.advance([change(5, b"other")], 6)
    assert await anext(quiet) == Heartbeat(5, 7)


async def test_a_heartbeat_never_passes_over_a_change() -> None:
    """G13: a change that comes in the moment in which the time is up is handed out; the heartbeat comes after it."""
    source = feed()
    source.advance((), 1)
    subscription = source.subscribe(b"k", after=0, heartbeat_s=0.01)
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.02, source.advance, [change(1)], 2)
    time.sleep(0.1)  # noqa: ASYNC251 - the loop finds both due, first the time-out and then the change
    assert await waiting == change(1)
    assert await anext(subscription) == Heartbeat(1, 7)


async def test_a_subscriber_that_leaves_costs_nothing(embedded: Any) -> None:
    """S7: an iterator that is closed, or cancelled while it waits, is forgotten."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)
    hub = partition.replicas[spec.name].feed
    changes = partition.state(spec).changes("a")
    await take(changes, 1)
    assert len(hub._by_key) == 1
    await changes.aclose()
    has_started = asyncio.Event()

    async def listen() -> None:
        async for _ in partition.state(spec).changes("b"):
            has_started.set()

    listening = asyncio.ensure_future(listen())
    await asyncio.wait_for(has_started.wait(), IN_TIME_S)
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
    await asyncio.get_running_loop().shutdown_asyncgens()
    assert hub._by_key == {}


async def test_a_state_that_nobody_follows_keeps_no_changes() -> None:
    """S7: it publishes how far it is, and refuses subscribers, who would miss changes."""
    feed = ChangeFeed(FeedSource("unfollowed", lambda _: None, lambda: 0), is_followed=False)
    feed.advance([], 5)
    feed.advance([RawChange(b"a", b"1", 5, 0)], 6)
    assert feed.is_idle
    assert feed.last_offset == 5
    assert feed.replay(b"a", after=4) is None
    with pytest.raises(BadArgument, match="is_followed"):
        feed.subscribe(b"a", after=None)
