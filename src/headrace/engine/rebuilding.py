"""The state of aggregates made from their journals again, for a state topic that is lost or wrong.

While it is written, nobody else can: the engine is paused, and the partition is taken over as a node would take it. Its
epochs go on far above all that were ever used, also where the state topic, which counts them, is gone. So all batches
from before the rebuild are known to be older than it.

What becomes of command ids: those in a record that can be read stay, and so do those of Appends in the log that are
younger than the engine remembers ids; of the latter the reply is not known. Every other id is forgotten as of the
rebuild: a retry that was first sent before it is refused with CommandTooLate, and never done twice. Timers stay where
the record can be read; a journal does not have them, so with a lost state topic they are gone.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from headrace.cluster import OwnedPartition, PartitionTakeover
from headrace.engine.auditing import JournalEvents, journal_topic_of, stored_values
from headrace.engine.commands import SuccessReply, encode_reply
from headrace.engine.folding import AggregateFold
from headrace.engine.journal_records import command_in
from headrace.engine.models import Engine, EngineLimits
from headrace.engine.records import (
    FORGOTTEN_KEY,
    UNKNOWN_DIGEST,
    AggregateRecord,
    AggregateValues,
    RememberedCommand,
    encode_floor,
    pruned,
    without_oldest,
)
from headrace.errors import NotReadable, RebuildRefused, RecordTooLarge
from headrace.log import Log
from headrace.model import NewRecord, StoredEvent, TopicPartition, partition_of, size_of
from headrace.protocol import Append, decode_action
from headrace.runtime import crash_point
from headrace.state import BatchName, batch_header_of, parse_batch

__all__ = [
    "EngineGroup",
    "PartitionRebuild",
    "RebuildWriter",
    "RebuiltAggregate",
    "command_ids_of",
    "fence_partition",
    "in_batches",
    "rebuild_aggregates",
    "rebuilt_record",
]

_RECORDS_AT_ONCE = 1000
_BYTES_AT_ONCE = 1024 * 1024
# What the owner adds to a record: the header that names its batch.
_BATCH_HEADER_BYTES = 64
_TIMEOUT_S = 60.0


class EngineGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns an engine's partitions: the prefix of their transactional ids, and the cluster's id.

    `lease_s` is how long the rebuild's own leases are.
    """

    prefix: str
    cluster_id: str
    lease_s: float = 0.5


def rebuilt_record(
    fold: AggregateFold[Any],
    state: bytes | None,
    known: AggregateRecord | None,
    in_journal: Sequence[RememberedCommand],
    limits: EngineLimits,
    *,
    forgotten: BatchName,
    now_ms: int,
) -> AggregateRecord:
    """Return the record of an aggregate: its state and version from the journal, and the ids that are known.

    `known` is the record that it has, if that can be read; `in_journal` are ids of its Appends. What is not among them
    counts as forgotten.
    """
    ids = {each.id: each for each in in_journal} | {each.id: each for each in (known.ids if known is not None else ())}
    ordered = tuple(sorted(ids.values(), key=lambda each: each.batch))
    timers = known.timers if known is not None else ()  # a journal does not have them
    return pruned(AggregateRecord(1, fold.version, state, ordered, forgotten, timers), limits, now_ms)


async def command_ids_of(
    log: Log, engine: Engine[Any], partition: int, *, now_ms: int
) -> Mapping[str, Sequence[RememberedCommand]]:
    """Return the command ids of a partition's Appends that the log holds and that are not too old, by aggregate."""
    at = TopicPartition(journal_topic_of(engine), partition)
    oldest_ms = max(1, now_ms - round(engine.limits.command_ids_s * 1000))
    start, bounds = await log.offset_at(at, timestamp_ms=oldest_ms), await log.bounds(at)
    if start is None:
        return {}
    newest: dict[str, deque[RememberedCommand]] = defaultdict(lambda: deque(maxlen=engine.limits.command_ids))
    async for batch in log.read(at, max(start, bounds.start), bounds.high_watermark, headers_only=True):
        for record in batch.records:
            action = decode_action(record)
            if isinstance(action, Append) and action.append_id is not None and record.key is not None:
                name = parse_batch(batch_header_of(record.headers)) or BatchName(0, 0)
                id_ = record.key.decode()
                newest[id_].append(_remembered(id_, action, action.append_id, name, record.timestamp_ms))
    return newest


