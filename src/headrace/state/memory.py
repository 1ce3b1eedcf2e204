"""A state's store in memory: gone with the process, and then rebuilt from the changelog."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from headrace.errors import BadArgument, Closed
from headrace.state.ports import StoredPair, StoreWrite

__all__ = ["MemoryStore", "open_store"]

# Keys lie in sorted lists of at most this many: an insert moves the keys of one list, not of all.
_RUN = 512


class MemoryStore:
    """A `KeyValueStore` in a dictionary."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys = _SortedKeys()
        self._checkpoint: bytes | None = None
        self._is_closed = False

    @property
    def checkpoint(self) -> bytes | None:
        """The checkpoint of the last batch."""
        self._check_open()
        return self._checkpoint

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        self._check_open()
        return self._values.get(key)

    def write(self, writes: Sequence[StoreWrite], *, checkpoint: bytes) -> None:
        """Apply the writes; nothing here can fail half-way."""
        self._check_open()
        for key, value in writes:
            if value is None:
                if self._values.pop(key, None) is not None:
                    self._keys.remove(key)
            else:
                if key not in self._values:
                    self._keys.add(key)
                self._values[key] = value
        self._checkpoint = checkpoint

    def scan(self, start: bytes, end: bytes | None, *, limit: int, reverse: bool = False) -> Sequence[StoredPair]:
        """Return some pairs."""
        self._check_open()
        found: list[StoredPair] = []
        for key in self._keys.backwards(start, end) if reverse else self._keys.between(start, end):
            if len(found) == limit:
                break
            found.append((key, self._values[key]))
        return found

    def count(self, start: bytes, end: bytes | None) -> int:
        """Count keys."""
        self._check_open()
        return sum(1 for _ in self._keys.between(start, end))

    def wipe(self) -> None:
        """Forget everything."""
        self._check_open()
        self._values, self._keys, self._checkpoint = {}, _SortedKeys(), None

    def close(self) -> None:
        """Give the memory back."""
        self._values, self._keys, self._is_closed = {}, _SortedKeys(), True

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the state's store in memory")


class _SortedKeys:
    """Distinct keys in order."""

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._firsts: list[bytes] = []

    def add(self, key: bytes) -> None:
        if not self._runs:
            self._runs, self._firsts = [[key]], [key]
            return
        at = self._run_of(key)
        run = self._runs[at]
        insort(run, key)
        self._firsts[at] = run[0]
        if len(run) > _RUN:
            half = len(run) // 2
            self._runs[at : at + 1] = [run[:half], run[half:]]
            self._firsts[at : at + 1] = [run[0], run[half]]

    def remove(self, key: bytes) -> None:
        at = self._run_of(key)
        run = self._runs[at]
        del run[bisect_left(run, key)]
        if run:
            self._firsts[at] = run[0]
        else:
            del self._runs[at], self._firsts[at]

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        if not self._runs:
            return
        first = self._run_of(start)
        for at in range(first, len(self._runs)):
            run = self._runs[at]
            for index in range(bisect_left(run, start) if at == first else 0, len(run)):
                if end is not None and run[index] >= end:
                    return
                yield run[index]

    def backwards(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        if not self._runs:
            return
        last = len(self._runs) - 1 if end is None else self._run_of(end)
        for at in range(last, -1, -1):
            run = self._runs[at]
            for index in range((len(run) if end is None else bisect_left(run, end)) - 1, -1, -1):
                if run[index] < start:
                    return
                yield run[index]

    def _run_of(self, key: bytes) -> int:
        """Return the run that holds the key, or would."""
        at = bisect_left(self._firsts, key)
        is_first_of_run = at < len(self._firsts) and self._firsts[at] == key
        return at if is_first_of_run else max(0, at - 1)


async def open_store(address: str) -> MemoryStore:
    """Open `memory:`, an empty store each time."""
    if address != "memory:":
        raise BadArgument("address", address, "a store in memory has no place; write memory:")
    return MemoryStore()
