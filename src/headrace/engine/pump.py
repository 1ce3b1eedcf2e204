"""Reading an input: records of one partition of a topic in, work for the engine's batches out, exactly once each.

The place in the topic is written in the transaction of what the records led to, so whoever owns the engine's partition
next goes on right there. What was read twice, because a commit was not answered, is found done when its turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from headrace.engine import metrics
from headrace.engine.batches import NOTHING_DONE, NOTHING_HANDLED, BatchWork, PendingCommand, WorkOutcome
from headrace.engine.command_records import dead_letter, place_of
from headrace.engine.commands import Answer
from headrace.engine.handling import HandledCommand
from headrace.engine.places import InputPlace, InputPlaces, InputSpan
from headrace.engine.records import AggregateRecord
from headrace.engine.timer_loop import SubmitWork
from headrace.errors import (
    HeadraceError,
    InputRecordsLost,
    Misconfigured,
    NotPartitionOwner,
    OperationFailed,
    Refused,
    UnreadableRecord,
)
from headrace.journal import RemovedRecords
from headrace.log import Log
from headrace.model import Bounds, NewRecord, Record, TopicPartition, size_of
from headrace.observe import get_logger
from headrace.runtime import (
    EXITS,
    Backoff,
    crash_point,
    error_text,
    is_suspect,
    is_tried_alone,
    own_text,
    suspect_text,
)
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

    @property
    def has_store(self) -> bool:
        """True if what leaves the log is kept elsewhere, and can be had with `removed`."""
        ...

    async def open(self, log: Log) -> None:
        """Get ready to read: make and check topics."""
        ...

    async def removed(self, first: int, end: int) -> RemovedRecords:
        """Return records that have left the log. Raises RecordsLost."""
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


class _MovedPlace:
    """A change of the place that no record leads to. It is made of the place that is there when its turn comes."""

    has_aggregate = False

    def __init__(
        self, places: InputPlaces, key: bytes, moved: Callable[[InputPlace | None], InputPlace | None]
    ) -> None:
        self._places = places
        self._key = key
        self._moved = moved

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> None:
        """There is nothing to decide."""

    def finish(
        self, record: AggregateRecord | None, decided: None, *, batch: BatchName, floor: BatchName, now_ms: int
    ) -> WorkOutcome | None:
        """Return the place as a record; None if it stays as it is."""
        found = self._places.get(self._key)
        place = self._moved(found)
        if place is None or place == found:
            return None
        return WorkOutcome(NOTHING_HANDLED, {self._key: self._places.put(self._key, place)})


class _Sent(NamedTuple):
    record: Record
    span: InputSpan
    command: PendingCommand


class _Reading:
    """The records from a place on, until one of them can't be handled now: those behind it are not, either.

    They are read again with it, so that the records of an aggregate keep their order.
    """

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.sent: asyncio.Queue[_Sent] = asyncio.Queue(_WINDOW)
        self.is_over = False


class _WorkOfReading:
    """What a record leads to, unless the reading that it belongs to is over."""

    def __init__(self, work: BatchWork, reading: _Reading) -> None:
        self._work = work
        self._reading = reading

    @property
    def has_aggregate(self) -> bool:
        """True if the work needs the record of an aggregate."""
        return self._work.has_aggregate and not self._reading.is_over

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> Any:  # noqa: ANN401
        """Return what the work decides."""
        return None if self._reading.is_over else await self._work.decide(record, floor=floor, now_ms=now_ms)

    def finish(
        self,
        record: AggregateRecord | None,
        decided: Any,  # noqa: ANN401
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> WorkOutcome | None:
        """Return what the work leads to."""
        if self._reading.is_over:
            return None
        return self._work.finish(record, decided, batch=batch, floor=floor, now_ms=now_ms)


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
        self._waiting_below: int | None = None
        self._is_counted = False
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
                tell = _logger.error if isinstance(error, Misconfigured) else _logger.warning
                tell("an input pauses", at=str(self._at), error=error_text(error), retry_in_s=delay_s)
                metrics.INPUTS.labels(self._at.topic, "retried").inc()
                await asyncio.sleep(delay_s)

    def _progress(self) -> int:
        place = self._places.get(self._source.key)
        return 0 if place is None else place.next_offset

    async def _read_on(self) -> None:
        """Read and submit, and watch what becomes of it, until one of the two fails."""
        place = await self._begin()
        reading = _Reading(place.topic_id)
        tasks = [asyncio.create_task(self._read(place, reading)), asyncio.create_task(self._watch(reading.sent))]
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
        """Return the place to read from: one that is in the log, whatever is on its way there."""
        topic = await self._log.admin.describe(self._at.topic)
        bounds = await self._log.bounds(self._at)
        if self._waiting_below is None:
            self._waiting_below = bounds.end
        stored = self._places.committed(self._source.key)
        place = self._start(stored, topic.topic_id, bounds)
        if place != stored:
            self._report(stored, place)
            await self._move(lambda found: self._start(found, topic.topic_id, bounds))
        return place

    def _start(self, stored: InputPlace | None, topic_id: str, bounds: Bounds) -> InputPlace:
        """Return where to begin. Raises InputRecordsLost if the topic ends before the place."""
        start = 0 if self._source.has_store else bounds.start
        if stored is None:
            return InputPlace.begin(topic_id, start if self._source.start == "earliest" else bounds.end)
        if stored.topic_id != topic_id:
            return InputPlace.begin(topic_id, start)
        if stored.end > bounds.high_watermark:
            raise InputRecordsLost(*self._at, bounds.high_watermark, stored.end - 1)
        return stored.moved_to(start) if stored.next_offset < start else stored

    def _report(self, stored: InputPlace | None, place: InputPlace) -> None:
        """Say why the place is another one than the one that is stored."""
        if stored is not None and stored.topic_id != place.topic_id:
            _logger.warning("an input topic was made again", at=str(self._at))
        elif stored is not None:
            unread = place.next_offset - stored.next_offset
            _logger.error("records were removed before they were read", at=str(self._at), offsets=unread)
            metrics.INPUTS.labels(self._at.topic, "lost").inc(unread)

    async def _move(self, moved: Callable[[InputPlace | None], InputPlace | None]) -> None:
        """Write another place, which no record leads to."""
        work = _MovedPlace(self._places, self._source.key, moved)
        await asyncio.shield(self._submit(self._lane, work, False).done)

    async def _count_owner(self, record: Record) -> None:
        """Write down that an owner begins with a record that waited for it, once, before it does.

        The offsets behind a place need not be records: those of transaction markers are none, and nobody fails at them.
        """
        if self._is_counted:
            return
        self._is_counted = True  # also if the answer to the commit below is lost: an owner counts once
        if record.offset < (self._waiting_below or 0):
            await self._move(_with_another_owner)
            place = self._places.get(self._source.key)
            self._attempts = 0 if place is None else place.attempts
            self._careful = _WINDOW if is_tried_alone(self._attempts) else 0

    # Reading.

    async def _read(self, place: InputPlace, reading: _Reading) -> None:
        """Read from a place on, forever. What the log can't read is set aside, if anything is."""
        position, start = await self._read_removed(place.next_offset, reading)
        while True:
            batches = self._log.read(self._at, max(position, start), max_records=_WINDOW)
            try:
                async with contextlib.aclosing(batches):  # type: ignore[type-var]
                    async for batch in batches:
                        for record in batch.records:
                            position = await self._send_new(record, position, reading)
            except UnreadableRecord as error:
                if self._source.dead_letters is None:
                    raise
                lost = Record(*self._at, error.offset, 0)
                span = InputSpan(self._source.key, place.topic_id, position, error.offset + 1)
                await self._submitted(lost, span, self._set_aside(lost, span, error), reading)
                position = span.end

    async def _read_removed(self, position: int, reading: _Reading) -> tuple[int, int]:
        """Read what has left the log, if it is kept elsewhere; return where the next record begins, and the log does.

        Offsets behind the last one that was kept belong to the next record, wherever that is.
        """
        done = position
        while self._source.has_store and done < (await self._log.bounds(self._at)).start:
            removed = await self._source.removed(done, (await self._log.bounds(self._at)).start)
            for aggregate in removed.purged:
                _logger.error("events were purged before they were read", at=str(self._at), aggregate=aggregate)
                metrics.INPUTS.labels(self._at.topic, "lost").inc()
            for record in removed.records:
                position = await self._send_new(record, position, reading)
            done = removed.end
        return position, done

    async def _send_new(self, record: Record, position: int, reading: _Reading) -> int:
        """Send what a record leads to, unless that is in the log; returns where the next one begins."""
        span = InputSpan(self._source.key, reading.topic_id, position, record.offset + 1)
        if not self._places.is_done(span):
            await self._count_owner(record)
            await self._submitted(record, span, await self._work_of(record, span), reading)
            return span.end
        place = self._places.committed(span.key)
        if place is None or not place.is_done(span):
            # It is in a batch on its way. If that does not arrive, what was sent here is found not to be done.
            await self._submitted(record, span, await self._work_of(record, span), reading)
        elif place.is_apart(span):
            moved = _MovedPlace(self._places, span.key, lambda found: found and _joined(found, span))
            await self._submitted(record, span, LaneWork(self._lane, moved), reading)
        return span.end

    async def _submitted(self, record: Record, span: InputSpan, work: LaneWork, reading: _Reading) -> None:
        is_careful = self._careful > 0
        self._careful -= is_careful
        command = self._submit(work.lane, _WorkOfReading(work.work, reading), is_careful)
        command.done.add_done_callback(lambda done: self._look(done, reading))
        await reading.sent.put(_Sent(record, span, command))
        if is_careful:  # alone, so that it is known which record ends the process, if one does
            await asyncio.wait([command.done])

    def _look(self, done: asyncio.Future[Answer], reading: _Reading) -> None:
        """End the reading with what can't be handled now, before anything behind it is."""
        if not done.cancelled() and (error := done.exception()) is not None and not self._is_passed(error):
            reading.is_over = True

    def _is_passed(self, error: BaseException) -> bool:
        """Return True if a record with this error is set aside, and not tried again."""
        is_refused = isinstance(error, Refused) and not isinstance(error, NotPartitionOwner)
        return is_refused and self._source.dead_letters is not None

    async def _work_of(self, record: Record, span: InputSpan) -> LaneWork:
        """Return what a record leads to; one that can't be handled goes to the dead letters, if there are any."""
        attempts, self._attempts = self._attempts, 0
        if is_suspect(attempts) and self._source.dead_letters is not None:
            return self._set_aside(record, span, OperationFailed(f"handling {place_of(record)}", suspect_text()))
        try:
            work = await self._asked(record, span)
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

    async def _asked(self, record: Record, span: InputSpan) -> LaneWork:
        try:
            return await self._source.work_of(record, span)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # The application's own: of something that it awaited. The input goes on.
            raise OperationFailed(f"handling {place_of(record)}", "what was awaited for it was cancelled") from error
        except (Exception, *EXITS, GeneratorExit):
            raise
        except BaseException as error:  # a panic of an extension is no exception, and fails this record alone, too
            raise OperationFailed(f"handling {place_of(record)}", error_text(error)) from error

    def _set_aside(self, record: Record, span: InputSpan, error: BaseException) -> LaneWork:
        _logger.error("a record was set aside", at=place_of(record), error=own_text(error))
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
                if not self._is_passed(error):
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


def _with_another_owner(place: InputPlace | None) -> InputPlace | None:
    """Return the place with one more owner that began there."""
    return place and msgspec.structs.replace(place, attempts=place.attempts + 1)


def _joined(place: InputPlace, span: InputSpan) -> InputPlace:
    """Return the place with a span that is done and begins elsewhere than noted."""
    return place.after(span) if place.topic_id == span.topic_id and place.is_apart(span) else place
