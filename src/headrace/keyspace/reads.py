"""Reads and writes of single operations, in bytes: each works on one copy, within a unit of work."""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

from headrace.errors import BadArgument, StateOffline
from headrace.keyspace.messages import (
    ChangesPage,
    FindByIndex,
    GetValue,
    PollChanges,
    PutValue,
    RawItem,
    RawPage,
    RawRead,
    ReadPage,
)
from headrace.model import ConsistencyToken, TokenPlace
from headrace.state import (
    Heartbeat,
    PresentValue,
    RawChange,
    StatePartition,
    StateReplica,
    StateWrite,
    Subscription,
    UnitOfWork,
    is_due,
    place_of,
)

__all__ = [
    "CommittedValue",
    "change_page",
    "count_keys",
    "find_by_index",
    "put_value",
    "read_committed",
    "read_page",
    "read_value",
]


class CommittedValue(NamedTuple):
    """The bytes of a value, the offset that it was written at, and the last place that the owner's copy is whole at."""

    data: bytes
    version: int
    place: TokenPlace | None

    @property
    def token(self) -> str:
        """The consistency token of what was read: a read that is given it shows nothing older."""
        return str(ConsistencyToken(() if self.place is None else (self.place,)))


def read_value(unit: UnitOfWork, replica: StateReplica, asked: GetValue) -> RawRead:
    """Read one key."""
    value = unit.get(replica, asked.key)
    written = unit.seen.get((replica, asked.key))
    complete = replica.complete_offset
    offset = None if complete is None else complete - 1
    return RawRead(value, None if value is None else written, offset, replica.age_ms, place_of(replica))


def read_committed(states: StatePartition, state: str, key: bytes) -> CommittedValue | None:
    """Read one key as its owner, without a unit of work; None without a value, or if the copy can't be read now.

    A key that is due needs a unit: nobody says that it is gone before its tombstone is committed.
    """
    replica = states.replicas.get(state)
    if replica is None or states.unsettled is not None or not replica.is_online:
        return None
    entry = replica.entry(key)
    if entry is None or is_due(entry.expires_ms, replica.now_ms):
        return None
    return CommittedValue(entry.value, entry.offset, place_of(replica))


def read_page(unit: UnitOfWork, replica: StateReplica, asked: ReadPage) -> RawPage:
    """Read a range of keys."""
    found = unit.scan(replica, asked.start, asked.end, reverse=asked.reverse)
    items = list(itertools.islice(found, asked.limit + 1))
    complete = replica.complete_offset
    return RawPage(items[: asked.limit], len(items) > asked.limit, None if complete is None else complete - 1)


def find_by_index(unit: UnitOfWork, replica: StateReplica, asked: FindByIndex) -> RawPage:
    """Read what an index has under a value."""
    items = list(itertools.islice(unit.find(replica, asked.start, asked.prefix), asked.limit + 1))
    return RawPage(items[: asked.limit], len(items) > asked.limit)


def count_keys(unit: UnitOfWork, replica: StateReplica) -> int:
    """Count the keys."""
    return unit.count(replica)


def put_value(unit: UnitOfWork, replica: StateReplica, asked: PutValue) -> bool:
    """Write one key, or delete it; returns False if it is not as expected."""
    if asked.expected is None and asked.value is not None:  # whatever was there before
        unit.write(replica, asked.key, StateWrite(asked.value, asked.ttl_ms))
        return True
    stored = unit.get(replica, asked.key)
    written = unit.seen.get((replica, asked.key), -1) if stored is not None else -1
    if asked.expected is not None and asked.expected != written:
        return False
    if asked.value is not None or stored is not None:
        unit.write(replica, asked.key, StateWrite(asked.value, asked.ttl_ms))
    return True


async def change_page(states: StatePartition, asked: PollChanges) -> ChangesPage:
    """Wait for changes, for so long at most, and return those that are there."""
    replica = states.replica(asked.state)
    if not replica.is_online:
        raise StateOffline(replica.spec.name, "it is catching up")
    if asked.limit < 1:
        raise BadArgument("limit", asked.limit, "a page has at least one change")
    if asked.token is not None:
        token = ConsistencyToken.parse(asked.token)
        await states.check_token(asked.state, token, timeout_s=asked.wait_s)
    topic_id = replica.topic.topic_id
    is_lagged = asked.topic_id is not None and asked.topic_id != topic_id
    # Of a log that was restored, or of another partition: to wait for the offset would be to leave changes out.
    is_lagged = is_lagged or (asked.after is not None and await states.is_beyond_log(asked.state, asked.after))
    subscription = replica.feed.subscribe(asked.key, after=asked.after, is_lagged=is_lagged, heartbeat_s=asked.wait_s)
    try:
        return await _page_of(subscription, topic_id, asked)
    finally:
        subscription.close()


async def _page_of(subscription: Subscription, topic_id: str, asked: PollChanges) -> ChangesPage:
    items: list[RawItem] = []
    offset: int | None = None
    try:
        async with asyncio.timeout(asked.wait_s + 1.0) as limit:
            while len(items) < asked.limit:
                item = await anext(subscription)
                offset = item.offset
                if isinstance(item, Heartbeat):
                    return ChangesPage(topic_id, items, offset, item.age_ms)
                items.append(_raw_item(item, asked.key))
                if not subscription.has_more:
                    break
                limit.reschedule(asyncio.get_running_loop().time() + asked.wait_s)
    except TimeoutError:
        pass  # the copy has not come as far as the caller yet; it asks again
    return ChangesPage(asked.topic_id, [], asked.after) if offset is None else ChangesPage(topic_id, items, offset)


def _raw_item(item: PresentValue | RawChange, key: bytes | None) -> RawItem:
    if isinstance(item, PresentValue):
        return RawItem(key, item.value, item.offset, is_present=True, is_lagged=item.is_lagged)
    return RawItem(item.key, item.value, item.offset, item.timestamp_ms, item.delta, item.is_expiry)
