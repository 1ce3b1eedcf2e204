"""A state as applications use it: typed keys and values, one call a transaction, or many in a unit of work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.errors import BadArgument, KeyPresent, StateConflict, WrongStateTopic
from headrace.model import partition_of
from headrace.state.arguments import check_heartbeat, check_limit, place_after
from headrace.state.changelog import StateWrite, plain_write
from headrace.state.claims import KeyLocks
from headrace.state.commits import CommitQueue
from headrace.state.declaration import index_row
from headrace.state.expiry import NEVER, Duration
from headrace.state.replica import StateReplica
from headrace.state.subscriptions import Heartbeat, PresentValue, RawChange, Subscription
from headrace.state.table import index_prefix
from headrace.state.unit_of_work import UnitOfWork
from headrace.state.values import ValueCodec

__all__ = ["State", "StateChange", "StatePage", "StateRead"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
D = TypeVar("D")

_ATTEMPTS = 100
_PAGE = 256


class CheckFresh(Protocol):
    """Refuses a read that wants more than the copy of a state has."""

    async def __call__(self, name: str, *, max_staleness_s: float | None, at_least: int | None) -> None:
        """Raise StateStale, StateOffline or TimedOut."""
        ...


class StateRead(NamedTuple, Generic[V]):
    """A value, and what it is worth: everything up to `offset` is in it, as of `age_ms` ago."""

    value: V | None
    offset: int | None
    age_ms: int | None


class StatePage(NamedTuple, Generic[K, V]):
    """Some pairs of a scan, and the key to give as `after` for the next page; None if this was the last."""

    items: list[tuple[K, V]]
    next_after: K | None


class StateChange(NamedTuple, Generic[K, V]):
    """What a subscriber gets: a change, or (`is_present`) the value as it stands, after a gap if `is_lagged`.

    `offset` and `token` are what to resume after; the token knows its topic, too. A change of `delta` has the increment
    beside the whole value. A heartbeat has no key and says that nothing more has changed up to its offset.
    """

    key: K | None
    value: V | None
    offset: int
    token: str
    timestamp_ms: int | None = None
    delta: Any = None
    is_expiry: bool = False
    is_present: bool = False
    is_lagged: bool = False
    is_heartbeat: bool = False
    age_ms: int | None = None


class State(Generic[K, V]):
    """One partition of a state.

    Promises: a write that returned is committed in the log; a read shows committed values only, and its own unit's
    writes; an error without `outcome_known` False means that nothing was written.
    """

    def __init__(
        self,
        replica: StateReplica,
        queue: CommitQueue,
        locks: KeyLocks,
        *,
        check_fresh: CheckFresh,
        delta: ValueCodec[Any] | None = None,
        unit: UnitOfWork | None = None,
    ) -> None:
        self._replica = replica
        self._queue = queue
        self._locks = locks
        self._check_fresh = check_fresh
        self._delta = delta
        self._unit = unit

    # One key.

    async def get(self, key: K, *, max_staleness_s: float | None = None, at_least: int | None = None) -> V | None:
        """Return the value of a key; None if it has none, or if it is due.

        A copy that is older than `max_staleness_s`, or does not hold offset `at_least`, refuses; the owner holds every
        offset that a standby has shown. Raises StateStale.
        """
        if max_staleness_s is not None or at_least is not None:
            await self._check_fresh(self._replica.spec.name, max_staleness_s=max_staleness_s, at_least=at_least)
        replica = self._replica
        data = replica.keys.encode(key)
        if self._unit is None:
            self._queue.check_readable(replica)
            value = replica.lasting_value(data)
            if value is not None:
                if not replica.is_plain:
                    await replica.codec.prepare(value)
                found: V = replica.codec.decode(value)
                return found
        return await self._decode(await self._find(data))

    async def read(self, key: K, *, max_staleness_s: float | None = None, at_least: int | None = None) -> StateRead[V]:
        """Return the value of a key with the offset that the copy has come to, and its age."""
        value = await self.get(key, max_staleness_s=max_staleness_s, at_least=at_least)
        complete = self._replica.complete_offset
        return StateRead(value, None if complete is None else complete - 1, self._replica.age_ms)

    async def put(self, key: K, value: V, *, ttl: Duration | None = None) -> None:
        """Set the value of a key. With a time to live of 0 or less it is a deletion."""
        write = self._write_of(key, value, ttl)
        if write.value is None:
            await self._change(key, lambda stored: None if stored is None else write)
        elif self._unit is None and (done := self._write_at_once(key, write)) is not None:
            await done
        else:
            await self._write(key, write)

    async def insert(self, key: K, value: V, *, ttl: Duration | None = None) -> None:
        """Set the value of a key that has none. Raises KeyPresent."""
        write = self._write_of(key, value, ttl)

        def decide(stored: bytes | None) -> StateWrite:
            if stored is not None:
                raise KeyPresent(self._replica.spec.name, repr(key))
            return write

        await self._change(key, decide)

    async def delete(self, key: K) -> None:
        """Delete a key; nothing happens if it has no value."""
        await self.remove(key)

    async def remove(self, key: K) -> V | None:
        """Delete a key and return the value that it had."""
        stored, _ = await self._change(key, lambda stored: None if stored is None else StateWrite(None))
        return await self._decode(stored)

    async def update(self, key: K, change: Callable[[V | None], V | None], *, ttl: Duration | None = None) -> None:
        """Replace the value by `change(value)`; None deletes. An equal value writes and publishes nothing.

        The function may be called again if the key changes meanwhile.
        """
        await self._update(key, change, ttl)

    async def get_and_update(
        self, key: K, change: Callable[[V | None], V | None], *, ttl: Duration | None = None
    ) -> V | None:
        """Update, and return the value before."""
        stored, _ = await self._update(key, change, ttl)
        return await self._decode(stored)

    async def update_and_get(
        self, key: K, change: Callable[[V | None], V | None], *, ttl: Duration | None = None
    ) -> V | None:
        """Update, and return the value after."""
        _, after = await self._update(key, change, ttl)
        return await self._decode(after)

    async def add_delta(self, key: K, delta: D, apply: Callable[[V | None, D], V], *, ttl: Duration | None = None) -> V:
        """Set the value to `apply(value, delta)`; subscribers get the increment, the store the whole value."""
        if self._delta is None:
            raise BadArgument("delta", delta, f"state {self._replica.spec.name!r} is declared without a type of deltas")
        increment = self._delta.encode(delta)
        found: list[V] = []

        async def decide(stored: bytes | None) -> StateWrite:
            found[:] = [apply(await self._decode(stored), delta)]
            return self._write_of(key, found[0], ttl)._replace(delta=increment)

        await self._change_async(key, decide)
        return found[0]

    # Many keys.

    async def prefix(self, prefix: Any, *, after: K | None = None, limit: int = _PAGE) -> StatePage[K, V]:  # noqa: ANN401
        """Return a page of the keys that begin with these parts, or with this text."""
        return await self._page(*self._replica.keys.prefix_range(prefix), after=after, limit=limit, reverse=False)

    async def range(
        self,
        start: Any = None,  # noqa: ANN401
        end: Any = None,  # noqa: ANN401
        *,
        after: K | None = None,
        limit: int = _PAGE,
        reverse: bool = False,
    ) -> StatePage[K, V]:
        """Return a page of the keys from `start` up to, not including, `end`; each a key or the first parts of one."""
        keys = self._replica.keys
        low = b"" if start is None else keys.bound(start)
        high = None if end is None else keys.bound(end)
        return await self._page(low, high, after=after, limit=limit, reverse=reverse)

    async def items(self) -> AsyncIterator[tuple[K, V]]:
        """Yield all pairs in the order of their keys; what changes meanwhile may or may not be seen."""
        page = await self.range()
        while True:
            for item in page.items:
                yield item
            if page.next_after is None:
                return
            page = await self.range(after=page.next_after)

    async def count(self) -> int:
        """Return how many keys have a value."""

        async def count(unit: UnitOfWork) -> int:
            return unit.count(self._replica)

        return await self._transact(count)

    async def find(self, index: str, value: Any, *, after: K | None = None, limit: int = _PAGE) -> StatePage[K, V]:  # noqa: ANN401
        """Return a page of the pairs that an index has under a value, in the order of their keys.

        Only what is committed is found, not the writes of the unit of work that asks.
        """
        if not isinstance(index, str) or index not in self._replica.spec.indexes:
            raise BadArgument("index", index, f"the state has {sorted(self._replica.spec.indexes)}")
        check_limit(limit)
        prefix = index_prefix(index_row(index, value))
        start = prefix if after is None else prefix + self._replica.keys.encode(after) + b"\x00"

        async def search(unit: UnitOfWork) -> list[tuple[bytes, bytes]]:
            found = unit.find(self._replica, start, prefix)
            return list(itertools.islice(found, limit + 1))

        return await self._page_of(await self._transact(search), limit)

    # Subscriptions.

    async def changes(
        self, key: K | None = None, *, after: int | str | None = None, heartbeat_s: float | None = None
    ) -> AsyncIterator[StateChange[K, V]]:
        """Yield the changes of a key, or of all keys, as they are committed.

        Without `after` the present value comes first; with an offset or token every change after it, or, if some may be
        missing, the present value with `is_lagged`. Raises SubscriptionEnded where it must be resumed, and
        WrongStateTopic for a topic whose compaction could remove changes at once.
        """
        subscription = self._subscribe(key, after, heartbeat_s)
        try:
            async for item in subscription:
                yield await self._change_of(key, item)
        finally:
            subscription.close()

    # How it is done.

    def _subscribe(self, key: K | None, after: int | str | None, heartbeat_s: float | None) -> Subscription:
        feed, topic = self._replica.feed, self._replica.spec.topic
        if self._replica.progress.limits.replaced_ms == 0:
            problem = "its min.compaction.lag.ms is 0, so compaction may remove changes before a copy reads them"
            raise WrongStateTopic(topic, problem, "set it (an hour is a good value), or read the state instead")
        check_heartbeat(heartbeat_s)
        topic_id, offset = place_after(after)
        is_lagged = topic_id is not None and topic_id != self._replica.topic.topic_id
        data = None if key is None else self._replica.keys.encode(key)
        return feed.subscribe(data, after=offset, is_lagged=is_lagged, heartbeat_s=heartbeat_s)

    async def _change_of(self, key: K | None, item: RawChange | PresentValue | Heartbeat) -> StateChange[K, V]:
        token = f"{self._replica.topic.topic_id}:{item.offset}"
        if isinstance(item, Heartbeat):
            return StateChange(None, None, item.offset, token, is_heartbeat=True, age_ms=item.age_ms)
        value = await self._decode(item.value)
        if isinstance(item, PresentValue):
            return StateChange(key, value, item.offset, token, is_present=True, is_lagged=item.is_lagged)
        delta = None
        if item.delta is not None and self._delta is not None:
            await self._delta.prepare(item.delta)
            delta = self._delta.decode(item.delta)
        changed: K = self._replica.keys.decode(item.key)
        return StateChange(changed, value, item.offset, token, item.timestamp_ms, delta, item.is_expiry)

    def _write_of(self, key: K, value: V, ttl: Duration | None) -> StateWrite:
        """Return the write of a value; one that is due at once is a deletion."""
        if value is None:
            raise BadArgument("value", None, "None is no value; delete the key instead")
        spec = self._replica.spec
        data = self._replica.codec.encode(value)
        if ttl is None and spec.ttl_of is None:
            return plain_write(data)
        ttl_ms = spec.ttl_ms_of(key, value, ttl)
        return StateWrite(data, ttl_ms) if ttl_ms is None or ttl_ms > 0 else StateWrite(None)

    async def _update(
        self, key: K, change: Callable[[V | None], V | None], ttl: Duration | None
    ) -> tuple[bytes | None, bytes | None]:
        async def decide(stored: bytes | None) -> StateWrite | None:
            value = change(await self._decode(stored))
            if value is None:
                return None if stored is None else StateWrite(None)
            write = self._write_of(key, value, ttl)
            # The value that was handed out may be the same object, changed; what is stored is not.
            is_equal = stored is not None and (write.value == stored or await self._decode(stored) == value)
            return None if is_equal and ttl is None else write

        return await self._change_async(key, decide)

    async def _find(self, key: bytes) -> bytes | None:
        """Return what is stored under a key, as the unit of work sees it, or one that commits what it finds due."""
        if self._unit is None:
            entry = self._replica.entry(key)
            if entry is None or entry.expires_ms == NEVER:
                return None if entry is None else entry.value

        async def read(unit: UnitOfWork) -> bytes | None:
            return unit.get(self._replica, key)

        return await self._transact(read)

    def _write_at_once(self, key: K, write: StateWrite) -> asyncio.Future[None] | None:
        """Write a value into the next transaction, as nearly all are; None if it has to wait for others."""
        replica = self._replica
        self._queue.check_writable(replica)
        data = self._routed(key)
        return None if self._locks.is_held((replica, data)) else self._queue.write_at_once(replica, data, write)

    async def _write(self, key: K, write: StateWrite) -> None:
        """Write a value, whatever was there before: that need not be read, and only updates are waited for."""
        self._queue.check_writable(self._replica)
        data = self._routed(key)
        if self._unit is not None:
            self._unit.write(self._replica, data, write)
            return
        unit = UnitOfWork(self._queue)
        unit.write(self._replica, data, write)
        place = (self._replica, data)
        if self._locks.is_held(place):
            async with self._locks.hold(place):
                pass  # it goes behind an update that has begun; the next one need not wait for it
        await unit.commit()

    async def _change(
        self, key: K, decide: Callable[[bytes | None], StateWrite | None]
    ) -> tuple[bytes | None, bytes | None]:
        async def decide_async(stored: bytes | None) -> StateWrite | None:
            return decide(stored)

        return await self._change_async(key, decide_async)

    async def _change_async(
        self, key: K, decide: Callable[[bytes | None], Awaitable[StateWrite | None]]
    ) -> tuple[bytes | None, bytes | None]:
        """Write what `decide` makes of the stored value; return the value before and after."""
        self._queue.check_writable(self._replica)
        data = self._routed(key)

        async def change(unit: UnitOfWork) -> tuple[bytes | None, bytes | None]:
            stored = unit.get(self._replica, data)
            write = await decide(stored)
            if write is None or (write.value is None and stored is None):
                return stored, stored
            unit.write(self._replica, data, write)
            return stored, write.value

        if self._unit is not None:
            return await change(self._unit)
        async with self._locks.hold((self._replica, data)):
            return await self._transact(change)

    def _routed(self, key: K) -> bytes:
        """Return the key's bytes. Raises BadArgument if it belongs to another partition."""
        replica = self._replica
        keys, partitions = replica.keys, replica.topic.partitions
        if partitions == 1:
            return keys.encode(key)
        routing, data = keys.encode_routed(key)
        partition = partition_of(routing, partitions)
        if partition != replica.at.partition:
            rule = f"it belongs to partition {partition} of {partitions}, this is {self._replica.at.partition}"
            raise BadArgument("key", key, rule)
        return data

    async def _transact(self, action: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Run an action in this state's unit of work, or in one of its own until it commits."""
        if self._unit is not None:
            return await action(self._unit)
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(StateConflict):
                return await self._run_once(action)
        return await self._run_once(action)

    async def _run_once(self, action: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        unit = UnitOfWork(self._queue)
        result = await action(unit)
        await unit.commit()
        return result

    async def _page(
        self, start: bytes, end: bytes | None, *, after: K | None, limit: int, reverse: bool
    ) -> StatePage[K, V]:
        check_limit(limit)
        if after is not None:
            last = self._replica.keys.encode(after)
            start, end = (start, last) if reverse else (max(start, last + b"\x00"), end)

        async def scan(unit: UnitOfWork) -> list[tuple[bytes, bytes]]:
            return list(itertools.islice(unit.scan(self._replica, start, end, reverse=reverse), limit + 1))

        return await self._page_of(await self._transact(scan), limit)

    async def _page_of(self, found: list[tuple[bytes, bytes]], limit: int) -> StatePage[K, V]:
        items: list[tuple[K, V]] = []
        for data, stored in found[:limit]:
            value = await self._decode(stored)
            if value is not None:
                items.append((self._replica.keys.decode(data), value))
        # The last key that was looked at: its value may be one that JSON has for nothing.
        return StatePage(items, self._replica.keys.decode(found[limit - 1][0]) if len(found) > limit else None)

    async def _decode(self, data: bytes | None) -> V | None:
        if data is None:
            return None
        if not self._replica.is_plain:
            await self._replica.codec.prepare(data)
        found: V = self._replica.codec.decode(data)
        return found
