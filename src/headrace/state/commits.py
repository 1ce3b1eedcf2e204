"""Commits of a partition's owner: units of work that wait for a transaction share the next one.

The order of things: records to the log, commit, apply with the checkpoint, publish, answer. Nothing is applied
that was not committed. After a commit whose outcome is unknown nothing more is written or read here before the
changelogs were read again to their end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence

from headrace.errors import (
    Fenced,
    HeadraceError,
    NotPartitionOwner,
    OperationFailed,
    RecordTooLarge,
    Refused,
    StateConflict,
    StateOffline,
    StateReadOnly,
)
from headrace.log import TransactionalProducer, transaction
from headrace.model import NewRecord, Position, size_of
from headrace.runtime import BootMoment, Clock, crash_point, moment_of
from headrace.state import metrics
from headrace.state.arguments import check_staleness
from headrace.state.changelog import StateWrite, new_record
from headrace.state.claims import ClaimHolder, ClaimPlace, KeyClaims
from headrace.state.ports import ChangelogWriter
from headrace.state.replica import StartOver, StateReplica
from headrace.state.table import StateEntry
from headrace.state.unique_values import check_unique, expire_holders, unique_rows
from headrace.state.unit_of_work import UnitOfWork

__all__ = ["CommitQueue", "ProducerWriter"]

# The owner adds the name of the batch to each record.
_BATCH_HEADER_BYTES = 64
_MAX_GROUP = 1000
_MAX_GROUP_BYTES = 4 * 1024 * 1024


class ProducerWriter:
    """A `ChangelogWriter` over a transactional producer, for a program that needs no cluster.

    Whoever takes the producer's id next fences this one; take it before the changelogs are read.
    """

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write the records in one transaction."""
        async with transaction(self._producer) as opened:
            await opened.append(*records)
        return opened.positions


class _Submitted(ClaimHolder):
    """A unit of work on its way: its records, and the keys that they change. `done` is its caller's, who may give up.

    `size_bytes` is what it takes of a transaction.
    """

    def __init__(
        self,
        records: list[tuple[StateReplica, NewRecord]],
        others: Sequence[NewRecord],
        claims: Collection[object],
        size_bytes: int,
        done: asyncio.Future[None],
    ) -> None:
        self.records = records
        self.others = others
        self.claims = claims
        self.size_bytes = size_bytes
        self.done = done


