"""The copies of a keyspace's states as a client asks them: one key, a page of a partition, its changes as they come.

A copy of this process answers where any copy may; otherwise the owner is asked.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.errors import BadArgument, NotPartitionOwner, SubscriptionEnded, Unavailable
from headrace.keyspace.collections import CollectionSource, KeyRange, RangePage
from headrace.keyspace.messages import (
    ChangesPage,
    CountKeys,
    FindByIndex,
    GetValue,
    PollChanges,
    RawPage,
    RawRead,
    ReadPage,
    encode,
)
from headrace.keyspace.reads import CommittedValue
from headrace.keyspace.routes import KeyspaceRoute
from headrace.runtime import Backoff
from headrace.state import (
    OrderedKeys,
    StateChange,
    StatePage,
    StateSpec,
    ValueCodec,
    check_heartbeat,
    check_limit,
    index_prefix,
    index_row,
    place_after,
)

__all__ = ["LocalCopies", "OpenState", "StateCopies", "decoded", "range_of"]

_PAGE = 256
_POLL_S = 5.0
_CHANGES = 500
# A subscriber gets an error for a partition that nobody serves.
_GIVE_UP_S = 60.0
_BACKOFF = Backoff(first_s=0.02, limit_s=0.5)

_reads = msgspec.msgpack.Decoder(RawRead)
_counts = msgspec.msgpack.Decoder(int)
_pages = msgspec.msgpack.Decoder(RawPage)
_changes = msgspec.msgpack.Decoder(ChangesPage)


class LocalCopies(Protocol):
    """The copies that this process has itself."""

    async def answer(self, group: str, partition: int, payload: bytes) -> bytes | None:
        """Return the answer of this node's own copy; None if it has none that can give it."""
        ...

    def read_at_once(self, group: str, partition: int, state: str, key: bytes) -> CommittedValue | None:
        """Return a value that this node owns; None if it owns none, or has to wait for something."""
        ...


class OpenState(NamedTuple):
    """A state whose codecs are ready."""

    spec: StateSpec[Any, Any]
    keys: OrderedKeys[Any]
    values: ValueCodec[Any]
    deltas: ValueCodec[Any] | None


