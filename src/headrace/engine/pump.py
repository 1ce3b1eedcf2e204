"""Reading an input: records of one partition of a topic in, work for the engine's batches out, exactly once each.

The place in the topic is written in the transaction of what the records led to, so whoever owns the engine's partition
next goes on right there. What was read twice, because a commit was not answered, is found done when its turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from headrace.engine import metrics
from headrace.engine.batches import PendingCommand
from headrace.engine.command_records import dead_letter, place_of
from headrace.engine.handling import HandledCommand
from headrace.engine.places import InputPlace, InputPlaces, InputSpan
from headrace.engine.records import AggregateRecord
from headrace.engine.timer_loop import SubmitWork
from headrace.engine.work import NOTHING_DONE, NOTHING_HANDLED, BatchWork, WorkOutcome
from headrace.errors import HeadraceError, NotPartitionOwner, OperationFailed, Refused, UnreadableRecord
from headrace.log import Log
from headrace.model import Bounds, NewRecord, Record, TopicPartition, size_of
from headrace.observe import get_logger
from headrace.runtime import Backoff, crash_point
from headrace.state import BatchName

__all__ = ["InputSource", "LaneWork", "TopicPump", "WrittenRecords"]

# How many records are on their way at a time: it bounds what a place has to list, and leaves room for callers.
_WINDOW = 200
_ATTEMPTS = 3
_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)

_logger = get_logger(__name__)


class LaneWork(NamedTuple):
    """What a record leads to, and the lane in which it waits: an aggregate's, or one of its own."""

    lane: str
    work: BatchWork


class InputSource(Protocol):
    """What is read, and what its records lead to."""

    @property
    def key(self) -> bytes:
        """The key of its place."""
        ...

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """Where the first owner ever begins."""
        ...

    @property
    def dead_letters(self) -> str | None:
        """The topic for records that can't be handled; None if they are tried again until they can."""
        ...

    async def open(self, log: Log) -> None:
        """Get ready to read: make and check topics."""
        ...

    async def work_of(self, record: Record, span: InputSpan) -> LaneWork:
        """Return what a record leads to. Raises whatever is wrong with it."""
        ...


class WrittenRecords:
    """Work that is decided already: some records, and the step past the record that led to them."""

    has_aggregate = False

    def __init__(self, places: InputPlaces, span: InputSpan, records: Sequence[NewRecord] = ()) -> None:
        self._places = places
        self._span = span
        self._records = tuple(records)

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> None:
        """There is nothing to decide."""

    def finish(
        self, record: AggregateRecord | None, decided: None, *, batch: BatchName, floor: BatchName, now_ms: int
    ) -> WorkOutcome | None:
        """Return the records and the place behind them; None if they were written before."""
        if self._places.is_done(self._span):
            return None
        handled = HandledCommand(NOTHING_DONE, records=self._records, size_bytes=sum(map(size_of, self._records)))
        return WorkOutcome(handled, {self._span.key: self._places.finish(self._span)})


class _Beginning:
    """The place at which an owner begins, with the number of owners that began there."""

    has_aggregate = False

    def __init__(self, places: InputPlaces, key: bytes, place: InputPlace) -> None:
        self._places = places
        self._key = key
        self._place = place

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> None:
        """There is nothing to decide."""

    def finish(
        self, record: AggregateRecord | None, decided: None, *, batch: BatchName, floor: BatchName, now_ms: int
    ) -> WorkOutcome:
        """Return the place as a record."""
        return WorkOutcome(NOTHING_HANDLED, {self._key: self._places.put(self._key, self._place)})


class _Sent(NamedTuple):
    record: Record
    span: InputSpan
    command: PendingCommand


