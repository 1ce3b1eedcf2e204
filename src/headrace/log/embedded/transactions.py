"""Transactions: gathered in memory, written in one piece, fenced by an epoch per transactional id.

The file never holds anything uncommitted, so readers are never held back. Offsets behave as in Kafka all the
same: each partition a transaction touched spends one on its end, and an abort spends those of its records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import BadArgument, Closed, Fenced, Refused, TransactionFailed, TransactionMisused
from headrace.log import checks
from headrace.log.embedded.append import LogWork, PartitionTail, RecordWriter, savepoint
from headrace.log.embedded.groups import EmbeddedMember
from headrace.log.embedded.membership import store_offsets
from headrace.log.metrics import TRANSACTIONS
from headrace.log.ports import Member
from headrace.log.transactions import SerialCalls
from headrace.model import NewRecord, Position, SoundRecords, TopicPartition
from headrace.runtime import Clock, crash_point
from headrace.sqlite import GroupCommit

__all__ = ["EmbeddedTransactions", "take_over"]


@dataclass(slots=True)
class _Open:
    """What the open transaction holds."""

    since_s: float
    records: list[NewRecord] = field(default_factory=list)
    offsets: list[tuple[Member, Mapping[TopicPartition, int]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Check:
    """Refuses early what the commit would refuse."""

    owner: _Owner
    records: Sequence[NewRecord]

    def run(self, db: sqlite3.Connection, writer: RecordWriter) -> None:
        self.owner.check(db)
        writer.refuse(db, self.records)


@dataclass(frozen=True, slots=True)
class _End:
    """Commits or aborts: the same offsets are spent either way."""

    owner: _Owner
    content: _Open
    is_commit: bool

    def run(self, db: sqlite3.Connection, writer: RecordWriter) -> list[Position]:
        self.owner.check(db)
        return self._commit(db, writer) if self.is_commit else self._abort(db, writer)

    def _commit(self, db: sqlite3.Connection, writer: RecordWriter) -> list[Position]:
        if not self.content.offsets:
            return self._write(db, writer)
        # If one member does not own its partitions any more, the whole commit is refused, with all groups' offsets.
        with savepoint(db):
            for member, offsets in self.content.offsets:
                store_offsets(db, member.group, member.member_id, offsets)
            return self._write(db, writer)

    def _write(self, db: sqlite3.Connection, writer: RecordWriter) -> list[Position]:
        checked = writer.check(db, self.content.records)
        crash_point("log.embedded.in-transaction")
        positions = writer.write(checked)
        _spend_end_markers(placed.tail for placed in checked)
        return positions

    def _abort(self, db: sqlite3.Connection, writer: RecordWriter) -> list[Position]:
        try:
            checked = writer.check(db, self.content.records)
        except Refused:
            return []  # a topic was deleted meanwhile: it has no offsets to spend
        for placed in checked:
            placed.tail.next_offset += 1
        _spend_end_markers(placed.tail for placed in checked)
        return []


def _spend_end_markers(tails: Iterable[PartitionTail]) -> None:
    for tail in {tail.id: tail for tail in tails}.values():
        tail.next_offset += 1
        tail.is_changed = True


@dataclass(frozen=True, slots=True)
class _Owner:
    """A transactional id as of one take-over."""

    transactional_id: str
    epoch: int

    def check(self, db: sqlite3.Connection) -> None:
        row = db.execute("SELECT epoch FROM producers WHERE transactional_id = ?", (self.transactional_id,)).fetchone()
        if row is None or row[0] != self.epoch:
            raise Fenced(self.transactional_id)


def take_over(db: sqlite3.Connection, transactional_id: str) -> _Owner:
    """Raise the id's epoch: every earlier owner is fenced from here on."""
    (epoch,) = db.execute(
        "INSERT INTO producers VALUES (?, 1) ON CONFLICT (transactional_id) DO UPDATE SET epoch = epoch + 1"
        " RETURNING epoch",
        (transactional_id,),
    ).fetchone()
    return _Owner(transactional_id, epoch)


class EmbeddedTransactions:
    """The embedded log's TransactionalProducer."""

    def __init__(self, commits: GroupCommit[LogWork], clock: Clock, owner: _Owner, timeout_s: float) -> None:
        self.transactional_id = owner.transactional_id
        self._commits = commits
        self._clock = clock
        self._owner = owner
        self._timeout_s = timeout_s
        self._open: _Open | None = None
        self._is_closed = False
        self._calls = SerialCalls()

    async def begin(self) -> None:
        """Open a transaction. A take-over that is not known yet shows at the first append or the commit."""
        if self._calls.is_idle:
            self._begin_now()
        else:
            await self._calls.run(self._begin)

    async def append(self, records: Sequence[NewRecord]) -> None:
        """Add records. SoundRecords are not looked at before the commit, which saves a change of threads."""
        checked = checks.check_records(records)
        if type(checked) is SoundRecords and self._calls.is_idle:
            self._current("append").records.extend(checked)
        else:
            await self._calls.run(self._append, checked)

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets along."""
        await self._calls.run(self._commit_offsets, member, checks.check_offsets(offsets))

    async def commit(self) -> Sequence[Position]:
        """Write the whole transaction at once."""
        return await self._calls.run(self._commit)

    async def abort(self) -> None:
        """Abort the transaction."""
        await self._calls.run(self._abort)

    async def close(self) -> None:
        """Abort what is open; further use is refused."""
        await self._calls.run(self._close)

    async def _begin(self) -> None:
        self._begin_now()

    def _begin_now(self) -> None:
        if self._is_closed:
            raise Closed(f"transactional producer {self.transactional_id!r}")
        if self._open is not None:
            raise TransactionMisused(self.transactional_id, "one is open already; commit or abort it first")
        self._open = _Open(self._clock.monotonic_s())

    async def _append(self, records: Sequence[NewRecord]) -> None:
        content = self._current("append")
        await self._commits.submit(_Check(self._owner, records))
        content.records.extend(records)

    async def _commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        if not isinstance(member, EmbeddedMember):
            raise BadArgument("member", member, "it must be a member of a group of this log")
        self._current("commit offsets").offsets.append((member, offsets))

    async def _commit(self) -> Sequence[Position]:
        content = self._current("commit")
        self._open = None
        if self._clock.monotonic_s() - content.since_s > self._timeout_s:
            await self._end(content, is_commit=False)
            reason = f"it was open for longer than {self._timeout_s:g} s and was aborted"
            raise TransactionFailed(self.transactional_id, reason)
        return await self._end(content, is_commit=True)

    async def _abort(self) -> None:
        content = self._current("abort")
        self._open = None
        await self._end(content, is_commit=False)

    async def _close(self) -> None:
        self._is_closed = True
        if self._open is not None:
            try:
                await self._abort()
            except Fenced:
                return  # the new owner's take-over has aborted it already

    def _current(self, call: str) -> _Open:
        if self._open is None:
            if self._is_closed:
                raise Closed(f"transactional producer {self.transactional_id!r}")
            raise TransactionMisused(self.transactional_id, f"{call} without begin; begin first")
        return self._open

    async def _end(self, content: _Open, *, is_commit: bool) -> Sequence[Position]:
        positions: Sequence[Position] = await self._commits.submit(_End(self._owner, content, is_commit))
        TRANSACTIONS.labels("embedded", "committed" if is_commit else "aborted").inc()
        return positions