class CommitQueue:
    """Serializes the commits of one partition. Without a writer the partition is read only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writer: ChangelogWriter | None = None
        self._why_not = "this process is not the owner of the partition; send it to the owner"
        self._waiting: list[_Submitted] = []
        self._claims = KeyClaims()
        self._running: asyncio.Task[None] | None = None
        self._unsettled: HeadraceError | None = None
        self._stamps: dict[StateReplica, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def unsettled(self) -> HeadraceError | None:
        """The error that left open what was committed, or left something committed and not applied."""
        return self._unsettled

    @property
    def is_committing(self) -> bool:
        """True while something is on its way to the log, or committed and not applied yet."""
        return self._running is not None

    def own(self, writer: ChangelogWriter) -> None:
        """Begin to write. The copies have read everything that the former owner wrote."""
        self._writer = writer
        self._stamps.clear()

    async def disown(self, why: str) -> None:
        """Stop writing; what is being committed is waited for.

        A commit whose outcome is unknown matters no more: a standby shows what it has read, and how old that is.
        """
        self._writer, self._why_not = None, why
        await self.finish()
        self._unsettled = None

    async def finish(self) -> None:
        """Wait for what is being committed."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def suspend(self, replica: StateReplica) -> None:
        """Take no more units while the owner's changelogs are read again: two would apply the same records."""
        if self._writer is not None and self._unsettled is None:
            self._unsettled = StateOffline(replica.spec.name, "its changelog is being read again")

    def settle(self) -> None:
        """Go on after an unknown outcome: the copies have read their changelogs to the end."""
        self._unsettled = None

    def check_readable(self, replica: StateReplica) -> None:
        """Refuse to read what may lack a committed write. Raises StateOffline."""
        if self._unsettled is not None:
            raise StateOffline(replica.spec.name, f"the outcome of a commit is not known ({self._unsettled})")
        if not replica.is_online:
            raise StateOffline(replica.spec.name, f"it has not read {replica.at} to its end yet")

    async def check_fresh(self, replica: StateReplica, *, max_staleness_s: float | None, at_least: int | None) -> None:
        """Refuse a read that wants more than this copy has; it asks the log once before it refuses for its age."""
        self.check_readable(replica)
        if max_staleness_s is None and at_least is None:
            return
        check_staleness(max_staleness_s)
        # The owner is as fresh as its lease, which is looked at before a request comes here.
        bound_s = None if replica.is_owned or max_staleness_s == math.inf else max_staleness_s
        max_age_ms = None if bound_s is None else round(bound_s * 1000)
        age_ms = replica.age_ms
        if max_age_ms is not None and (age_ms is None or age_ms > max_age_ms):
            try:
                await replica.ask()
            except StartOver as error:
                raise StateOffline(replica.spec.name, f"it must be rebuilt: {error}") from error
        replica.check_fresh(max_age_ms=max_age_ms, at_least=at_least)

    def check_writable(self, replica: StateReplica) -> None:
        """Refuse writes that can't be committed. Raises StateReadOnly."""
        if replica.spec.is_external:
            raise StateReadOnly(replica.spec.name, f"topic {replica.spec.topic!r} belongs to others, it is only read")
        if self._writer is None:
            raise StateReadOnly(replica.spec.name, self._why_not)

    def read(self, replica: StateReplica, key: bytes) -> StateEntry | None:
        """Return what is committed under a key."""
        self.check_readable(replica)
        return replica.entry(key)

    def write_at_once(self, replica: StateReplica, key: bytes, write: StateWrite) -> asyncio.Future[None] | None:
        """Put a write that depends on nothing into the next transaction; returns what is done when it is committed.

        None if it has to wait: `submit` does that. The caller has checked that it may write. Raises StateOffline,
        RecordTooLarge.
        """
        self.check_readable(replica)
        claims = ((replica, key),)
        if replica.has_indexes or self._claims.are_awaited(claims):
            return None
        record = new_record(replica.at, key, write, timestamp_ms=self._stamp_of(replica))
        size_bytes = _checked_size(replica, record)
        return self._hand_in(_Submitted([(replica, record)], (), claims, size_bytes, self._new_future())).done

    async def submit(self, unit: UnitOfWork) -> None:
        """Commit a unit of work; returns when it is committed, applied and published."""
        await _check_indexes(unit)
        self._check_usable(unit)
        if _depends_on_others(unit):
            claims = await self._undisturbed(unit)
            # Nothing waits from here to the end: what is checked stays true until it is claimed.
            self._check_unchanged(unit)
            check_unique(unit)
        else:
            claims = _claims_of(unit)
            if self._claims.are_awaited(claims):
                await self._claims.wait_behind(claims)
                self._check_usable(unit)
        # Who gives up waiting does not undo the commit.
        await self._enqueue(unit, claims).done

    async def _undisturbed(self, unit: UnitOfWork) -> Collection[object]:
        """Wait until nobody else writes what a unit has read or writes; returns what that is."""
        place = ClaimPlace()
        try:
            while True:
                expire_holders(unit)
                claims = _claims_of(unit)
                if self._claims.are_free(claims):
                    return claims
                await self._claims.wait_in_line(claims, place)
                self._check_usable(unit)
        finally:
            self._claims.leave(place)

    def _enqueue(self, unit: UnitOfWork, claims: Collection[object]) -> _Submitted:
        """Put a unit into the next transaction that has room for it."""
        records, size_bytes = self._records_of(unit)
        size_bytes += sum(map(size_of, unit.others))
        return self._hand_in(_Submitted(records, unit.others, claims, size_bytes, self._new_future()))

    def _new_future(self) -> asyncio.Future[None]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _hand_in(self, submitted: _Submitted) -> _Submitted:
        self._claims.take(submitted.claims, submitted)
        self._waiting.append(submitted)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="headrace-state-commits")
        return submitted

    def _check_usable(self, unit: UnitOfWork) -> None:
        if unit.others and self._writer is None:
            raise StateReadOnly(unit.others[0].topic, self._why_not)
        for replica in unit.writes:
            self.check_readable(replica)
            self.check_writable(replica)

    def _check_unchanged(self, unit: UnitOfWork) -> None:
        for (replica, key), offset in unit.seen.items():
            entry = replica.entry(key)
            if (-1 if entry is None else entry.offset) != offset:
                raise StateConflict(replica.spec.name, repr(replica.keys.decode(key)))

    def _records_of(self, unit: UnitOfWork) -> tuple[list[tuple[StateReplica, NewRecord]], int]:
        """Return the records, stamped no earlier than anything in their partition, and their size."""
        records, all_bytes = [], 0
        for replica, writes in unit.writes.items():
            stamp_ms = self._stamp_of(replica)
            for key, write in writes.items():
                record = new_record(replica.at, key, write, timestamp_ms=stamp_ms)
                all_bytes += _checked_size(replica, record)
                records.append((replica, record))
        return records, all_bytes

    def _stamp_of(self, replica: StateReplica) -> int:
        """Return the time for the next record: no earlier than anything in its partition."""
        stamp_ms = replica.now_ms
        last_ms = self._stamps.get(replica)
        if last_ms is not None and last_ms >= stamp_ms:
            return last_ms
        self._stamps[replica] = stamp_ms
        return stamp_ms

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                await self._commit_group(group)
        finally:
            self._running = None

    async def _commit_group(self, group: Sequence[_Submitted]) -> None:
        error = await self._commit(group)
        if len(group) > 1 and _is_ones_fault(error):
            for each in group:
                await self._commit_group([each])
            return
        for each in group:
            self._finish(each, error)
        if isinstance(error, asyncio.CancelledError):
            raise error

    def _next_group(self) -> Sequence[_Submitted]:
        """Take the units that waited longest, as many as one transaction should hold, and at least one."""
        size_bytes, count = 0, 0
        for submitted in self._waiting[:_MAX_GROUP]:
            size_bytes += submitted.size_bytes
            if count and size_bytes > _MAX_GROUP_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _finish(self, submitted: _Submitted, error: BaseException | None) -> None:
        self._claims.drop(submitted.claims, submitted)
        if submitted.done.done():
            return  # its caller gave up
        if error is None:
            submitted.done.set_result(None)
        else:
            submitted.done.set_exception(error)
            submitted.done.exception()  # a caller that is gone does not look at it

    async def _commit(self, group: Sequence[_Submitted]) -> BaseException | None:
        """Commit and apply a group; return what went wrong."""
        records = [pair for each in group for pair in each.records]
        others = [record for each in group for record in each.others]
        if self._unsettled is not None or self._writer is None:
            name = records[0][0].spec.name if records else others[0].topic
            return StateOffline(name, str(self._unsettled or self._why_not))
        began = moment_of(self._clock)
        try:
            for replica, record in records:
                if replica.has_indexes:
                    await replica.prepare_commit(record)
            crash_point("state.before-commit")
            positions = await self._writer.commit([*(record for _, record in records), *others])
            crash_point("state.after-commit")
        except HeadraceError as error:
            return self._failed(error)
        except BaseException as error:  # handed to the callers: the outcome of the commit is unknown
            self._unsettled = OperationFailed("committing to a changelog", repr(error), outcome_known=False)
            return error
        metrics.COMMITS.labels("committed").inc()
        return self._apply(records, positions[: len(records)], began)

    def _failed(self, error: HeadraceError) -> HeadraceError:
        is_known = getattr(error, "outcome_known", True)
        metrics.COMMITS.labels("refused" if is_known else "unknown").inc()
        if not is_known or isinstance(error, Fenced):
            self._unsettled = error
        return error

    def _apply(
        self, records: Sequence[tuple[StateReplica, NewRecord]], positions: Sequence[Position], began: BootMoment
    ) -> BaseException | None:
        """Apply to all states in one step, so that no read sees one without the other."""
        landed: dict[StateReplica, list[tuple[NewRecord, Position]]] = {}
        try:
            for (replica, record), position in zip(records, positions, strict=True):
                landed.setdefault(replica, []).append((record, position))
            for replica, pairs in landed.items():
                replica.apply_committed(pairs, began=began)
        except BaseException as error:  # handed to the callers
            # It is committed and not applied: readers must not see the store before it has caught up.
            self._unsettled = OperationFailed("applying what was committed", str(error), outcome_known=False)
            self._unsettled.__cause__ = error
            return self._unsettled if isinstance(error, Exception) else error
        return None


