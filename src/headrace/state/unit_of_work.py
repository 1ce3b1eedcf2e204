"""A unit of work: writes to any states of one partition that become visible together, or not at all."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.errors import StateReadOnly
from headrace.model import NewRecord
from headrace.state.changelog import StateWrite
from headrace.state.expiry import is_due
from headrace.state.keys import after_prefix
from headrace.state.replica import StateReplica
from headrace.state.table import StateEntry

if TYPE_CHECKING:
    from headrace.state.commits import CommitQueue

__all__ = ["UnitOfWork"]

_PAGE = 256
_ALL = 1 << 30
_ABSENT = -1


class UnitOfWork:
    """Reads what is committed and its own writes; nothing is written before `commit`.

    A value that is found due becomes a tombstone of this unit: no read says that it is gone before that is committed.
    Promises: if a key that the unit has read by name changes before the commit, the commit is refused.
    Does not promise that for keys which it saw in scans.
    """

    def __init__(self, queue: CommitQueue) -> None:
        self._queue = queue
        self._writes: dict[StateReplica, dict[bytes, StateWrite]] = {}
        self._seen: dict[tuple[StateReplica, bytes], int] = {}
        self._others: list[NewRecord] = []
        self._is_done = False

    @property
    def writes(self) -> Mapping[StateReplica, Mapping[bytes, StateWrite]]:
        """What will be written, by state and key."""
        return self._writes

    @property
    def others(self) -> Sequence[NewRecord]:
        """Records for other topics, which are written in the same transaction."""
        return self._others

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not self._writes and not self._others

    @property
    def seen(self) -> Mapping[tuple[StateReplica, bytes], int]:
        """The offset that each key had when it was read; -1 for those that were not there."""
        return self._seen

    def expire(self, replica: StateReplica, key: bytes) -> None:
        """Delete a key if it is due and this unit does not write it."""
        entry = replica.entry(key)
        if entry is not None and key not in self._writes.get(replica, {}):
            self._expire(replica, key, entry)

    def get(self, replica: StateReplica, key: bytes) -> bytes | None:
        """Return the value of a key as this unit sees it."""
        own = self._writes.get(replica, {}).get(key)
        if own is not None:
            return own.value
        entry = self._queue.read(replica, key)
        self._seen.setdefault((replica, key), _ABSENT if entry is None else entry.offset)
        if entry is not None and self._expire(replica, key, entry):
            return None
        return None if entry is None else entry.value

    def write(self, replica: StateReplica, key: bytes, write: StateWrite) -> None:
        """Put or delete a key; a second write of it replaces the first. Raises StateReadOnly."""
        if self._is_done:
            raise StateReadOnly(replica.spec.name, "this unit of work was committed already; begin another")
        self._queue.check_writable(replica)
        own = self._writes.setdefault(replica, {})
        if key in own and write.delta is not None:
            write = write._replace(delta=None)  # one increment does not describe two
        own[key] = write

    def add(self, record: NewRecord) -> None:
        """Write a record to a topic that is no changelog of this partition, in the same transaction."""
        self._others.append(record)

    def find(self, replica: StateReplica, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values that stand in an index under this prefix, from row `start` on."""
        end = after_prefix(prefix)
        while rows := replica.rows(start, end, limit=_PAGE):
            for _, key in rows:
                value = self.get(replica, key)
                if value is not None:
                    yield key, value
            start = rows[-1][0] + b"\x00"

    def scan(
        self, replica: StateReplica, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a range, as this unit sees them."""
        self._queue.check_readable(replica)
        own = self._writes.get(replica, {})
        mine = sorted((k for k in own if start <= k and (end is None or k < end)), reverse=reverse)
        written = ((key, own[key].value) for key in mine)
        stored = ((k, e) for k, e in self._stored(replica, start, end, reverse=reverse) if k not in own)
        visible = ((k, e.value) for k, e in stored if not self._expire(replica, k, e))
        for key, value in heapq.merge(written, visible, key=lambda pair: pair[0], reverse=reverse):
            if value is not None:
                yield key, value

    def count(self, replica: StateReplica) -> int:
        """Return how many keys there are, as this unit sees them."""
        self._queue.check_readable(replica)
        due = replica.due_keys(replica.now_ms, limit=_ALL)
        for key in due:
            self.expire(replica, key)
        own = self._writes.get(replica, {})
        changed = sum((write.value is not None) - (replica.entry(key) is not None) for key, write in own.items())
        hidden = 0 if replica.is_owned else len(due)
        return replica.key_count + changed - hidden

    async def commit(self) -> None:
        """Write everything in one transaction, apply it, and publish it.

        Raises StateConflict if a key that was read has changed, NotUnique, RecordTooLarge, and what the writer raises.
        """
        self._is_done = True
        if not self.is_empty:
            await self._queue.submit(self)

    def _stored(
        self, replica: StateReplica, start: bytes, end: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, StateEntry]]:
        while page := replica.entries(start, end, limit=_PAGE, reverse=reverse):
            yield from page
            last = page[-1][0]
            start, end = (start, last) if reverse else (last + b"\x00", end)

    def _expire(self, replica: StateReplica, key: bytes, entry: StateEntry) -> bool:
        """Return True if an entry is due; the owner's unit then deletes it."""
        if not is_due(entry.expires_ms, replica.now_ms):
            return False
        if replica.is_owned:
            self._seen.setdefault((replica, key), entry.offset)
            self._writes.setdefault(replica, {})[key] = StateWrite(None, is_expiry=True)
        return True