def _remembered(id_: str, append: Append, command_id: str, batch: BatchName, at_ms: int) -> RememberedCommand:
    """Return what an Append tells of its command: it was done. The command itself may be beside the events."""
    kept = command_in(msgspec.json.decode(append.metadata)) if append.metadata is not None else None
    digest = kept.request(id_).digest if kept is not None else UNKNOWN_DIGEST
    reply = SuccessReply(append.last, None, b"[]", is_kept=False)
    return RememberedCommand(command_id, digest, batch, at_ms, encode_reply(reply))


def _owned(engine: Engine[Any], group: EngineGroup, partition: int) -> OwnedPartition:
    return OwnedPartition(group.prefix, (TopicPartition(engine.state_topic, partition),))


@asynccontextmanager
async def _taken(
    log: Log, engine: Engine[Any], group: EngineGroup, partition: int, *, timeout_s: float
) -> AsyncIterator[PartitionTakeover]:
    """Own a partition while the block runs; it is released at its end, unless the block raises."""
    takeover = PartitionTakeover(
        log,
        _owned(engine, group, partition),
        group.cluster_id,
        name="rebuild",
        waits_for=f"do all nodes know that engine {engine.name!r} is paused?",
        lease_s=group.lease_s,
    )
    try:
        await takeover.take_over(timeout_s=timeout_s)
        yield takeover
        await takeover.release()
    finally:
        await takeover.close()


async def fence_partition(
    log: Log, engine: Engine[Any], group: EngineGroup, partition: int, *, timeout_s: float = _TIMEOUT_S
) -> int:
    """Take a partition from its owner, give it up again, and return the epoch up to which nobody can write any more.

    The epoch is at least the time in seconds: so it is above every one that was ever counted from 1 on, even if the
    topic that knew them is lost.
    """
    async with _taken(log, engine, group, partition, timeout_s=timeout_s) as takeover:
        await takeover.raise_epoch(max(takeover.epoch, int(time.time())), timeout_s=timeout_s)
    return takeover.newest


class RebuiltAggregate(NamedTuple):
    """An aggregate on its way into the state topic: the fold of its journal, and the record that it has."""

    fold: AggregateFold[Any]
    value: bytes | None


