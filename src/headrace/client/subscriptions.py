"""Subscriptions of a client: a queue of changes to read with `async for`, which outlives connections.

One is of a key, or of a collection: pairs that follow the gateway's, and the changes that make them so.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from headrace.errors import Closed

__all__ = [
    "ApplyDelta",
    "ClientSubscription",
    "CollectedChange",
    "CollectionSubscription",
    "KeyChange",
    "KeySubscription",
]

T = TypeVar("T")
ApplyDelta = Callable[[Any, Any], Any]
_NOWHERE = -1


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


class CollectedChange(NamedTuple):
    """A change of one key, that the first snapshot is complete (`ready`), or that changes were skipped (`lagged`)."""

    kind: Literal["change", "ready", "lagged"]
    key: Any = None
    value: Any = None
    delta: Any = None
    is_present: bool = False
    is_expiry: bool = False


class _Pair(NamedTuple):
    key: Any
    value: Any
    partition: int


class CollectionSubscription(ClientSubscription[CollectedChange]):
    """All keys of a state, of a prefix or of a range.

    `entries` is what it holds. Reading it with `async for` gives each change of that, also those that a new snapshot
    shows after a gap. Keys and values are as in the gateway's JSON.
    """

    def __init__(
        self,
        number: int,
        request: dict[str, Any],
        close: Callable[[int], None],
        *,
        apply_delta: ApplyDelta | None,
        limit: int,
    ) -> None:
        super().__init__(number, request, close, limit=limit)
        self._apply_delta = apply_delta
        self._pairs: dict[str, _Pair] = {}
        self._staged: dict[int, dict[str, _Pair]] = {}
        self._places: dict[int, str] = {}
        self._partitions: list[int] = []
        self._has_begun = False  # on this connection
        self._first = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """True when the first snapshot was complete."""
        return self._first.is_set() and not self._is_ended

    async def ready(self) -> CollectionSubscription:
        """Wait until the first snapshot is complete. Raises what ended the collection before."""
        await self._first.wait()
        if self._error is not None:
            raise self._error
        if self._is_ended:
            raise Closed("the collection")
        return self

    def get(self, key: Any) -> Any:  # noqa: ANN401
        """Return the value of a key; None if it has none."""
        pair = self._pairs.get(_name(key))
        return None if pair is None else pair.value

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Yield all pairs."""
        for pair in list(self._pairs.values()):
            yield pair.key, pair.value

    def __len__(self) -> int:
        return len(self._pairs)

    def place(self) -> dict[str, Any]:
        """Return the places to resume after, by partition."""
        return {"after": {str(partition): place for partition, place in self._places.items()}}

    def end(self, error: Exception | None) -> None:
        """End it; callers that wait for the first snapshot get the error."""
        super().end(error)
        self._first.set()

    def disconnected(self) -> None:
        """Forget what was read of snapshots: the next connection begins them again."""
        self._staged.clear()
        self._has_begun = False

    def take(self, frame: dict[str, Any]) -> None:
        """Take in a frame of the collection."""
        self.failures = 0
        match frame["op"]:
            case "begin":
                if self._has_begun or frame["partitions"] != self._partitions:
                    self._places.clear()  # of a resized keyspace every partition is read again
                self._has_begun, self._partitions = True, frame["partitions"]
                self._staged.clear()
            case "reset":
                self._staged[frame["partition"]] = {}
            case "pairs":
                for pair in frame["pairs"]:
                    self._stage(frame["partition"], pair)
            case "ready":
                self._complete(frame["partition"], frame["offset"])
            case "change":
                self._change(frame)

    def overflow(self, newest: CollectedChange) -> CollectedChange:
        """Tell a reader that is too slow to read `entries` again."""
        return CollectedChange("lagged")

    def _stage(self, partition: int, given: dict[str, Any]) -> None:
        staged, name = self._staged[partition], _name(given["key"])
        known = staged.get(name)
        value = self._value_of(given, None if known is None else known.value)
        staged.pop(name, None)
        if value is not None:
            staged[name] = _Pair(given["key"], value, partition)

    def _change(self, frame: dict[str, Any]) -> None:
        partition, key = frame["partition"], frame["key"]
        if partition in self._staged:
            self._stage(partition, frame)
            return
        value = self._value_of(frame, self.get(key))
        self._set(key, value, partition)
        self._places[partition] = frame["offset"]
        self.put(CollectedChange("change", key, value, frame.get("delta"), is_expiry=bool(frame.get("is_expiry"))))

    def _value_of(self, given: dict[str, Any], before: Any) -> Any:  # noqa: ANN401
        if "delta" not in given:
            return given["value"]
        return None if self._apply_delta is None else self._apply_delta(before, given["delta"])

    def _complete(self, partition: int, place: str) -> None:
        """Show what a snapshot holds: only the differences are reported."""
        staged = self._staged.pop(partition)
        self._places[partition] = place
        # Keys of this partition that the snapshot lacks are gone, or lie in another partition since a resize.
        for name, pair in list(self._pairs.items()):
            if pair.partition == partition and name not in staged:
                self._pairs[name] = pair._replace(partition=_NOWHERE)
        for name, pair in staged.items():
            known = self._pairs.get(name)
            self._pairs[name] = pair
            if known is None or known.value != pair.value:
                self.put(CollectedChange("change", pair.key, pair.value, is_present=True))
        if not self._staged and all(each in self._places for each in self._partitions):
            self._settle()

    def _settle(self) -> None:
        """Remove what no partition has, now that all are complete."""
        for name, pair in list(self._pairs.items()):
            if pair.partition not in self._partitions:
                del self._pairs[name]
                self.put(CollectedChange("change", pair.key, None, is_present=True))
        if not self._first.is_set():
            self._first.set()
            self.put(CollectedChange("ready"))

    def _set(self, key: Any, value: Any, partition: int) -> None:  # noqa: ANN401
        if value is None:
            self._pairs.pop(_name(key), None)
        else:
            self._pairs[_name(key)] = _Pair(key, value, partition)


def _name(key: Any) -> str:  # noqa: ANN401
    return json.dumps(list(key) if isinstance(key, tuple) else key)