class TopicPump:
    """Reads one partition of a topic while this node owns the engine's partition."""

    def __init__(
        self, source: InputSource, at: TopicPartition, log: Log, places: InputPlaces, submit: SubmitWork
    ) -> None:
        self._source = source
        self._at = at
        self._log = log
        self._places = places
        self._submit = submit
        self._lane = source.key.decode()
        self._has_begun = False
        self._attempts = 0
        self._careful = 0
        self._failed: dict[int, int] = {}

    async def run(self) -> None:
        """Read on until cancelled; what fails is tried again after a pause."""
        failures = 0
        while True:
            before = self._progress()
            try:
                await self._source.open(self._log)
                await self._read_on()
            except NotPartitionOwner:
                return
            except Exception as error:  # whatever the application raises must not end the partition
                failures = failures + 1 if self._progress() == before else 1
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("an input pauses", at=str(self._at), error=repr(error), retry_in_s=delay_s)
                metrics.INPUTS.labels(self._at.topic, "retried").inc()
                await asyncio.sleep(delay_s)

    def _progress(self) -> int:
        place = self._places.get(self._source.key)
        return 0 if place is None else place.next_offset

    async def _read_on(self) -> None:
        """Read and submit, and watch what becomes of it, until one of the two fails."""
        place = await self._begin()
        sent: asyncio.Queue[_Sent] = asyncio.Queue(_WINDOW)
        tasks = [asyncio.create_task(self._read(place, sent)), asyncio.create_task(self._watch(sent))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Beginning.

    async def _begin(self) -> InputPlace:
        """Return the place to read from. An owner that begins there with records to read writes that down first."""
        topic = await self._log.admin.describe(self._at.topic)
        bounds = await self._log.bounds(self._at)
        stored = self._places.get(self._source.key)
        place = self._start(stored, topic.topic_id, bounds)
        if self._has_begun and place == stored:
            return place
        if not self._has_begun and bounds.end > place.next_offset:
            place = msgspec.structs.replace(place, attempts=place.attempts + 1)
            self._attempts = place.attempts
            self._careful = _WINDOW if self._attempts > 1 else 0
        self._has_begun = True  # also if the answer to the commit below is lost: an owner counts once
        if place != stored:
            await asyncio.shield(
                self._submit(self._lane, _Beginning(self._places, self._source.key, place), False).done
            )
        return place

    def _start(self, stored: InputPlace | None, topic_id: str, bounds: Bounds) -> InputPlace:
        if stored is None:
            return InputPlace.begin(topic_id, bounds.start if self._source.start == "earliest" else bounds.end)
        if stored.topic_id != topic_id:
            _logger.warning("an input topic was made again", at=str(self._at))
            return InputPlace.begin(topic_id, bounds.start)
        if stored.next_offset < bounds.start:
            unread = bounds.start - stored.next_offset
            _logger.error("records were removed before they were read", at=str(self._at), offsets=unread)
            metrics.INPUTS.labels(self._at.topic, "lost").inc(unread)
            return InputPlace.begin(topic_id, bounds.start)
        return stored

    # Reading.

    async def _read(self, place: InputPlace, sent: asyncio.Queue[_Sent]) -> None:
        """Read from a place on, forever. What the log can't read is set aside, if anything is."""
        position = place.next_offset
        while True:
            batches = self._log.read(self._at, position, max_records=_WINDOW)
            try:
                async with contextlib.aclosing(batches):  # type: ignore[type-var]
                    async for batch in batches:
                        for record in batch.records:
                            position = await self._send_new(record, place.topic_id, position, sent)
            except UnreadableRecord as error:
                if self._source.dead_letters is None:
                    raise
                lost = Record(*self._at, error.offset, 0)
                span = InputSpan(self._source.key, place.topic_id, position, error.offset + 1)
                await self._submitted(lost, span, self._set_aside(lost, span, error), sent)
                position = span.end

    async def _send_new(self, record: Record, topic_id: str, position: int, sent: asyncio.Queue[_Sent]) -> int:
        """Send what a record leads to, unless that is done; returns where the next one begins."""
        span = InputSpan(self._source.key, topic_id, position, record.offset + 1)
        if not self._places.is_done(span):
            await self._submitted(record, span, await self._work_of(record, span), sent)
        return span.end

    async def _submitted(self, record: Record, span: InputSpan, work: LaneWork, sent: asyncio.Queue[_Sent]) -> None:
        is_careful = self._careful > 0
        self._careful -= is_careful
        command = self._submit(*work, is_careful)
        await sent.put(_Sent(record, span, command))
        if is_careful:  # alone, so that it is known which record ends the process, if one does
            await asyncio.wait([command.done])

    async def _work_of(self, record: Record, span: InputSpan) -> LaneWork:
        """Return what a record leads to; one that can't be handled goes to the dead letters, if there are any."""
        is_suspect, self._attempts = self._attempts > _ATTEMPTS, 0
        if is_suspect and self._source.dead_letters is not None:
            reason = f"its process ended {_ATTEMPTS} times while it was handled"
            return self._set_aside(record, span, OperationFailed(f"handling {place_of(record)}", reason))
        try:
            work = await self._source.work_of(record, span)
        except Refused as error:
            if self._source.dead_letters is None:
                raise
            return self._set_aside(record, span, error)
        except Exception as error:
            times = self._failed[record.offset] = self._failed.get(record.offset, 0) + 1
            if self._source.dead_letters is None or times < _ATTEMPTS:
                raise
            return self._set_aside(record, span, error)
        self._failed.pop(record.offset, None)
        return work

    def _set_aside(self, record: Record, span: InputSpan, error: BaseException) -> LaneWork:
        _logger.error("a record was set aside", at=place_of(record), error=str(error))
        metrics.INPUTS.labels(self._at.topic, "dead-letter").inc()
        self._failed.pop(record.offset, None)
        written = [dead_letter(record, error, topic=self._source.dead_letters or "")]
        return LaneWork(self._lane, WrittenRecords(self._places, span, written))

    # Watching.

    async def _watch(self, sent: asyncio.Queue[_Sent]) -> None:
        """Wait for one record after the other to be committed. Raises what ended a batch without a known outcome."""
        while True:
            each = await sent.get()
            try:
                await asyncio.shield(each.command.done)
            except Refused as error:
                if isinstance(error, NotPartitionOwner) or self._source.dead_letters is None:
                    raise
                await self._go_past(each, error)
            crash_point("engine.input-done")
            metrics.INPUTS.labels(self._at.topic, "handled").inc()

    async def _go_past(self, refused: _Sent, error: HeadraceError) -> None:
        """Set a record aside that the log has refused to write; without its content if that is refused, too."""
        for work in (
            self._set_aside(refused.record, refused.span, error).work,
            WrittenRecords(self._places, refused.span),
        ):
            try:
                await asyncio.shield(self._submit(self._lane, work, True).done)
                return
            except Refused as again:
                if isinstance(again, NotPartitionOwner):
                    raise
                _logger.exception("a dead letter can't be written", at=place_of(refused.record), error=str(again))
