"""Copy of journals from one log and store to another: from a folder to Kafka and Cassandra, or back.

What a reader of the journal sees is copied: events with their numbers, tags, metadata, headers and payloads, one append
for each append; the pointer, also if all events are deleted; snapshots. What the target has already is compared and not
written again, so a copy that was interrupted continues when it is run again.

It uses the public Journal, not the pipeline: each append expects the number before it, so that nothing is written twice
or in conflict with another writer, and the target tags, numbers and replicates the events as it would any others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from headrace.app.connection import Headrace
from headrace.errors import HeadraceError, JournalHeld, ReadAgain, TargetDiffers, UnknownTopic
from headrace.journal import Journal, Snapshot, layout_key
from headrace.model import Event, StoredEvent, TopicPartition
from headrace.observe import SILENT, Progress, untraced
from headrace.protocol import Mark, decode_action, duration_of
from headrace.runtime import SYSTEM_CLOCK

__all__ = ["CopyReport", "copy_journals", "journal_ids", "journal_topics"]

_JOURNALS_AT_ONCE = 16
_ATTEMPTS = 5


@dataclass(slots=True)
class CopyReport:
    """The result of copying one topic. `held` are journals that can't be read before an operator decides about them."""

    topic: str
    journals: int = 0
    events_copied: int = 0
    events_present: int = 0
    snapshots_copied: int = 0
    deletes: int = 0
    held: list[str] = field(default_factory=list)


async def journal_topics(hr: Headrace) -> list[str]:
    """Return the topics that have journals."""
    prefix = layout_key("")
    return [key.removeprefix(prefix) for key in await hr.store.settings.all(prefix)]


async def journal_ids(hr: Headrace, topic: str) -> AsyncIterator[str]:
    """Yield the ids of a topic's journals, each once: those in the store, then those that only the log has.

    Some of the journals may not exist: they were purged, or had only void appends.
    """
    in_log = await _ids_in_log(hr, topic)
    async for id_ in hr.journal(topic, read_only=True).ids():
        in_log.discard(id_)
        yield id_
    for id_ in in_log:
        yield id_


async def copy_journals(
    source: Headrace, target: Headrace, topics: Sequence[str] | None = None, *, progress: Progress = SILENT
) -> list[CopyReport]:
    """Copy the journals of the given topics, or of all topics, and return what was done.

    If the target has something that the source lacks, nothing is written and TargetDiffers is raised. Running it again
    adds what the source has got since; otherwise it changes nothing.
    """
    chosen = list(topics) if topics else sorted(await journal_topics(source))
    for topic in chosen:
        await source.log.admin.describe(topic)  # a topic that does not exist is an error, not an empty topic
        await _check_target(source, target, topic)
    with untraced():  # a copy has the headers of the original, by which a second run knows it again
        return [await _copy_topic(source, target, topic, progress) for topic in chosen]


async def _ids_in_log(hr: Headrace, topic: str) -> set[str]:
    found: set[str] = set()
    for partition in range((await hr.log.admin.describe(topic)).partitions):
        at = TopicPartition(topic, partition)
        replicated, bounds = await hr.store.reader.replicated(at), await hr.log.bounds(at)
        start = max(bounds.start, replicated.offset + 1 if replicated is not None else 0)
        if start >= bounds.end:
            continue
        async for batch in hr.log.read(at, start, bounds.end, headers_only=True):
            for record in batch.records:
                action = decode_action(record)
                if record.key is not None and action is not None and not isinstance(action, Mark):
                    found.add(record.key.decode(errors="surrogateescape"))
    return found


async def _check_target(source: Headrace, target: Headrace, topic: str) -> None:
    """Raise TargetDiffers, before anything is written, if the target has journals that can't come from this source."""
    try:
        await target.log.admin.describe(topic)
    except UnknownTopic:
        return
    ours, theirs = source.journal(topic, read_only=True), target.journal(topic, read_only=True)
    async for id_ in journal_ids(target, topic):
        there = await theirs.pointer(id_)
        here = await ours.pointer(id_) if there is not None else None
        if there is not None and (here is None or here < there):
            at = f"is at {here}" if here is not None else "has no such journal"
            raise TargetDiffers(topic, id_, there, f"the source {at}")