class StateCopies:
    """Asks the copies of one keyspace. `local` are those of this process."""

    def __init__(self, route: KeyspaceRoute, local: LocalCopies | None) -> None:
        self._route = route
        self._local = local

    async def get(self, routing: bytes, asked: GetValue, *, is_stale_fine: bool, timeout_s: float | None) -> RawRead:
        """Read one key; if that is fine, from a copy that may be behind."""
        payload = encode(asked)
        if is_stale_fine and self._local is not None:
            answer = await self._local.answer(self._route.group, self._route.partition(routing), payload)
            if answer is not None:
                return _reads.decode(answer)
        return _reads.decode(await self._route.ask(routing, payload, is_read=True, timeout_s=timeout_s))

    def read_at_once(self, group: str, partition: int, state: str, key: bytes) -> CommittedValue | None:
        """Return a value that this process owns; None if it owns none, or has to wait for something."""
        return None if self._local is None else self._local.read_at_once(group, partition, state, key)

    async def page(
        self,
        opened: OpenState,
        partition: int,
        start: bytes,
        end: bytes | None,
        after: Any,  # noqa: ANN401
        limit: int,
        *,
        group: str,
    ) -> StatePage[Any, Any]:
        """Return a page of a partition's keys, after a key. Raises NotPartitionOwner if the group is not served."""
        page, items = await self.raw_page(opened, partition, start, end, after, limit, group=group)
        return StatePage(items, items[-1][0] if page.has_more else None)

    async def raw_page(
        self,
        opened: OpenState,
        partition: int,
        start: bytes,
        end: bytes | None,
        after: Any,  # noqa: ANN401
        limit: int,
        *,
        group: str,
    ) -> tuple[RawPage, list[tuple[Any, Any]]]:
        """Return a page as the copy gave it, and its pairs decoded."""
        check_limit(limit)
        if after is not None:
            start = max(start, opened.keys.encode(after) + b"\x00")
        asked = ReadPage(opened.spec.name, start, end, limit)
        page = _pages.decode(await self._route.ask_partition(group, partition, encode(asked), is_read=True))
        return page, [(opened.keys.decode(key), await decoded(opened.values, data)) for key, data in page.items]

    async def follow(
        self,
        opened: OpenState,
        partition: Callable[[], int],
        data: bytes | None,
        key: Any,  # noqa: ANN401
        after: int | str | None,
        heartbeat_s: float | None,
        token: str | None = None,
    ) -> AsyncIterator[StateChange[Any, Any]]:
        """Yield the changes of a key, or of a whole partition, wherever it is served. Raises SubscriptionEnded."""
        check_heartbeat(heartbeat_s)
        topic_id, offset = place_after(after)
        wait_s = min(heartbeat_s or _POLL_S, _POLL_S)
        failures, loop = 0, asyncio.get_running_loop()
        heard_s = loop.time()
        while True:
            asked = PollChanges(opened.spec.name, data, offset, topic_id, wait_s, _CHANGES, token)
            try:
                page = await self._poll(partition(), asked)
                failures, heard_s = 0, loop.time()
            except (Unavailable, NotPartitionOwner) as error:
                if loop.time() - heard_s > _GIVE_UP_S:
                    raise SubscriptionEnded(opened.spec.name, offset, str(error)) from error
                failures += 1
                await asyncio.sleep(_BACKOFF.delay_s(failures))
                continue
            for item in page.items:
                resume = f"{page.topic_id}:{item.offset}"
                changed = key if item.key is None or data is not None else opened.keys.decode(item.key)
                value = await decoded(opened.values, item.value)
                delta = None if opened.deltas is None else await decoded(opened.deltas, item.delta)
                yield StateChange(
                    changed,
                    value,
                    item.offset,
                    resume,
                    item.timestamp_ms,
                    delta,
                    item.is_expiry,
                    item.is_present,
                    item.is_lagged,
                )
            topic_id, offset = page.topic_id, page.offset
            token = token if offset is None else None  # an offset says as much: the copy must have come to it
            if not page.items and page.offset is not None and heartbeat_s is not None:
                resume = f"{page.topic_id}:{page.offset}"
                yield StateChange(None, None, page.offset, resume, is_heartbeat=True, age_ms=page.age_ms)

    async def find(self, opened: OpenState, index: str, value: Any, limit: int) -> list[Any]:  # noqa: ANN401
        """Return up to `limit` pairs that an index has under a value, of all partitions, in the order of their keys."""
        if not isinstance(index, str) or index not in opened.spec.indexes:
            raise BadArgument("index", index, f"the state has {sorted(opened.spec.indexes)}")
        check_limit(limit)
        prefix = index_prefix(index_row(index, value))
        asked = FindByIndex(opened.spec.name, prefix, prefix, limit)
        gathered = await self._route.scatter(encode(asked))
        pages = [_pages.decode(data) for data in gathered.all().values()]
        found = sorted(itertools.chain.from_iterable(page.items for page in pages))[:limit]
        return [(opened.keys.decode(key), await decoded(opened.values, data)) for key, data in found]

    async def count(self, opened: OpenState) -> int:
        """Return how many keys have a value, in all partitions."""
        gathered = await self._route.scatter(encode(CountKeys(opened.spec.name)))
        return sum(_counts.decode(data) for data in gathered.all().values())

    def collection(self, opened: OpenState, prefix: Any, start: Any, end: Any) -> CollectionSource:  # noqa: ANN401
        """Return what a collection is made from: the pages and the changes of all partitions that it lies in."""
        wanted, routing = range_of(opened.keys, prefix, start, end)

        def partitions() -> tuple[int, ...]:
            return tuple(range(self._route.partitions)) if routing is None else (self._route.partition(routing),)

        async def page(partition: int, last: Any) -> RangePage:  # noqa: ANN401
            group = self._route.group
            raw, items = await self.raw_page(opened, partition, wanted.start, wanted.end, last, _PAGE, group=group)
            return RangePage(items, items[-1][0] if raw.has_more else None, -1 if raw.offset is None else raw.offset)

        def changes(
            partition: int, last: str | None, heartbeat_s: float | None
        ) -> AsyncIterator[StateChange[Any, Any]]:
            return self.follow(opened, lambda: partition, None, None, last, heartbeat_s)

        return CollectionSource(
            lambda: self._route.group, partitions, page, changes, lambda key: wanted.holds(opened.keys.encode(key))
        )

    async def _poll(self, partition: int, asked: PollChanges) -> ChangesPage:
        payload, group = encode(asked), self._route.group
        if self._local is not None:
            answer = await self._local.answer(group, partition, payload)
            if answer is not None:
                return _changes.decode(answer)
        timeout_s = asked.wait_s + 10.0
        reply = await self._route.ask_partition(group, partition, payload, is_read=True, timeout_s=timeout_s)
        return _changes.decode(reply)


async def decoded(codec: ValueCodec[Any], data: bytes | None) -> Any:  # noqa: ANN401
    """Return the value of some bytes, after the codec has got ready for them; None for None."""
    if data is None:
        return None
    await codec.prepare(data)
    return codec.decode(data)


def range_of(keys: OrderedKeys[Any], prefix: Any, start: Any, end: Any) -> tuple[KeyRange, bytes | None]:  # noqa: ANN401
    """Return the keys of a collection, and what decides their partition: None if they may lie in all."""
    is_all = prefix is None or prefix == () or (not keys.is_compound and prefix in ("", b""))
    first, last = (b"", None) if is_all else keys.prefix_range(prefix)
    wanted = KeyRange(first, last).narrowed(
        None if start is None else keys.bound(start), None if end is None else keys.bound(end)
    )
    if is_all or not keys.is_compound:
        return wanted, None
    part = prefix[0] if isinstance(prefix, tuple) else prefix
    return wanted, OrderedKeys(type(part)).routing_bytes(part)
