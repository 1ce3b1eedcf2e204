"""Subscriptions of a client: a queue of changes to read with `async for`, which outlives connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["ApplyDelta", "ClientSubscription", "KeyChange", "KeySubscription"]

T = TypeVar("T")
ApplyDelta = Callable[[Any, Any], Any]


class KeyChange(NamedTuple):
    """A change of a key, or its present value (`is_present`); `is_lagged` if changes before it may be missing."""

    value: Any
    offset: str
    delta: Any = None
    is_present: bool = False
    is_lagged: bool = False
    is_expiry: bool = False


class ClientSubscription(Generic[T]):
    """What subscriptions share: the queue, its end, and the request that asks for them from where they stand."""

    def __init__(self, number: int, request: dict[str, Any], close: Callable[[int], None], *, limit: int) -> None:
        self.number = number
        self.failures = 0
        self._request = request
        self._close = close
        self._limit = limit
        self._waiting: deque[T] = deque()
        self._news = asyncio.Event()
        self._is_ended = False
        self._error: Exception | None = None

    def __aiter__(self) -> ClientSubscription[T]:
        return self

    async def __anext__(self) -> T:
        """Return the next change. Raises what ended the subscription."""
        while not self._waiting and not self._is_ended:
            self._news.clear()
            await self._news.wait()
        if self._waiting:
            return self._waiting.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def close(self) -> None:
        """End the subscription; changes that wait can still be read."""
        self._close(self.number)
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """End it because of an error, which its reader gets, or in order."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._news.set()

    def request(self) -> dict[str, Any]:
        """Return the frame that asks for it, from the place where the last connection ended."""
        return {**self._request, "id": self.number, **self.place()}

    def place(self) -> dict[str, Any]:
        """Return the place to resume after, as it stands in the request."""
        raise NotImplementedError

    def take(self, frame: dict[str, Any]) -> None:
        """Take in a frame of the gateway."""
        raise NotImplementedError

    def disconnected(self) -> None:
        """Forget what only the lost connection could have completed."""

    def put(self, change: T) -> None:
        """Hand a change to the reader; if too many wait, `overflow` says what is kept."""
        self._waiting.append(change)
        if len(self._waiting) > self._limit:
            kept = self.overflow(self._waiting[-1])
            self._waiting.clear()
            self._waiting.append(kept)
        self._news.set()

    def overflow(self, newest: T) -> T:
        """Return what stands for all that waited."""
        raise NotImplementedError


class KeySubscription(ClientSubscription[KeyChange]):
    """The changes of one key. The first one is its present value, unless it was opened with an offset."""

    def __init__(
        self,
        number: int,
        request: dict[str, Any],
        close: Callable[[int], None],
        *,
        after: str | None,
        apply_delta: ApplyDelta | None,
        limit: int,
    ) -> None:
        super().__init__(number, request, close, limit=limit)
        self.offset = after
        self._value: Any = None
        self._apply_delta = apply_delta

    def place(self) -> dict[str, Any]:
        """Return the offset to resume after."""
        return {} if self.offset is None else {"after": self.offset}

    def take(self, frame: dict[str, Any]) -> None:
        """Take a push: its value and its place together, so that the next connection resumes after it."""
        self.failures = 0
        self.offset = frame["offset"]
        delta = frame.get("delta")
        if "delta" not in frame:
            self._value = frame["value"]
        else:
            self._value = None if self._apply_delta is None else self._apply_delta(self._value, delta)
        flags = {name: bool(frame.get(name)) for name in ("is_present", "is_expiry")}
        self.put(KeyChange(self._value, frame["offset"], delta, is_lagged=frame["op"] == "lagged", **flags))

    def overflow(self, newest: KeyChange) -> KeyChange:
        """Return the newest value as the gateway would: marked as lagged, whole, without the delta of its last step."""
        return newest._replace(is_lagged=True, delta=newest.delta if self._apply_delta is None else None)
