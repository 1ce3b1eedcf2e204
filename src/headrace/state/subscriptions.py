"""Subscriptions: every change of a key, or of a partition, in order, with its offset, without holes.

A ring keeps the last changes. It has no holes: it begins again wherever the copy was not whole, and live subscribers
end there and resume. A subscriber that resumes after an offset which the ring does not reach back to gets
the present value with `is_lagged`, because compaction may have removed changes in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from headrace.errors import BadArgument, StateOffline, SubscriptionEnded
from headrace.state.changelog import ChangelogRecord

__all__ = ["ChangeFeed", "Heartbeat", "PresentValue", "RawChange", "Subscription", "SubscriptionItem", "raw_change"]


class RawChange(NamedTuple):
    """A committed change of one key, in bytes. No value: it was deleted, or it expired."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp_ms: int
    delta: bytes | None = None
    is_expiry: bool = False


_raw_change: Callable[[tuple[bytes, bytes | None, int, int, bytes | None, bool]], RawChange]
_raw_change = partial(tuple.__new__, RawChange)


def raw_change(change: ChangelogRecord) -> RawChange:
    """Return a change as subscribers get it."""
    key, offset, timestamp_ms, (value, _, delta, is_expiry) = change
    return _raw_change((key, value, offset, timestamp_ms, delta, is_expiry))


class PresentValue(NamedTuple):
    """Where a subscription stands: the value of its key as of `offset`, from which it can resume.

    It comes first without an offset to resume after, and wherever changes may have been missed (`is_lagged`). A
    subscriber to a whole partition gets no value and reads the partition again.
    """

    value: bytes | None
    offset: int
    is_lagged: bool


class Heartbeat(NamedTuple):
    """Nothing changed: all up to `offset` was published, as of `age_ms` ago."""

    offset: int
    age_ms: int | None


SubscriptionItem: TypeAlias = RawChange | PresentValue | Heartbeat


class FeedSource(NamedTuple):
    """What a feed asks of the copy that it belongs to."""

    name: str
    read: Callable[[bytes], bytes | None]
    age_ms: Callable[[], int | None]


class ChangeFeed:
    """The ring of one copy, and its live subscribers."""

    def __init__(
        self,
        source: FeedSource,
        *,
        max_changes: int = 10_000,
        max_bytes: int = 16 * 1024 * 1024,
        is_followed: bool = True,
    ) -> None:
        self.source = source
        self._is_followed = is_followed
        self._max_changes = max_changes
        self._max_bytes = max_bytes
        self._ring: deque[RawChange] = deque()
        self._bytes = 0
        self._floor: int | None = None
        self._end: int | None = None
        self._published: int | None = None
        self._is_held = False
        self._by_key: dict[bytes | None, set[Subscription]] = {}
        self._moved = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """True while changes are kept back."""
        return self._is_held

    @property
    def is_idle(self) -> bool:
        """True while no changes are kept: the next ones are not, either, because some before them are not known."""
        return self._floor is None or not self._is_followed

    @property
    def last_offset(self) -> int | None:
        """The end of what was published, as the last offset; None while the copy is not whole."""
        return None if self._published is None else self._published - 1

    def advance(self, changes: Iterable[RawChange], complete: int) -> None:
        """Take in the changes up to the complete offset, and publish them."""
        if self.is_idle:
            self._floor = complete
        else:
            self._keep(changes)
        self._end = complete
        if not self._is_held:
            self._publish()

    def restart(self, reason: str) -> None:
        """Drop the ring, because the copy was not whole; live subscribers end and resume."""
        self._ring.clear()
        self._bytes = 0
        self._floor = self._end = self._published = None
        for subscribers in list(self._by_key.values()):
            for each in list(subscribers):
                each.end(reason)

    def hold(self) -> None:
        """Keep changes back: a new owner lets nothing leave before its wait is over."""
        self._is_held = True

    def release(self) -> None:
        """Publish what was kept back, and go on."""
        self._is_held = False
        self._publish()
        for subscribers in self._by_key.values():
            for each in subscribers:
                each.wake()

    def subscribe(
        self,
        key: bytes | None,
        *,
        after: int | None,
        is_lagged: bool = False,
        heartbeat_s: float | None = None,
        max_waiting: int = 1000,
    ) -> Subscription:
        """Return a subscription to a key, or to all keys. It starts with the first item that is asked for.

        `is_lagged` is for a subscriber whose offset means nothing here, because it is of another topic.
        """
        if not self._is_followed:
            raise BadArgument("state", self.source.name, "its changes are not kept; declare it with is_followed=True")
        if after is not None and (not isinstance(after, int) or after < -1):
            raise BadArgument("after", after, "it must be an offset that a change or a present value came with")
        return Subscription(self, key, None if is_lagged else after, is_lagged, heartbeat_s, max_waiting)

    def join(self, subscriber: Subscription) -> None:
        """Let a subscriber have the changes from now on."""
        self._by_key.setdefault(subscriber.key, set()).add(subscriber)

    def leave(self, subscriber: Subscription) -> None:
        """Forget a subscriber."""
        subscribers = self._by_key.get(subscriber.key, set())
        subscribers.discard(subscriber)
        if not subscribers:
            self._by_key.pop(subscriber.key, None)

    def replay(self, key: bytes | None, *, after: int) -> list[RawChange] | None:
        """Return the published changes after an offset; None if the ring does not reach back to it."""
        if self._floor is None or self._published is None or after + 1 < self._floor:
            return None
        return [c for c in self._ring if after < c.offset < self._published and key in (None, c.key)]

    async def wait_past(self, offset: int) -> None:
        """Wait until everything up to the offset was published, and nothing is kept back."""
        while self._published is None or self._published <= offset or self._is_held:
            await self._moved.wait()

    def _keep(self, changes: Iterable[RawChange]) -> None:
        ring, published = self._ring, self._published
        for change in changes:
            ring.append(change)
            key, value, _, _, delta, _ = change
            self._bytes += len(key) + len(value or b"") + len(delta or b"")
        while len(ring) > self._max_changes or self._bytes > self._max_bytes:
            if published is None or ring[0].offset >= published:
                break  # it was not published yet
            key, value, offset, _, delta, _ = ring.popleft()
            self._bytes -= len(key) + len(value or b"") + len(delta or b"")
            self._floor = offset + 1

    def _publish(self) -> None:
        if self._end is None:
            return
        published = self._published if self._published is not None else self._end
        self._published = self._end
        if self._by_key:
            self._push_from(published)
        self._moved.set()
        self._moved = asyncio.Event()

    def _push_from(self, published: int) -> None:
        """Hand what is new in the ring to those who wait for it."""
        news = []
        for change in reversed(self._ring):
            if change.offset < published:
                break
            news.append(change)
        for change in reversed(news):
            for wanted in (change.key, None):
                for each in self._by_key.get(wanted, ()):
                    each.push(change)