async def _copy_topic(source: Headrace, target: Headrace, topic: str, progress: Progress) -> CopyReport:
    partitions = (await source.log.admin.describe(topic)).partitions
    copy = _TopicCopy(source.journal(topic, read_only=True), target.journal(topic, partitions=partitions))
    waiting: asyncio.Queue[str | None] = asyncio.Queue(_JOURNALS_AT_ONCE)
    with progress.step(f"copying the journals of {topic}", unit="journals") as step:

        async def work() -> None:
            while (id_ := await waiting.get()) is not None:
                await copy.journal(id_)
                step.advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_JOURNALS_AT_ONCE):
                    group.create_task(work())
                async for id_ in journal_ids(source, topic):
                    await waiting.put(id_)
                for _ in range(_JOURNALS_AT_ONCE):
                    await waiting.put(None)
        except ExceptionGroup as failed:
            # One failure ends all; the first one is reported.
            raise _first(failed) from failed
    copy.report.held.sort()
    return copy.report


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    errors = list(_leaves(failed))
    return next((error for error in errors if isinstance(error, HeadraceError)), errors[0])


def _leaves(failed: ExceptionGroup[Exception]) -> list[Exception]:
    return [
        leaf for each in failed.exceptions for leaf in (_leaves(each) if isinstance(each, ExceptionGroup) else [each])
    ]


class _TopicCopy:
    """Copies the journals of one topic, one by one."""

    def __init__(self, source: Journal, target: Journal) -> None:
        self._source = source
        self._target = target
        self.report = CopyReport(source.topic)

    async def journal(self, id_: str) -> None:
        """Bring one journal of the target to the state of the source."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                is_there = await self._copy(id_)
            except JournalHeld:  # the others continue; this one is named at the end
                self.report.held.append(id_)
                return
            except ReadAgain:  # a delete or a purge came in between; compare everything again
                if attempt == _ATTEMPTS:
                    raise
            else:
                self.report.journals += is_there
                return

    async def _copy(self, id_: str) -> bool:
        """Compare both, append what the target lacks, and delete what the source has deleted."""
        pointer = await self._source.pointer(id_)
        if pointer is None:
            return False
        at = start = await self._target.pointer(id_) or 0
        first: int | None = None
        async with contextlib.aclosing(_Overlap(self._target, id_, start)) as overlap:
            async for record in _records(self._source, id_):
                first = record[0].seq_nr if first is None else first
                await overlap.compare([event for event in record if event.seq_nr <= start], first)
                if new := [event for event in record if event.seq_nr > start]:
                    await overlap.end(first)  # raises before the first append if the target differs
                    await self._append(id_, new, at)
                    at = new[-1].seq_nr
            await overlap.end(pointer + 1 if first is None else first)
        self.report.events_present += overlap.equal
        is_empty = first is None and at < pointer
        if is_empty:
            # Only an append moves a pointer: append one event without a payload, and delete it like those before it.
            await self._target.append(id_, [Event(pointer)], expected=at, append_id=f"copy/pointer/{pointer}")
        await self._copy_snapshots(id_, max(pointer, at))
        if is_empty or overlap.deleted:
            await self._target.delete(id_, to=pointer if first is None else first - 1)
            self.report.deletes += 1
        return True

    async def _append(self, id_: str, events: Sequence[StoredEvent], at: int) -> None:
        one = events[0]
        await self._target.append(
            id_,
            [Event(event.seq_nr, event.payload, event.tags) for event in events],
            expected=at,
            append_id=f"copy/{one.partition}/{one.offset}/{one.seq_nr}",
            metadata=one.metadata,
            payload_metadata=one.payload_metadata,
            headers=one.headers or None,
            expire_after=_time_left(one, SYSTEM_CLOCK.now_ms()),
            origin=one.origin,
            version=one.version,
        )
        self.report.events_copied += len(events)

    async def _copy_snapshots(self, id_: str, pointer: int) -> None:
        """Copy the snapshots that the target lacks, the oldest first, because only the newest are kept.

        One that was saved again in the source, with another state or time, is saved again in the target.
        """
        for snapshot in reversed(await _snapshots(self._source, id_)):
            if (
                snapshot.seq_nr > pointer
                or await self._target.snapshots.load(id_, max_seq_nr=snapshot.seq_nr) == snapshot
            ):
                continue
            await self._target.snapshots.save(
                id_, snapshot.seq_nr, snapshot.payload, timestamp_ms=snapshot.timestamp_ms
            )
            self.report.snapshots_copied += 1


class _Overlap:
    """The events that the target had before, up to its pointer, to be compared with those of the source."""

    def __init__(self, target: Journal, id_: str, pointer: int) -> None:
        self._topic, self._id = target.topic, id_
        self._events = _up_to(target, id_, pointer)
        self._next: StoredEvent | None = None
        self.equal = 0
        self.deleted = 0

    async def compare(self, events: Sequence[StoredEvent], first: int) -> None:
        """Compare the target with the next events of the source, in which all below `first` are deleted.

        Events that only the target has deleted stay deleted. Raises TargetDiffers.
        """
        for event in events:
            there = await self._pass_over(event.seq_nr, first)
            if there is None or there.seq_nr != event.seq_nr:
                continue
            if _content(there) != _content(event):
                raise TargetDiffers(self._topic, self._id, event.seq_nr, "the source has another event there")
            self.equal += 1
            self._next = None

    async def end(self, first: int) -> None:
        """Read the rest of the target. Raises TargetDiffers."""
        await self._pass_over(None, first)

    async def aclose(self) -> None:
        """Close the read of the target."""
        await self._events.aclose()

    async def _pass_over(self, up_to: int | None, first: int) -> StoredEvent | None:
        """Return the target's next event at or above `up_to`; those below must be deleted in the source."""
        while (there := self._next or await anext(self._events, None)) is not None:
            self._next = there
            if up_to is not None and there.seq_nr >= up_to:
                break
            if there.seq_nr >= first:
                raise TargetDiffers(self._topic, self._id, there.seq_nr, "the source has no such event")
            self.deleted += 1
            self._next = None
        return there


