"""Records of a topic as input of a keyspace, exactly once each: the owner of a partition reads the topic's partition.

How far it has read is a value of the hidden state `inputs`, written in the transaction of what the handlers wrote. So
whoever owns the partition next goes on right there, and group offsets have no say.

An owner that finds records waiting counts itself in that value before it begins. So a record that ends its process is
found: after three owners it is passed, if records may be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from headrace.errors import (
    HeadraceError,
    InputRecordsLost,
    Misconfigured,
    NotPartitionOwner,
    OperationFailed,
    StateConflict,
    StateOffline,
    Unavailable,
    WrongPartitionCount,
)
from headrace.keyspace.calls import CallRunner
from headrace.keyspace.context import Context
from headrace.keyspace.declaration import InputSpec, KeyspaceSpec
from headrace.log import Log, ensure_topic
from headrace.model import Bounds, Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import counter, get_logger
from headrace.runtime import OWNERS_TRIED, Backoff, error_text, is_suspect, is_tried_alone, suspect_text
from headrace.serde import Registry
from headrace.state import BytesValues, StatePartition, StateSpec, StateWrite, UnitOfWork, ValueCodec, codec_of

__all__ = ["INPUTS", "InputPump", "inputs_spec"]

HANDLED = counter("keyspace", "input_records", "Records of input topics, by what became of them.", ["topic", "outcome"])

INPUTS = "inputs"
"""The state in which a keyspace keeps how far it has read its input topics."""

_BATCH = 200
_ATTEMPTS = 3
_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)
# Before a record that ends its process and must not be passed is tried once more: a mistake in a handler is corrected
# by new code, and until then it must not end one node after the other.
_SUSPECT_PAUSE = Backoff(first_s=30.0, limit_s=300.0)

_logger = get_logger(__name__)

CommitUnit: TypeAlias = Callable[[UnitOfWork], Awaitable[None]]


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Where to read on. `owners` have begun right there and did not get past it."""

    topic_id: str
    next_offset: int
    owners: int = 0


_places = msgspec.msgpack.Decoder(_Place)


def inputs_spec(keyspace: str, *, partitions: int) -> StateSpec[Any, Any]:
    """Return the state of the places in input topics: by topic."""
    return StateSpec(name=INPUTS, topic=f"{keyspace}-{INPUTS}", key=str, value=BytesValues(), partitions=partitions)