def _is_ones_fault(error: BaseException | None) -> bool:
    """Return True if the log refuses what one unit of a group wants to write: nothing was written of any."""
    return isinstance(error, Refused) and not isinstance(error, Fenced | NotPartitionOwner)


async def _check_indexes(unit: UnitOfWork) -> None:
    """Fetch what it takes to read the values that are to be in indexes, and refuse those that can't be."""
    for replica, writes in unit.writes.items():
        if replica.has_indexes:
            for write in list(writes.values()):
                if write.value is not None:
                    await replica.check_indexes(write.value)


def _depends_on_others(unit: UnitOfWork) -> bool:
    """Return True if what a unit writes is right only as long as nobody else writes what it has looked at."""
    return bool(unit.seen) or any(replica.spec.unique for replica in unit.writes)


def _claims_of(unit: UnitOfWork) -> Collection[object]:
    """Return what a unit depends on and what it changes: keys, and values that must be unique."""
    claims: set[object] = set(unit.seen)
    for replica, writes in unit.writes.items():
        claims.update((replica, key) for key in writes)
        claims.update((replica, row) for _, row, _ in unique_rows(replica, writes))
    return claims


def _checked_size(replica: StateReplica, record: NewRecord) -> int:
    """Return a record's size. Refuse one that the log would refuse: there it would fail the units of others, too."""
    size, limit = size_of(record) + _BATCH_HEADER_BYTES, replica.topic.config.max_record_bytes
    if size > limit:
        raise RecordTooLarge(record.topic, size, limit)
    return size