class Subscription:
    """An iterator over one key's changes, or over all. Raises SubscriptionEnded where it must be resumed."""

    def __init__(
        self,
        feed: ChangeFeed,
        key: bytes | None,
        after: int | None,
        is_lagged: bool,
        heartbeat_s: float | None,
        max_waiting: int,
    ) -> None:
        self.key = key
        self._feed = feed
        self._after = after
        self._heartbeat_s = heartbeat_s
        self._max_waiting = max_waiting
        self._waiting: deque[RawChange] = deque()
        self._news = asyncio.Event()
        self._ended: str | None = None
        self._has_started = False
        self._is_lagged = is_lagged

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> SubscriptionItem:
        """Return the next item; waits for it."""
        if not self._has_started:
            first = await self._start()
            if first is not None:
                return first
        while True:
            item = self._next_item()
            if item is not None:
                return item
            if not await self._wait_for_news():
                # News may have come in the very moment in which the time was up; a heartbeat would pass over them.
                return self._next_item() or self._heartbeat()

    @property
    def has_more(self) -> bool:
        """True if another item is there without waiting."""
        return bool(self._waiting)

    def push(self, change: RawChange) -> None:
        """Take a change. A subscriber that is too slow loses what waits and gets the present value with `is_lagged`."""
        if len(self._waiting) >= self._max_waiting:
            self._waiting.clear()
            self._is_lagged = True
        if not self._is_lagged:
            self._waiting.append(change)
        self._news.set()

    def wake(self) -> None:
        """Look again whether there is something to hand out."""
        self._news.set()

    def end(self, reason: str) -> None:
        """End the subscription; what was taken before is handed out first."""
        self._ended = reason
        self._feed.leave(self)
        self._news.set()

    def close(self) -> None:
        """Unsubscribe."""
        self._feed.leave(self)

    async def _start(self) -> SubscriptionItem | None:
        """Join the feed; return the present value unless changes can be replayed."""
        await self._feed.wait_past(-1 if self._after is None else self._after)
        self._has_started = True
        self._feed.join(self)
        if self._after is None:
            is_lagged, self._is_lagged = self._is_lagged, False
            return self._present(is_lagged=is_lagged)
        missed = self._feed.replay(self.key, after=self._after)
        if missed is None:
            return self._present(is_lagged=True)
        self._waiting.extend(missed)
        return None

    def _next_item(self) -> SubscriptionItem | None:
        if self._is_lagged and self._ended is None:
            if self._feed.is_held:
                return None
            self._is_lagged = False
            return self._present(is_lagged=True)
        while self._waiting:
            change = self._waiting.popleft()
            if self._after is None or change.offset > self._after:
                self._after = change.offset
                return change
        if self._ended is not None:
            raise SubscriptionEnded(self._feed.source.name, self._after, self._ended)
        return None

    def _present(self, *, is_lagged: bool) -> PresentValue:
        offset = self._feed.last_offset
        if offset is None:
            raise StateOffline(self._feed.source.name, "it is not whole at the moment")
        self._waiting.clear()
        self._after = offset
        value = None if self.key is None else self._feed.source.read(self.key)
        return PresentValue(value, offset, is_lagged)

    async def _wait_for_news(self) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _heartbeat(self) -> Heartbeat:
        offset = self._feed.last_offset
        return Heartbeat(-1 if offset is None else offset, self._feed.source.age_ms())