class InputPump:
    """Reads one partition of an input topic and runs its handler, while this node owns the keyspace's partition."""

    def __init__(
        self,
        spec: KeyspaceSpec,
        handler: InputSpec,
        states: StatePartition,
        runner: CallRunner,
        log: Log,
        registry: Registry | None,
        commit: CommitUnit,
    ) -> None:
        self._keyspace = spec.name
        self._handler = handler
        self._states = states
        self._runner = runner
        self._log = log
        self._registry = registry
        self._commit = commit
        self._replica = states.replica(INPUTS)
        self._at = TopicPartition(handler.topic, states.partition)
        self._dead_letters = f"{handler.topic}.dead-letters"
        self._topic_id = ""
        self._codec: ValueCodec[Any] | None = None
        self._failed_at: tuple[int, int] = (-1, 0)
        self._handled = 0
        self._waiting_below: int | None = None
        self._is_counted = False
        self._begun = _Place("", 0)
        self._owners = 0
        self._alone = 0

    async def run(self) -> None:
        """Read on until cancelled; what fails is tried again after a pause."""
        failures = 0
        while True:
            before = self._handled
            try:
                await self._open()
                await self._read_on()
            except NotPartitionOwner:
                return
            except Exception as error:  # whatever the application raises must not end the partition
                failures = failures + 1 if self._handled == before else 1
                delay_s = _BACKOFF.delay_s(failures)
                tell = _logger.error if isinstance(error, Misconfigured) else _logger.warning
                tell(
                    "an input stops for a while",
                    keyspace=self._keyspace,
                    at=str(self._at),
                    error=error_text(error),
                    retry_in_s=delay_s,
                )
                HANDLED.labels(self._at.topic, "failed").inc()
                await asyncio.sleep(delay_s)

    async def _open(self) -> None:
        topic = await self._log.admin.describe(self._at.topic)
        if topic.partitions != self._replica.topic.partitions:
            raise WrongPartitionCount(self._at.topic, topic.partitions, self._replica.topic.partitions)
        self._topic_id = topic.topic_id
        if self._handler.on_error == "dead-letter":
            config = TopicConfig(cleanup=Cleanup.DELETE)
            await ensure_topic(self._log.admin, self._dead_letters, partitions=topic.partitions, config=config)
        if self._codec is None and self._handler.value is not Record:
            self._codec = await codec_of(self._handler.value, self._at.topic, self._registry)

    async def _read_on(self) -> None:
        batches = self._log.read(self._at, await self._start(), max_records=_BATCH)
        async with contextlib.aclosing(batches):  # type: ignore[type-var]
            async for batch in batches:
                if batch.records:
                    await self._handle(batch.records)

    async def _start(self) -> int:
        """Return where to go on: where the last transaction ended, unless the topic is another one now."""
        bounds = await self._log.bounds(self._at)
        if self._waiting_below is None:
            self._waiting_below = bounds.end
        self._begun, is_written = self._place(bounds)
        if is_written:
            # Whoever owns the partition next goes on here, also if nothing is handled before.
            await self._write(self._begun)
        return self._begun.next_offset

    def _place(self, bounds: Bounds) -> tuple[_Place, bool]:
        """Return the place to go on from, and True if it is to be written before a record leads to it.

        Raises InputRecordsLost if the topic ends before the place: new records would be taken for those that were read.
        """
        data = self._states.begin().get(self._replica, self._key)
        if data is None:
            is_latest = self._handler.start == "latest"
            return _Place(self._topic_id, bounds.end if is_latest else bounds.start), is_latest
        place = _places.decode(data)
        if place.topic_id != self._topic_id:
            _logger.warning("an input topic was made again", keyspace=self._keyspace, at=str(self._at))
            return _Place(self._topic_id, bounds.start), False
        if place.next_offset > bounds.high_watermark:
            raise InputRecordsLost(*self._at, bounds.high_watermark, place.next_offset - 1)
        if place.next_offset >= bounds.start:
            return place, False
        removed = bounds.start - place.next_offset
        _logger.error(
            "records were removed before they were read", keyspace=self._keyspace, at=str(self._at), offsets=removed
        )
        HANDLED.labels(self._at.topic, "lost").inc(removed)
        return _Place(self._topic_id, bounds.start), True

    async def _write(self, place: _Place) -> None:
        """Write a place that no record leads to."""
        unit = self._states.begin()
        unit.write(self._replica, self._key, StateWrite(msgspec.msgpack.encode(place)))
        await self._commit(unit)

    # Records that end their process.

    async def _count_owner(self, record: Record) -> None:
        """Write down that an owner begins with a record that waited for it, once, before it does."""
        if self._is_counted or record.offset >= (self._waiting_below or 0):
            self._is_counted = True
            return
        self._is_counted = True  # also if the answer to the commit is lost: an owner counts once
        self._owners = self._begun.owners + 1
        self._alone = _BATCH if is_tried_alone(self._owners) else 0
        try:
            await self._write(msgspec.structs.replace(self._begun, owners=self._owners))
        except HeadraceError as error:
            self._is_counted = not getattr(error, "outcome_known", True)
            raise

    async def _count_no_more(self) -> None:
        """Set the count back: the handler of the first record has failed, so it does not end its process."""
        if self._owners:
            self._owners = 0
            await self._write(msgspec.structs.replace(self._begun, owners=0))

    async def _look_at_suspect(self, record: Record) -> bool:
        """Pass a record that has ended its process at three owners; True if it was. One that must not be passed waits.

        The place still has the count while it waits, and when it is tried.
        """
        if not is_suspect(self._owners):
            return False
        owners = self._owners - 1
        error = OperationFailed(f"handling {self._at} at offset {record.offset}", suspect_text(owners))
        if self._handler.on_error != "stop":
            await self._pass(record, error)
            return True
        pause_s = _SUSPECT_PAUSE.delay_s(owners - OWNERS_TRIED + 1)
        _logger.error(
            "an input waits before a record that ends its process",
            keyspace=self._keyspace,
            at=str(self._at),
            offset=record.offset,
            owners=owners,
            retry_in_s=pause_s,
            next_step='correct its handler, or let it be passed with on_error="dead-letter"',
        )
        HANDLED.labels(self._at.topic, "failed").inc()
        await asyncio.sleep(pause_s)
        self._owners = 1  # this owner waits once
        return False

    @property
    def _key(self) -> bytes:
        return self._replica.keys.encode(self._at.topic)

    async def _handle(self, records: Sequence[Record]) -> None:
        """Handle records in one transaction; if that fails, or one of them ends its process, each in one of its own."""
        await self._count_owner(records[0])
        if await self._look_at_suspect(records[0]):
            records = records[1:]
        if len(records) > 1 and self._alone <= 0:
            unit = self._states.begin()
            try:
                contexts = [await self._run(record, unit) for record in records]
                await self._finish(unit, records[-1], contexts)
            except NotPartitionOwner:
                raise
            except Exception as error:  # the single records tell which one it is
                if isinstance(error, HeadraceError) and not getattr(error, "outcome_known", True):
                    raise
            else:
                HANDLED.labels(self._at.topic, "handled").inc(len(records))
                return
        for record in records:
            await self._handle_one(record)
            self._alone -= 1

    async def _handle_one(self, record: Record) -> None:
        while True:
            async with self._runner.hold(record.key or b""):
                unit, is_handled = self._states.begin(), False
                try:
                    context = await self._run(record, unit)
                    is_handled = True
                    await self._finish(unit, record, [context])
                    HANDLED.labels(self._at.topic, "handled").inc()
                    return
                except (NotPartitionOwner, StateOffline):
                    raise
                except Exception as error:
                    if is_handled and isinstance(error, StateConflict):
                        continue  # what it had read has changed
                    # That the log was away when it was to be committed says nothing about the record.
                    is_faultless = is_handled and isinstance(error, Unavailable)
                    if is_faultless:
                        raise
                    if not await self._set_aside(record, error):
                        await self._count_no_more()
                        raise
                    return

    async def _run(self, record: Record, unit: UnitOfWork) -> Context:
        value: Any = record
        if self._codec is not None:
            await self._codec.prepare(record.value or b"")
            value = None if record.value is None else self._codec.decode(record.value)
        at = f"{self._topic_id}/{self._at.partition}/{record.offset}"
        return await self._runner.handle_input(self._handler, value, record.key, at, unit)

    async def _finish(self, unit: UnitOfWork, last: Record, contexts: Sequence[Context]) -> None:
        self._note(unit, last.offset + 1)
        await self._commit(unit)
        self._handled, self._owners = last.offset + 1, 0
        for context in contexts:
            context.send_tells()

    def _note(self, unit: UnitOfWork, next_offset: int) -> None:
        """Write where to go on, as a part of a unit of work."""
        place = msgspec.msgpack.encode(_Place(self._topic_id, next_offset))
        unit.write(self._replica, self._key, StateWrite(place))

    async def _set_aside(self, record: Record, error: Exception) -> bool:
        """Go past a record that failed too often, if that is wanted; returns False if it is to be tried again."""
        offset, times = self._failed_at
        self._failed_at = (record.offset, times + 1 if offset == record.offset else 1)
        is_unknown = isinstance(error, HeadraceError) and not getattr(error, "outcome_known", True)
        if self._handler.on_error == "stop" or self._failed_at[1] < _ATTEMPTS or is_unknown:
            return False
        await self._pass(record, error)
        return True

    async def _pass(self, record: Record, error: Exception) -> None:
        """Go past a record, in one transaction with its dead letter, if there are any."""
        unit = self._states.begin()
        if self._handler.on_error == "dead-letter":
            headers = (*record.headers, ("headrace.error", repr(error)[:2000].encode()))
            unit.add(NewRecord(self._dead_letters, record.key, record.value, headers))
        await self._finish(unit, record, [])
        HANDLED.labels(self._at.topic, self._handler.on_error).inc()
        _logger.error("a record was set aside", at=str(self._at), offset=record.offset, error=repr(error))
