"""Collections: all keys of a state, of a prefix or of a range, first as they stand and then as they change.

A partition's snapshot is read in pages while its changes go on. What a page shows may be newer than changes that follow
it, so the snapshot is called ready only when the changes have come to the newest offset that any page was read at: from
then on the collection is the state as of that offset, and never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from headrace.errors import HeadraceError
from headrace.state import StateChange

__all__ = ["CollectionEvent", "CollectionSource", "KeyRange", "RangePage", "follow_collection"]

# While a snapshot waits for the changes to come to its offset, silence is broken this often.
_CATCH_UP_S = 0.05


class CollectionEvent(NamedTuple):
    """One step of a collection.

    `begin` names the partitions that it lies in; what is known of others is to be forgotten. `reset` begins the
    snapshot of a partition, of which all that is known is to be forgotten; `pairs` are parts of it, and `ready` ends
    it: changes that came before are part of it, too. `change` is a change of one key. `token` is the place of the
    partition from which a later subscription resumes.
    """

    kind: Literal["begin", "reset", "pairs", "ready", "change"]
    partition: int = -1
    partitions: tuple[int, ...] = ()
    pairs: Sequence[tuple[Any, Any]] = ()
    change: StateChange[Any, Any] | None = None
    token: str = ""
    is_lagged: bool = False


class KeyRange(NamedTuple):
    """Keys by their bytes, from `start` on and before `end`; no end is None."""

    start: bytes
    end: bytes | None

    def holds(self, key: bytes) -> bool:
        """Return True if the key lies in the range."""
        return self.start <= key and (self.end is None or key < self.end)

    def narrowed(self, start: bytes | None, end: bytes | None) -> KeyRange:
        """Return what of this range lies from `start` on and before `end`."""
        ends = [each for each in (self.end, end) if each is not None]
        return KeyRange(max(self.start, start or b""), min(ends) if ends else None)


class RangePage(NamedTuple):
    """Pairs of a partition, the key to go on after, and the last offset that the copy had."""

    pairs: Sequence[tuple[Any, Any]]
    next_after: Any
    offset: int


class CollectionSource(NamedTuple):
    """What a collection needs of its keyspace.

    `generation` names the layout of partitions, `partitions` are those that the collection lies in now.
    """

    generation: Callable[[], str]
    partitions: Callable[[], tuple[int, ...]]
    page: Callable[[int, Any], Awaitable[RangePage]]
    changes: Callable[[int, str | None, float | None], AsyncIterator[StateChange[Any, Any]]]
    holds: Callable[[Any], bool]


class _Resized(Exception):
    """The keyspace has other partitions now."""


async def follow_collection(source: CollectionSource, after: Mapping[int, str]) -> AsyncIterator[CollectionEvent]:
    """Yield the events of a collection, until the caller has enough. Raises what ends a subscription.

    `after` are places to resume after, by partition. It takes no event ahead of its caller: a slow one makes the
    partitions wait, and gets a new snapshot if it falls too far behind.
    """
    while True:
        generation, partitions = source.generation(), source.partitions()
        yield CollectionEvent("begin", partitions=partitions)
        try:
            followers = [_follow(source, generation, each, after.get(each)) for each in partitions]
            async with contextlib.aclosing(_merged(followers)) as events:
                async for event in events:
                    yield event
        except _Resized:
            after = {}
        except HeadraceError:
            if source.generation() == generation:
                raise
            after = {}


async def _follow(
    source: CollectionSource, generation: str, partition: int, token: str | None
) -> AsyncIterator[CollectionEvent]:
    """Yield the events of one partition: changes, and a snapshot wherever changes may be missing."""
    while True:
        began: StateChange[Any, Any] | None = None
        async with contextlib.aclosing(source.changes(partition, token, None)) as changes:  # type: ignore[type-var]
            async for change in changes:
                _check(source, generation)
                if change.is_present:
                    began = change
                    break
                token = change.token
                if source.holds(change.key):
                    yield CollectionEvent("change", partition, change=change, token=token)
        if began is not None:
            async for event in _snapshot(source, generation, partition, began):
                yield event
                token = event.token


async def _snapshot(
    source: CollectionSource, generation: str, partition: int, began: StateChange[Any, Any]
) -> AsyncIterator[CollectionEvent]:
    """Yield all pairs of a partition, the changes up to the offset that they were read at, and that it is ready."""
    while True:
        yield CollectionEvent("reset", partition, is_lagged=began.is_lagged)
        ready_at = began.offset
        async for page in _pages(source, generation, partition):
            ready_at = max(ready_at, page.offset)
            yield CollectionEvent("pairs", partition, pairs=page.pairs)
        if began.offset >= ready_at:
            yield CollectionEvent("ready", partition, token=began.token)
            return
        async with contextlib.aclosing(source.changes(partition, began.token, _CATCH_UP_S)) as changes:  # type: ignore[type-var]
            async for change in changes:
                _check(source, generation)
                if change.is_present:
                    began = change  # changes were missed meanwhile; all of it is read again
                    break
                if not change.is_heartbeat and source.holds(change.key):
                    yield CollectionEvent("change", partition, change=change, token=change.token)
                if change.offset >= ready_at:
                    yield CollectionEvent("ready", partition, token=change.token)
                    return


async def _pages(source: CollectionSource, generation: str, partition: int) -> AsyncIterator[RangePage]:
    after = None
    while True:
        page = await source.page(partition, after)
        _check(source, generation)
        yield page
        if page.next_after is None:
            return
        after = page.next_after


def _check(source: CollectionSource, generation: str) -> None:
    if source.generation() != generation:
        raise _Resized


async def _merged(sources: Iterable[AsyncIterator[CollectionEvent]]) -> AsyncGenerator[CollectionEvent, None]:
    """Yield what all sources do, as it comes; each waits until its event was taken."""
    pending: dict[asyncio.Future[CollectionEvent], AsyncIterator[CollectionEvent]] = {}
    try:
        for source in sources:
            pending[asyncio.ensure_future(anext(source))] = source
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                source = pending.pop(each)
                event = each.result()
                pending[asyncio.ensure_future(anext(source))] = source
                yield event
    finally:
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
