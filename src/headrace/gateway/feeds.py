"""The changes of a key, followed once for all sockets on it.

Each subscription begins with a query of its own, so that it starts at the present value, or where its client stopped.
As soon as the shared feed of the key has everything from there on, the subscription moves to the feed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, TypeAlias

from headrace.errors import SubscriptionEnded
from headrace.state import StateChange

__all__ = ["ChangeSource", "KeyFeeds", "TakeChange"]

Change: TypeAlias = StateChange[Any, Any]
ChangeSource: TypeAlias = Callable[[str | None], AsyncIterator[Change]]
TakeChange: TypeAlias = Callable[[Change], None]

_RECENT = 16


class KeyFeeds:
    """The feeds of all keys that sockets are on. A key that nobody is on has none.

    Promises: each subscriber gets every change behind the place where it began, once and in order, or one that is
    marked as lagged.
    """

    def __init__(self) -> None:
        self._feeds: dict[Hashable, _Feed] = {}

    def __len__(self) -> int:
        """Return the number of keys that are followed."""
        return len(self._feeds)

    async def follow(self, key: Hashable, source: ChangeSource, after: str | None, take: TakeChange) -> None:
        """Hand the changes of a key to `take`, until cancelled. Raises what ends the subscription.

        `source` opens a query of the key's changes after a token; without one the present value comes first.
        """
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(source(after))
            subscriber = feed.add(take)
        else:
            feed, subscriber = await self._caught_up(key, source, after, take)
        try:
            await subscriber
        finally:
            feed.remove(subscriber)
            if feed.is_unused:
                if self._feeds.get(key) is feed:
                    del self._feeds[key]
                await feed.close()

    async def _caught_up(
        self, key: Hashable, source: ChangeSource, after: str | None, take: TakeChange
    ) -> tuple[_Feed, asyncio.Future[None]]:
        """Follow the key alone, until its feed has all that comes next."""
        async with contextlib.aclosing(source(after)) as changes:  # type: ignore[type-var]
            async for change in changes:
                if not change.is_heartbeat:
                    take(change)
                feed = self._feeds.get(key)
                if feed is not None and (subscriber := feed.join(take, change)) is not None:
                    return feed, subscriber
        raise SubscriptionEnded(str(key), None, "its source has no more changes")


class _Feed:
    """One query, and those who get its changes.

    `_recent` are the last changes of one topic; nothing of the key that is newer than the offset `_complete_after` is
    missing there. `_ahead` are subscribers that have changes which the feed has yet to see, up to an offset.
    """

    def __init__(self, source: AsyncIterator[Change]) -> None:
        self._subscribers: dict[asyncio.Future[None], TakeChange] = {}
        self._ahead: dict[asyncio.Future[None], int] = {}
        self._recent: deque[Change] = deque()
        self._topic_id = ""
        self._complete_after: int | None = None
        self._running = asyncio.ensure_future(self._run(source))
        self._running.add_done_callback(self._end)

    @property
    def is_unused(self) -> bool:
        """True if nobody gets the changes."""
        return not self._subscribers

    def add(self, take: TakeChange) -> asyncio.Future[None]:
        """Hand all changes to `take`; the future gets what ends the feed."""
        subscriber: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscribers[subscriber] = take
        return subscriber

    def join(self, take: TakeChange, last: Change) -> asyncio.Future[None] | None:
        """Hand the changes behind the last one to `take`; None if some may be missing here."""
        if self._running.done() or self._complete_after is None:
            return None
        if last.token.rpartition(":")[0] != self._topic_id or last.offset < self._complete_after:
            return None
        for change in self._recent:
            if change.offset > last.offset:
                take(change)
        subscriber = self.add(take)
        self._ahead[subscriber] = last.offset
        return subscriber

    def remove(self, subscriber: asyncio.Future[None]) -> None:
        """Hand no more changes to a subscriber."""
        self._subscribers.pop(subscriber, None)
        self._ahead.pop(subscriber, None)

    async def close(self) -> None:
        """End the query."""
        self._running.cancel()
        await asyncio.wait({self._running})

    async def _run(self, source: AsyncIterator[Change]) -> None:
        async with contextlib.aclosing(source) as changes:  # type: ignore[type-var]
            async for change in changes:
                self._take(change)

    def _take(self, change: Change) -> None:
        topic_id = change.token.rpartition(":")[0]
        if self._complete_after is None or change.is_lagged or change.is_present or topic_id != self._topic_id:
            self._recent.clear()
            if topic_id != self._topic_id:
                self._ahead.clear()  # offsets of another topic say nothing
            self._topic_id, self._complete_after = topic_id, change.offset
        if change.is_heartbeat:
            return
        self._recent.append(change)
        if len(self._recent) > _RECENT:
            self._complete_after = self._recent.popleft().offset
        if not self._ahead:
            for take in tuple(self._subscribers.values()):
                take(change)
            return
        for subscriber, take in tuple(self._subscribers.items()):
            if self._is_news(subscriber, change):
                take(change)

    def _is_news(self, subscriber: asyncio.Future[None], change: Change) -> bool:
        """Return False if a subscriber that was ahead of the feed has read the change on its own."""
        if subscriber not in self._ahead:
            return True
        if change.offset <= self._ahead[subscriber]:
            return False
        del self._ahead[subscriber]
        return True

    def _end(self, running: asyncio.Future[None]) -> None:
        if running.cancelled():
            return
        error = running.exception() or SubscriptionEnded("of this key", None, "its source has no more changes")
        for subscriber in self._subscribers:
            if not subscriber.done():
                subscriber.set_exception(error)
