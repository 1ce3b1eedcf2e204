"""Records of a topic as input of a keyspace, exactly once each: the owner of a partition reads the topic's partition.

How far it has read is a value of the hidden state `inputs`, written in the transaction of what the handlers wrote. So
whoever owns the partition next goes on right there, and group offsets have no say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from headrace.errors import (
    HeadraceError,
    NotPartitionOwner,
    StateConflict,
    StateOffline,
    Unavailable,
    WrongPartitionCount,
)
from headrace.keyspace.calls import CallRunner
from headrace.keyspace.context import Context
from headrace.keyspace.declaration import InputSpec, KeyspaceSpec
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import counter, get_logger
from headrace.runtime import Backoff
from headrace.serde import Registry
from headrace.state import BytesValues, StatePartition, StateSpec, StateWrite, UnitOfWork, ValueCodec, codec_of

__all__ = ["INPUTS", "InputPump", "inputs_spec"]

HANDLED = counter("keyspace", "input_records", "Records of input topics, by what became of them.", ["topic", "outcome"])

INPUTS = "inputs"
"""The state in which a keyspace keeps how far it has read its input topics."""

_BATCH = 200
_ATTEMPTS = 3
_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)

_logger = get_logger(__name__)

CommitUnit: TypeAlias = Callable[[UnitOfWork], Awaitable[None]]


class _Place(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    next_offset: int


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
                _logger.warning(
                    "an input stops for a while",
                    keyspace=self._keyspace,
                    at=str(self._at),
                    error=repr(error),
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
        data = self._states.begin().get(self._replica, self._key)
        if data is not None:
            place = _places.decode(data)
            if place.topic_id == self._topic_id:
                return place.next_offset
            _logger.warning("an input topic was made again", keyspace=self._keyspace, at=str(self._at))
        bounds = await self._log.bounds(self._at)
        if data is not None or self._handler.start == "earliest":
            return bounds.start
        # Whoever owns the partition next goes on here, also if nothing is handled before.
        unit = self._states.begin()
        self._note(unit, bounds.end)
        await self._commit(unit)
        return bounds.end

    @property
    def _key(self) -> bytes:
        return self._replica.keys.encode(self._at.topic)

    async def _handle(self, records: Sequence[Record]) -> None:
        """Handle records in one transaction; if that fails, each in one of its own."""
        if len(records) > 1:
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
                    if is_faultless or not await self._set_aside(record, error):
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
        self._handled = last.offset + 1
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
        unit = self._states.begin()
        if self._handler.on_error == "dead-letter":
            headers = (*record.headers, ("headrace.error", repr(error)[:2000].encode()))
            unit.add(NewRecord(self._dead_letters, record.key, record.value, headers))
        await self._finish(unit, record, [])
        HANDLED.labels(self._at.topic, self._handler.on_error).inc()
        _logger.error("a record was set aside", at=str(self._at), offset=record.offset, error=repr(error))
        return True