async def _up_to(journal: Journal, id_: str, pointer: int) -> AsyncGenerator[StoredEvent, None]:
    if pointer:
        async for event in journal.read(id_, to_seq_nr=pointer):
            yield event


async def _records(journal: Journal, id_: str) -> AsyncIterator[list[StoredEvent]]:
    """Yield the events of a journal, grouped by append."""
    together: list[StoredEvent] = []
    async for event in journal.read(id_):
        if together and (event.partition, event.offset) != (together[0].partition, together[0].offset):
            yield together
            together = []
        together.append(event)
    if together:
        yield together


async def _snapshots(journal: Journal, id_: str) -> list[Snapshot]:
    """Return the snapshots of a journal, the newest first."""
    found: list[Snapshot] = []
    newest = await journal.snapshots.load(id_)
    while newest is not None:
        found.append(newest)
        newest = await journal.snapshots.load(id_, max_seq_nr=newest.seq_nr - 1) if newest.seq_nr > 1 else None
    return found


def _content(event: StoredEvent) -> tuple[object, ...]:
    """Return what an event and its copy have in common: everything but the place and the time."""
    record = (event.metadata, event.payload_metadata, dict(event.headers), event.origin, event.version)
    return event.payload, tuple(event.tags), *record


def _time_left(event: StoredEvent, now_ms: int) -> timedelta | None:
    """Return how long the journal still lives, so that the copy expires at the same time as the original."""
    if event.expire_after is None:
        return None
    left = duration_of(event.expire_after) - timedelta(milliseconds=now_ms - event.timestamp_ms)
    return max(left, timedelta(seconds=1))
