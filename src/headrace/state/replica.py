"""One copy of one partition of a state: its store, its place in the changelog, its subscribers.

Every copy follows the same rules, an owner's too: a record counts when it is committed, it is applied together with the
checkpoint, and then it is published. An owner applies what it committed; a standby applies what it reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from reprlib import repr as shown
from typing import Any

import msgspec

from headrace.errors import NotReadable, NotStorable, Refused, StateAhead, StateOffline, StateStale
from headrace.log import Log
from headrace.model import Batch, Bounds, NewRecord, Position, Record, Topic, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, BootMoment, Clock, crash_point, elapsed_ms, error_text, moment_of
from headrace.state import metrics
from headrace.state.changelog import (
    ChangelogRecord,
    batch_header_of,
    is_reserved,
    parse_batch,
    parse_record,
    plain_change,
)
from headrace.state.declaration import StateSpec
from headrace.state.expiry import is_due
from headrace.state.keys import OWNERSHIP_KEY, RESERVED_PREFIX, OrderedKeys
from headrace.state.ports import KeyValueStore, StoredPair
from headrace.state.progress import (
    ChangelogProgress,
    Checkpoint,
    Opening,
    decide_opening,
    decode_checkpoint,
    encode_checkpoint,
    limits_of,
)
from headrace.state.subscriptions import ChangeFeed, FeedSource, raw_change
from headrace.state.table import (
    PLAIN_ROW,
    IndexRow,
    StateEntry,
    data_range,
    decode_entry,
    due_range,
    entry_row,
    find_lasting,
    fold_changes,
    is_plain,
    key_of_due_row,
    key_of_entry_row,
    reserved_row,
)
from headrace.state.values import PlainValues, ValueCodec

__all__ = ["StartOver", "StateReplica"]

# How old a stored checkpoint gets while nothing changes.
_CHECKPOINT_MS = 10_000

_logger = get_logger(__name__)


class StartOver(Exception):
    """The copy can't be trusted any more: it is wiped and read again from the log's start. Never leaves the room."""

    def __init__(self, why: Opening) -> None:
        super().__init__(why.value)
        self.why = why


class StateReplica:
    """A copy of one partition.

    Promises: data and checkpoint change together; what it shows was committed; `complete_offset` and `age_ms` say what
    a read is worth. `on_reserved` gets the records of reserved keys as they are read. A copy that `is_owned` shows a
    value until its tombstone is committed; others hide it when it is due.
    """

    def __init__(
        self,
        spec: StateSpec[Any, Any],
        partition: int,
        *,
        log: Log,
        store: KeyValueStore,
        codec: ValueCodec[Any],
        clock: Clock = SYSTEM_CLOCK,
        on_reserved: Callable[[Record], None] | None = None,
    ) -> None:
        self.spec = spec
        self.at = TopicPartition(spec.topic, partition)
        self.codec = codec
        self.keys: OrderedKeys[Any] = OrderedKeys(spec.key)
        self.has_indexes = bool(spec.indexes)
        self.is_plain = isinstance(codec, PlainValues)
        self._log = log
        self._store = store
        self._clock = clock
        self._on_reserved = on_reserved
        self._progress: ChangelogProgress | None = None
        self.is_online = False  # True once the copy reached the high watermark that it found when it began to read
        self._topic: Topic | None = None
        self._keys = 0
        self._timestamp_ms = 0
        self._stored_since: BootMoment | None = None
        self._reserved: dict[bytes, bytes | None] = {}
        # Rows that the store surely has, and that have no others beside them: it need not be asked.
        self._plain: set[bytes] = set()
        self.last_batch: tuple[int, int] | None = None
        self.owner_offset: int | None = None
        self.is_owned = False
        self._moved = asyncio.Event()
        source = FeedSource(spec.name, self._visible, lambda: self.age_ms)
        self.feed = ChangeFeed(source, is_followed=spec.is_followed)

    # What the copy is worth.

    @property
    def topic(self) -> Topic:
        """The changelog topic, as it was when the copy was opened."""
        if self._topic is None:
            raise StateOffline(self.spec.name, "it was not opened yet")
        return self._topic

    @property
    def progress(self) -> ChangelogProgress:
        """Where the copy stands."""
        if self._progress is None:
            raise StateOffline(self.spec.name, "it is being wiped, or was not opened yet")
        return self._progress

    @property
    def complete_offset(self) -> int | None:
        """The end of what the copy holds whole; None while it is whole at no offset."""
        return None if self._progress is None else self._progress.complete

    @property
    def age_ms(self) -> int | None:
        """How long ago the log was asked for the end that this copy has reached; None if it has not reached one."""
        if self._progress is None or not self._progress.is_whole:
            return None
        return elapsed_ms(self._progress.since, moment_of(self._clock))

    @property
    def last_timestamp_ms(self) -> int:
        """The highest timestamp of the partition."""
        return self._timestamp_ms

    @property
    def now_ms(self) -> int:
        """The partition's time: this machine's clock, unless the partition is ahead of it."""
        return max(self._clock.now_ms(), self._timestamp_ms)

    # Reading the store.

    def entry(self, key: bytes) -> StateEntry | None:
        """Return what is stored under a key, due or not."""
        data = self._store.get(entry_row(key))
        return None if data is None else decode_entry(data)

    def lasting_value(self, key: bytes) -> bytes | None:
        """Return the value of a key that is never due and in no index, as most are; None leaves it to `entry`."""
        return find_lasting(self._store.get, key)

    def reserved(self, key: bytes) -> bytes | None:
        """Return the value of the last record under a reserved key; None if there is none."""
        return self._store.get(reserved_row(key))

    def entries(
        self, start: bytes, end: bytes | None, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, StateEntry]]:
        """Return a page of keys with their entries, due or not."""
        pairs = self._store.scan(*data_range(start, end), limit=limit, reverse=reverse)
        return [(key_of_entry_row(row), decode_entry(data)) for row, data in pairs]

    def rows(self, start: bytes, end: bytes | None, *, limit: int) -> Sequence[StoredPair]:
        """Return a page of rows of an index: each has its key as value."""
        return self._store.scan(start, end, limit=limit)

    def due_keys(self, now_ms: int, *, limit: int) -> list[bytes]:
        """Return keys that are due, the longest due first."""
        return [key_of_due_row(row) for row, _ in self._store.scan(*due_range(now_ms), limit=limit)]

    @property
    def key_count(self) -> int:
        """How many keys are stored, due ones included."""
        return self._keys

    def check_fresh(self, *, max_age_ms: int | None, at_least: int | None) -> None:
        """Refuse a read that wants more than this copy can give. Raises StateOffline, StateStale."""
        if not self.is_online:
            raise StateOffline(self.spec.name, f"it has read {self.at} up to {self.progress.position} only")
        complete, age_ms = self.complete_offset, self.age_ms
        if at_least is not None and (complete is None or complete <= at_least):
            raise StateStale(self.spec.name, f"offset {at_least} is asked for, it is whole below {complete}")
        if max_age_ms is not None and (age_ms is None or age_ms > max_age_ms):
            raise StateStale(self.spec.name, f"{max_age_ms} ms are allowed, it is {age_ms} ms old")

    async def wait_past(self, offset: int) -> None:
        """Wait until the copy is whole past an offset."""
        while self.complete_offset is None or self.complete_offset <= offset:
            await self._moved.wait()

    def _visible(self, key: bytes) -> bytes | None:
        entry = self.entry(key)
        if entry is None or (not self.is_owned and is_due(entry.expires_ms, self.now_ms)):
            return None
        return entry.value

    # Opening, asking, reading.

    async def open(self) -> Opening:
        """Find out whether the store can go on from its checkpoint; wipe it if not. Raises StateAhead."""
        self._topic = await self._log.admin.describe(self.spec.topic)
        checkpoint = self._stored_checkpoint()
        bounds = await self._log.bounds(self.at)
        opening = self._decide(checkpoint, bounds)
        if opening is Opening.AHEAD and checkpoint is not None:
            bounds = await self._log.bounds(self.at)
            opening = self._decide(checkpoint, bounds)
            if opening is Opening.AHEAD:
                raise StateAhead(*self.at, checkpoint.next_offset, bounds.high_watermark)
        if opening is Opening.RESUME and checkpoint is not None:
            self._stand_at(ChangelogProgress.resume(checkpoint, limits=limits_of(self.topic)))
            self._keys, self._timestamp_ms = checkpoint.keys, checkpoint.timestamp_ms
            self.last_batch, self._stored_since = checkpoint.batch, checkpoint.since
            self.owner_offset = checkpoint.owner_offset
        else:
            await self._start_over(opening, bounds)
        return opening

    async def ask(self) -> None:
        """Ask the log for its high watermark: the copy that reaches it is as old as this question.

        Raises StartOver, and StateAhead if the log ends before what this copy has applied of this very topic.
        """
        before = self.progress.position
        for attempt in (1, 2):
            asked = moment_of(self._clock)
            bounds = await self._log.bounds(self.at)
            if bounds.high_watermark >= before:
                break
            if attempt == 2:
                await self.look_at_topic()  # it may be another one by now, which ends elsewhere
                raise StateAhead(*self.at, before, bounds.high_watermark)
        now = moment_of(self._clock)
        self._check_age(now)
        self._move(self.progress.asked(bounds.high_watermark, asked, now), (), is_seamless=True)
        self._keep_checkpoint_young(now)

    async def look_at_topic(self) -> None:
        """Take the topic's settings as they are now. Raises StartOver if it was deleted and made again."""
        topic = await self._log.admin.describe(self.spec.topic)
        if topic.topic_id != self.topic.topic_id:
            raise StartOver(Opening.OTHER_TOPIC)
        self._topic = topic
        self._stand_at(msgspec.structs.replace(self.progress, limits=limits_of(topic)))

    async def take(self, batch: Batch) -> None:
        """Apply a batch that was read. Raises StartOver if it came too late to be trusted."""
        self._check_age(moment_of(self._clock))
        position = self.progress.position
        # What was applied already is not applied again: values would go back in time.
        changes = self._parse([record for record in batch.records if record.offset >= position])
        await self._prepare(changes)
        crash_point("state.before-apply")
        now, before = moment_of(self._clock), self.progress
        progress = before.advanced(max(position, batch.next_offset), now)
        self._apply(changes, progress, is_seamless=before.is_seamless(now))

    async def start_over(self, why: Opening) -> None:
        """Wipe the copy, which is offline meanwhile, and begin at the log's start."""
        self._topic = await self._log.admin.describe(self.spec.topic)
        await self._start_over(why, await self._log.bounds(self.at))

    # The owner's side.

    async def check_indexes(self, value: bytes) -> None:
        """Refuse a value that the indexes can't hold, before it is written. Raises NotStorable, NotReadable."""
        try:
            await self.codec.prepare(value)
            decoded = self.codec.decode(value)
        except _UNREADABLE as error:
            if isinstance(error, Refused):
                raise
            raise NotStorable("the value", shown(value), f"it can't be read back: {error_text(error)}") from error
        self.spec.check_indexes(decoded)

    async def prepare_commit(self, record: NewRecord) -> None:
        """Fetch what applying a record will need, so that applying it does not wait."""
        if self.has_indexes and record.value is not None:
            await self._prepare_value(record.value)

    def apply_committed(self, landed: Sequence[tuple[NewRecord, Position]], *, began: BootMoment) -> None:
        """Apply what the owner committed, in a commit that began then; nothing waits."""
        before, changes = self.progress, list[ChangelogRecord]()
        new = [(record, position) for record, position in landed if position.offset >= before.position]
        for record, position in new:
            changes += self._committed_change(record, position)
        if new:
            progress = before.committed(new[-1][1].offset + 1, began)
            self._apply(changes, progress, is_seamless=before.complete == before.position)

    def confirm(self, moment: BootMoment) -> None:
        """Take note that this process was the owner still at a moment, and so that no other process has written."""
        self._move(self.progress.committed(self.progress.position, moment), (), is_seamless=True)
        self._keep_checkpoint_young(moment)

    # How it is done.

    def _decide(self, checkpoint: Checkpoint | None, bounds: Bounds) -> Opening:
        now = moment_of(self._clock)
        return decide_opening(
            checkpoint,
            topic=self.topic,
            partition=self.at.partition,
            layout=self.spec.layout,
            bounds=bounds,
            now=now,
        )

    def _stored_checkpoint(self) -> Checkpoint | None:
        data = self._store.checkpoint
        if data is None:
            return None
        try:
            return decode_checkpoint(data)
        except NotReadable as error:
            _logger.warning("the checkpoint is corrupt, the state is rebuilt", state=self.spec.name, error=str(error))
            return None

    async def _start_over(self, why: Opening, bounds: Bounds) -> None:
        self._stand_at(None)
        self.feed.restart(f"the copy is rebuilt: {why.value}")
        if self._store.checkpoint is not None or self._store.scan(b"", None, limit=1):
            _logger.warning("a state is rebuilt", state=self.spec.name, at=str(self.at), reason=why.value)
            metrics.REBUILDS.labels(self.spec.topic, why.name.lower()).inc()
            await asyncio.to_thread(self._store.wipe)
        self._keys = self._timestamp_ms = 0
        self._plain.clear()
        self._reserved = {}
        self.last_batch = self._stored_since = self.owner_offset = None
        now = moment_of(self._clock)
        self._stand_at(ChangelogProgress.begin(bounds.start, limits=limits_of(self.topic), now=now))

    def _check_age(self, now: BootMoment) -> None:
        if self.progress.is_too_old(now):
            raise StartOver(Opening.TOO_OLD)

    def _committed_change(self, record: NewRecord, position: Position) -> Sequence[ChangelogRecord]:
        """Return the change that a record of this process stands for; none if it is of a reserved key."""
        key, offset, timestamp_ms = record.key, position.offset, position.timestamp_ms
        if key is None or record.headers or key.startswith(RESERVED_PREFIX):
            return self._parse([Record(*self.at, offset, timestamp_ms, key, record.value, record.headers)])
        if timestamp_ms > self._timestamp_ms:
            self._timestamp_ms = timestamp_ms
        return (plain_change(key, offset, timestamp_ms, record.value),)

    def _parse(self, records: Sequence[Record]) -> list[ChangelogRecord]:
        changes, header = [], None
        for record in records:
            if record.timestamp_ms > self._timestamp_ms:
                self._timestamp_ms = record.timestamp_ms
            named = batch_header_of(record.headers)
            if named != header:  # records of one batch follow one another
                header = named
                self.last_batch = parse_batch(named) or self.last_batch
            change = parse_record(record)
            if change is not None:
                changes.append(change)
            elif record.key is not None and is_reserved(record.key):
                self._reserved[record.key] = record.value
                if record.key == OWNERSHIP_KEY:
                    self.owner_offset = record.offset
                if self._on_reserved is not None:
                    self._on_reserved(record)
        return changes

    async def _prepare(self, changes: Sequence[ChangelogRecord]) -> None:
        if self.has_indexes:
            for change in changes:
                if change.write.value is not None:
                    await self._prepare_value(change.write.value)

    async def _prepare_value(self, value: bytes) -> None:
        try:
            await self.codec.prepare(value)
        except _UNREADABLE:
            return  # counted when it is decoded

    def _index(self, value: bytes) -> list[IndexRow]:
        try:
            return self.spec.index_rows(self.codec.decode(value))
        except Exception as error:  # the application's codec and functions may raise anything
            # One value that can't be read, or that an index fails for, must not stop the others.
            metrics.UNINDEXED.labels(self.spec.topic).inc()
            _logger.warning("a value is in no index", state=self.spec.name, at=str(self.at), error=error_text(error))
            return []

    def _apply(self, changes: Sequence[ChangelogRecord], progress: ChangelogProgress, *, is_seamless: bool) -> None:
        index = self._index if self.has_indexes else None
        folded = fold_changes(changes, self._row_before, default_ttl_ms=self.spec.ttl_ms, index=index)
        keys = self._keys + folded.keys
        reserved, self._reserved = self._reserved, {}
        writes = [*folded.writes, *((reserved_row(key), value) for key, value in reserved.items())]
        plain, self._plain = self._plain, set()  # if the store fails, nobody knows what it has
        self._store.write(writes, checkpoint=encode_checkpoint(self._checkpoint(progress, keys)))
        self._plain = plain if len(plain) < _PLAIN_ROWS else set()
        for row, data in folded.writes:
            self._plain.add(row) if is_plain(row, data) else self._plain.discard(row)
        crash_point("state.after-apply")
        self._keys, self._stored_since = keys, progress.since
        metrics.APPLIED.labels(self.spec.topic).inc(len(changes))
        self._move(progress, folded.changes, is_seamless=is_seamless)

    def _row_before(self, row: bytes) -> bytes | None:
        """Return the row that a change replaces; of one that was written lately, only that it is there."""
        return PLAIN_ROW if row in self._plain else self._store.get(row)

    def _keep_checkpoint_young(self, now: BootMoment) -> None:
        """Store the checkpoint now and then while nothing changes, or a quiet state would be rebuilt at a restart."""
        stored = self._stored_since
        age_ms = None if stored is None else elapsed_ms(stored, now)
        if self.progress.since != stored and (age_ms is None or age_ms >= _CHECKPOINT_MS):
            self._apply((), self.progress, is_seamless=True)

    def _checkpoint(self, progress: ChangelogProgress, keys: int) -> Checkpoint:
        return Checkpoint(
            self.topic.topic_id,
            self.spec.layout,
            progress.position,
            progress.complete,
            progress.since,
            progress.is_whole,
            keys,
            self._timestamp_ms,
            self.last_batch,
            self.owner_offset,
            self.at.partition,
        )

    def _stand_at(self, progress: ChangelogProgress | None) -> None:
        self._progress = progress
        self.is_online = progress is not None and progress.has_caught_up

    def _move(self, progress: ChangelogProgress, changes: Sequence[ChangelogRecord], *, is_seamless: bool) -> None:
        """Take the new place, and publish the changes if none can be missing before or between them."""
        has_gap = not is_seamless or progress.complete != progress.position
        if has_gap and (self._progress is None or self._progress.position != progress.position):
            self.feed.restart("compaction may have removed changes that this copy has not read")
        self._stand_at(progress)
        if progress.complete is not None and progress.complete == progress.position:
            self.feed.advance(map(raw_change, changes), progress.complete)
        self._moved.set()
        self._moved = asyncio.Event()


# How many rows are remembered: what changes again and again is soon among them once more.
_PLAIN_ROWS = 20_000
_UNREADABLE = (Refused, TypeError, ValueError, AttributeError, KeyError, IndexError)