class PartitionRebuild:
    """Writes the states of one partition, which was fenced up to an epoch.

    If anybody owned it since, what was read from state topic and journal may be too old, and nothing is written.
    `is_of_all` says that every aggregate is written, and that `RebuildWriter.end` then notes what was forgotten.
    """

    def __init__(
        self,
        log: Log,
        engine: Engine[Any],
        values: AggregateValues,
        group: EngineGroup,
        partition: int,
        *,
        fenced: int,
        max_record_bytes: int,
        is_of_all: bool = False,
    ) -> None:
        self._log = log
        self._engine = engine
        self._values = values
        self._group = group
        self._at = TopicPartition(engine.state_topic, partition)
        self._fenced = fenced
        self._max_record_bytes = max_record_bytes
        self._is_of_all = is_of_all

    @asynccontextmanager
    async def begun(self, *, timeout_s: float = _TIMEOUT_S) -> AsyncIterator[RebuildWriter]:
        """Own the partition while the block runs. Raises RebuildRefused, TimedOut."""
        async with _taken(self._log, self._engine, self._group, self._at.partition, timeout_s=timeout_s) as takeover:
            self.check(takeover)
            now_ms = max(time.time_ns() // 1_000_000, await takeover.last_time_ms())
            ids = await command_ids_of(self._log, self._engine, self._at.partition, now_ms=now_ms)
            yield RebuildWriter(self, takeover, ids, now_ms)

    def check(self, takeover: PartitionTakeover) -> None:
        """Refuse to go on if anybody else has owned the partition since it was fenced. Raises RebuildRefused."""
        if takeover.began != self._fenced + 1:
            reason = f"another node or rebuild has owned {self._at} since the rebuild began"
            raise RebuildRefused(self._engine.name, reason, "see that it stays paused, and run the rebuild again")

    def record(
        self, each: RebuiltAggregate, ids: Sequence[RememberedCommand], forgotten: BatchName, now_ms: int
    ) -> NewRecord:
        """Return what is written for an aggregate; a tombstone if there is nothing to say about it.

        Where only some are rebuilt, the record says at least what was forgotten; its owner sweeps it later.
        """
        made = rebuilt_record(
            each.fold,
            each.fold.encoded(self._values.inner),
            self._known(each.value),
            ids,
            self._engine.limits,
            forgotten=forgotten,
            now_ms=now_ms,
        )
        key = each.fold.aggregate.encode()
        is_empty = made.state is None and made.version == 0 and not made.ids and not made.timers
        if is_empty and self._is_of_all:
            return NewRecord(self._at.topic, key, None, (), self._at.partition, now_ms)
        while True:
            record = NewRecord(self._at.topic, key, self._values.encode(made), (), self._at.partition, now_ms)
            size = size_of(record) + _BATCH_HEADER_BYTES
            if size <= self._max_record_bytes:
                return record
            if not made.ids:
                raise RecordTooLarge(self._at.topic, size, self._max_record_bytes)
            made = without_oldest(made, 1)

    def floor(self, forgotten: BatchName, now_ms: int) -> NewRecord:
        """Return the record that says what aggregates without a record have forgotten."""
        return NewRecord(self._at.topic, FORGOTTEN_KEY, encode_floor(forgotten), (), self._at.partition, now_ms)

    def _known(self, value: bytes | None) -> AggregateRecord | None:
        try:
            return None if value is None else self._values.decode(value)
        except NotReadable:
            return None  # it is what the rebuild replaces


class RebuildWriter:
    """Writes records of a partition that is owned."""

    def __init__(
        self,
        rebuild: PartitionRebuild,
        takeover: PartitionTakeover,
        ids: Mapping[str, Sequence[RememberedCommand]],
        now_ms: int,
    ) -> None:
        self._rebuild = rebuild
        self._takeover = takeover
        self._ids = ids
        self._now_ms = now_ms
        # Above all batches from before the rebuild, and below all that come after it.
        self._forgotten = BatchName(takeover.began, 0)

    def record(self, each: RebuiltAggregate) -> NewRecord:
        """Return the record of an aggregate."""
        return self._rebuild.record(each, self._ids.get(each.fold.aggregate, ()), self._forgotten, self._now_ms)

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Write records in one transaction. Raises NotPartitionOwner, TransactionFailed."""
        self._rebuild.check(self._takeover)
        crash_point("engine.rebuild")
        await self._takeover.commit(records)

    async def end(self) -> None:
        """Note that all aggregates are written: what else there was is forgotten."""
        await self.write([self._rebuild.floor(self._forgotten, self._now_ms)])


def in_batches(records: Iterable[NewRecord]) -> Iterator[list[NewRecord]]:
    """Yield records as one transaction takes them."""
    some: list[NewRecord] = []
    size_bytes = 0
    for record in records:
        some.append(record)
        size_bytes += size_of(record)
        if len(some) == _RECORDS_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


async def rebuild_aggregates(
    log: Log,
    journal: JournalEvents,
    engine: Engine[Any],
    values: AggregateValues,
    group: EngineGroup,
    ids: Iterable[str],
    *,
    max_record_bytes: int,
) -> int:
    """Write the states of some aggregates again, while the engine is paused; returns how many.

    A journal that can't be folded is refused before anything of its partition is written. Raises EventsMissing,
    UpcastFailed, FoldFailed, RebuildRefused.
    """
    wanted: dict[int, list[str]] = defaultdict(list)
    for id_ in dict.fromkeys(ids):
        wanted[partition_of(id_.encode(), engine.partitions)].append(id_)
    for partition, some in sorted(wanted.items()):
        fenced = await fence_partition(log, engine, group, partition)
        stored = await stored_values(log, engine, partition, some)
        folds = [await _folded(engine, id_, events) async for id_, events in journal.read_many(some)]
        rebuild = PartitionRebuild(
            log, engine, values, group, partition, fenced=fenced, max_record_bytes=max_record_bytes
        )
        async with rebuild.begun() as writer:
            records = [writer.record(RebuiltAggregate(fold, stored.get(fold.aggregate))) for fold in folds]
            for batch in in_batches(records):
                await writer.write(batch)
    return sum(map(len, wanted.values()))


async def _folded(engine: Engine[Any], id_: str, events: AsyncIterator[StoredEvent]) -> AggregateFold[Any]:
    fold = AggregateFold(engine, id_)
    async for event in events:
        fold.add(event)
    return fold
