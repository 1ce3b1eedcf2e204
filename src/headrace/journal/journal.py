"""The journals of one topic, as applications use them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic, perf_counter

from headrace.errors import BadArgument, ReadOnlyHandle, TopicShared, UnknownTopic, VoidAppend, WrongSeqNr
from headrace.journal.append import AppendedEvents, AppendOptions, JournalWriter, NewAppend, new_append
from headrace.journal.attempts import AppendAttempt
from headrace.journal.head_cache import HeadCache
from headrace.journal.history import Moment, PartitionStats, history, partition_stats
from headrace.journal.ids import JournalIds
from headrace.journal.live import LiveReads
from headrace.journal.live_ids import LiveIds
from headrace.journal.marks import Barrier, MarkBarrier, WatermarkBarrier, write_mark
from headrace.journal.metrics import SLOW_S, Operations
from headrace.journal.read import JournalReader
from headrace.journal.read_many import EventPages, ManyReads
from headrace.journal.snapshots import JournalSnapshots
from headrace.journal.topology import LEASE_S, Topology
from headrace.journal.traces import operation_span
from headrace.journal.window import Windows
from headrace.log import Log, check_token
from headrace.model import (
    MAX_SEQ_NR,
    ConsistencyToken,
    Event,
    Payload,
    Position,
    StoredEvent,
    TokenPlace,
    WrittenPosition,
    check_topic_name,
)
from headrace.observe import has_trace
from headrace.protocol import (
    UNCHECKED,
    Delete,
    Expected,
    Mark,
    Purge,
    check_count,
    check_events,
    check_expected,
    check_id,
    check_option,
    check_payloads,
    check_seq_nr,
    check_text,
    exists,
    pointer_of,
)
from headrace.store import Store

__all__ = ["Journal"]

_NEXT_ATTEMPTS = 100


class Journal:
    """Ordered, append-only events per id, in one topic.

    Promises: a read that starts after an append returned sees it, whatever replication is doing; a read gives a state
    that the log had, whole, or raises.
    Does not promise: an order between ids. `append` without `expected` trusts its caller to be the only writer of the
    id.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        topic: str,
        *,
        cache: HeadCache | None,
        origin: str | None = None,
        read_only: bool = False,
        timeout_s: float = 70.0,
        snapshots_kept: int = 3,
        partitions: int | None = None,
        lease_s: float = LEASE_S,
        slow_s: float = SLOW_S,
    ) -> None:
        self.topic = check_topic_name(topic)
        self._operations = Operations(topic, slow_s=slow_s)
        self._log = log
        self._store = store
        self._origin = origin = check_option("origin", origin)
        self._is_read_only = read_only
        self._topology = Topology(
            log,
            store.settings,
            topic,
            partitions=partitions if partitions is None else check_count("partitions", partitions),
            is_reader=read_only,
            lease_s=lease_s,
        )
        windows = Windows(log, cache, timeout_s=timeout_s)
        barrier: Barrier = WatermarkBarrier(log) if read_only else MarkBarrier(log, origin)
        self._reader = JournalReader(self._topology, store.reader, windows, barrier, cache)
        self._many = ManyReads(log, self._topology, store.reader, self._reader, barrier, timeout_s=timeout_s)
        self._live = LiveReads(log, self._topology, store.reader, self._reader, cache, timeout_s=timeout_s)
        self._ids = JournalIds(log, self._topology, store.reader, self._reader, timeout_s=timeout_s)
        self._live_ids = LiveIds(log, self._topology, self._ids, self._reader)
        self._writer = JournalWriter(log, self._topology, self._reader)
        self.snapshots = JournalSnapshots(
            store.snapshots,
            self._reader,
            kept=check_count("snapshots_kept", snapshots_kept),
            read_only=read_only,
        )

    async def append(
        self,
        id_: str,
        events: Iterable[Event],
        *,
        expected: Expected = UNCHECKED,
        append_id: str | None = None,
        attempt: str | None = None,
        metadata: object = None,
        payload_metadata: object = None,
        headers: Mapping[str, str] | None = None,
        expire_after: timedelta | str | None = None,
        origin: str | None = None,
        version: str | None = None,
    ) -> WrittenPosition:
        """Write events, all of them or none; return the position of their record, with its consistency token.

        `expected` is the seq_nr that the journal must be at, else WrongSeqNr is raised. 0 and None mean that there must
        be no journal, so that `expected=await journal.pointer(id_)` is safe.

        With an `append_id` the call can be repeated on this Journal: the events are written at most once, and every
        call returns or raises the outcome. AppendIdReused is raised if the same append id comes with other events.
        Another Journal does not know the append id, but it gives no number twice. With an `attempt`, which `prepare`
        returned, the call can be repeated on any Journal of any process.
        """
        self._check_writable("append")
        id_ = check_id(id_)
        given = check_events(events)
        is_plain = expected is UNCHECKED and append_id is None and attempt is None and metadata is None
        is_plain = is_plain and payload_metadata is None and headers is None and expire_after is None
        if is_plain and origin is None and version is None and not has_trace():
            started_s = perf_counter()
            plain = self._writer.plain_record(id_, given, self._origin)
            if plain is not None:
                record, routed = plain
                before = routed.end.offset
                try:
                    (position,) = await self._log.append([record])
                    if routed.end.rises(before, position.offset) and monotonic() <= routed.safe_until_s:
                        self._writer.remember(id_, given[-1].seq_nr)
                    else:
                        new = new_append(given, AppendOptions(origin=self._origin))
                        position = await self._writer.settle_late(id_, new, routed, position, before)
                    return WrittenPosition.at(position, self._topology.topic_id)
                finally:
                    self._operations.end("append", id_, perf_counter() - started_s)
        required = check_expected(expected)
        once = None if append_id is None else check_text("append_id", append_id, least=1)
        prepared = self._prepared(attempt, once, id_) if attempt is not None else None
        options = AppendOptions(
            metadata=metadata,
            payload_metadata=payload_metadata,
            headers=headers,
            expire_after=expire_after,
            origin=self._origin if origin is None else origin,
            version=version,
        )
        new = new_append(given, options, with_digest=once is not None or prepared is not None)
        if required is not None:
            await self._check_not_shared("append with expected=")
        started_s = perf_counter()
        try:
            with operation_span("append", self.topic, id_):
                writing = self._write(id_, new.traced(), required, append_id=once, attempt=prepared)
                return self._written(await writing)
        finally:
            self._operations.end("append", id_, perf_counter() - started_s)

    def _write(
        self, id_: str, new: NewAppend, expected: int | None, *, append_id: str | None, attempt: AppendAttempt | None
    ) -> Awaitable[Position]:
        """Choose how to write: as a prepared attempt, at most once, unchecked, or checked."""
        if attempt is not None:
            return self._writer.append_attempt(attempt, new, expected=expected)
        if append_id is not None:
            return self._writer.append_once(id_, new, expected=expected, append_id=append_id)
        if expected is None:
            return self._writer.append(id_, new)
        return self._writer.append_checked(id_, new, expected=expected)

    async def append_next(
        self,
        id_: str,
        payloads: Iterable[Payload],
        *,
        tags: Sequence[str] = (),
        metadata: object = None,
        payload_metadata: object = None,
        headers: Mapping[str, str] | None = None,
        expire_after: timedelta | str | None = None,
        origin: str | None = None,
        version: str | None = None,
    ) -> AppendedEvents:
        """Append payloads as the next events, all of them or none; return the events with their numbers and token.

        Other writers may append at the same time: it reads the pointer, expects it, and tries again if another writer
        was faster. For decisions that depend on what the journal holds, use `append` with `expected`.
        """
        self._check_writable("append_next")
        id_, given = check_id(id_), check_payloads(payloads)
        options = AppendOptions(
            metadata=metadata,
            payload_metadata=payload_metadata,
            headers=headers,
            expire_after=expire_after,
            origin=self._origin if origin is None else origin,
            version=version,
        )
        new_append(_numbered(given, tags, 1), options)  # raises for bad arguments before anything is written
        await self._check_not_shared("append_next")
        for attempt in range(1, _NEXT_ATTEMPTS + 1):
            pointer = await self.pointer(id_) or 0
            events = _numbered(given, tags, pointer + 1)
            try:
                with self._operations.begin("append", id_), operation_span("append", self.topic, id_):
                    new = new_append(events, options).traced()
                    position = await self._writer.append_checked(id_, new, expected=pointer)
            except (WrongSeqNr, VoidAppend):  # another writer was faster
                if attempt == _NEXT_ATTEMPTS:
                    raise
            else:
                return AppendedEvents.at(events, self._written(position))
        raise AssertionError("the last attempt returns or raises")

    async def prepare(self, id_: str) -> str:
        """Prepare an append that must happen at most once, whatever happens to this process.

        Store the returned text before the append, and give it to every try of that append as `attempt`.
        """
        self._check_writable("prepare")
        return (await self._writer.prepare(check_id(id_))).dump()

    async def read(
        self,
        id_: str,
        from_seq_nr: int = 1,
        *,
        to_seq_nr: int | None = None,
        live: bool = False,
        at_least: str | None = None,
    ) -> AsyncGenerator[StoredEvent, None]:
        """Yield the events from a seq_nr on, up to and including `to_seq_nr` if that is given. Huge journals stream.

        A journal that was never written is empty, also if its topic does not exist yet. Every read shows what was
        written before it began; with `at_least` it is also checked that the log has what that token names. Raises
        ReadAgain if a delete or purge happens during the read, JournalHeld, RecordsLost, TimedOut, and for the token
        BadToken, TokenOfOtherTopic, TokenAhead.

        With `live` the read goes on with each event that is appended, in order and once, until the journal has reached
        `to_seq_nr`, else forever. It waits for outages of the log and the store, and for a topic that does not exist
        yet. Events that are deleted before they were given are left out. JournalPurged is raised if the journal is
        purged after events were given, or if `from_seq_nr` is above 1.
        """
        id_ = check_id(id_)
        first = check_seq_nr("from_seq_nr", from_seq_nr, most=None)
        last = MAX_SEQ_NR if to_seq_nr is None else check_seq_nr("to_seq_nr", to_seq_nr, most=None)
        await self._check_token(at_least)
        if live:
            async with contextlib.aclosing(self._live.pages(id_, first, last)) as pages:
                async for page in pages:
                    for event in page:
                        yield event
            return
        if not await self._topic_exists():
            return
        with self._operations.begin("read", id_) as operation:
            async for page in self._reader.pages(id_, first, operation, last=last):
                for event in page:
                    yield event
            operation.lap("events")

    async def read_many(
        self, ids: Collection[str]
    ) -> AsyncGenerator[tuple[str, AsyncGenerator[StoredEvent, None]], None]:
        """Yield each id with its events. What is not replicated is read once for all of them, not once for each.

        The events of several ids may be read side by side. Each of them raises what `read` does for its own journal.
        """
        wanted = [check_id(id_) for id_ in ids]
        if not await self._topic_exists():
            for id_ in wanted:
                yield id_, self.read(id_)  # which is empty, unless the topic is made meanwhile
            return
        async for id_, pages in self._many.pages(wanted):
            yield id_, _events_of(pages)

    async def pointer(self, id_: str, *, at_least: str | None = None) -> int | None:
        """Return the journal's last seq_nr; None if there is no journal. `at_least` is a token, as in `read`."""
        id_ = check_id(id_)
        await self._check_token(at_least)
        if not await self._topic_exists():
            return None
        with self._operations.begin("pointer", id_) as operation, operation_span("pointer", self.topic, id_):
            view = await self._reader.view(id_, operation)
        return pointer_of(view.meta) if exists(view.meta) else None

    async def delete(self, id_: str, *, to: int) -> WrittenPosition | None:
        """Delete the events up to a seq_nr, or up to the pointer if that is lower.

        Returns None, and writes nothing, if there is no journal. MAX_SEQ_NR deletes all events. If the journal is
        purged and begun again meanwhile, the new events stay.
        """
        self._check_writable("delete")
        id_, to = check_id(id_), check_seq_nr("to", to)
        if not await self._topic_exists():
            return None
        with self._operations.begin("delete", id_) as operation, operation_span("delete", self.topic, id_):
            meta = (await self._reader.view(id_, operation)).meta
            if meta is None or not exists(meta):
                return None
            to = min(to, pointer_of(meta))
            action = Delete(to=to, origin=self._origin, incarnation=meta.record_id)
            return self._written(await self._writer.write(id_, action))

    async def purge(self, id_: str) -> WrittenPosition:
        """Remove the whole journal; the next append begins a new one."""
        self._check_writable("purge")
        id_ = check_id(id_)
        with self._operations.begin("purge", id_), operation_span("purge", self.topic, id_):
            position = await self._writer.write(id_, Purge(origin=self._origin))
            self._writer.forget(id_)
            return self._written(position)

    async def token_of(self, event: StoredEvent) -> str:
        """Return the consistency token of an event that was read."""
        place = TokenPlace(self.topic, (await self._topology.layout()).topic_id, event.partition, event.offset)
        return str(ConsistencyToken((place,)))

    async def mark(self, id_: str, mark_id: str) -> int:
        """Write a Mark, which changes nothing, and return its offset."""
        self._check_writable("mark")
        id_, mark = check_id(id_), Mark(id=check_text("mark_id", mark_id), origin=self._origin)
        route = await self._topology.route(id_)
        return await write_mark(self._log, route.at, id_, mark)

    def ids(self, *, unreplicated: bool = False, live: bool = False) -> AsyncGenerator[str, None]:
        """Yield the ids of all journals that are replicated at least in part, in no order, each once.

        With `unreplicated` also of those that only the log has, and without those that were purged there: every
        journal that existed when the call began. That reads what is not replicated of all partitions.

        With `live` these come first, and then each new id milliseconds after its journal was begun, forever. An id
        comes once, also if its journal is purged and begun again: the ids that were given are kept in memory.
        """
        if live:
            return self._live_ids.all()
        return self._ids.all() if unreplicated else self._ids.stored()

    def history(self, id_: str, *, with_marks: bool = False) -> AsyncIterator[Moment]:
        """Yield the journal's timeline: every action, what it did, and the reason if it did nothing."""
        return history(self._log, self._store.reader, self._topology, check_id(id_), with_marks=with_marks)

    async def stats(self) -> list[PartitionStats]:
        """Return what the log holds of each partition, and how far it is replicated."""
        return await partition_stats(self._log, self._store.reader, self._topology)

    async def _topic_exists(self) -> bool:
        """Return False if the topic does not exist, because nothing was written to it yet."""
        try:
            await self._topology.layout()
        except UnknownTopic:
            return False
        return True

    def _prepared(self, attempt: str, append_id: str | None, id_: str) -> AppendAttempt:
        if append_id is not None:
            raise BadArgument("append_id", append_id, "an attempt has its own; give one of the two")
        return AppendAttempt.load(attempt, self.topic, id_)

    async def _check_not_shared(self, operation: str) -> None:
        """Raise TopicShared if readers of the topic would see an append that was refused."""
        if await self._topology.is_shared():
            raise TopicShared(self.topic, operation)

    async def _check_token(self, text: str | None) -> None:
        """Check that the log has what a token names: of this topic, or, if it names nothing of it, of all topics."""
        if text is None:
            return
        token = ConsistencyToken.parse(text)
        mine = token.of_topic(self.topic)
        await check_token(self._log, ConsistencyToken(mine) if mine else token)

    def _written(self, position: Position) -> WrittenPosition:
        return WrittenPosition.at(position, self._topology.topic_id)

    def _check_writable(self, operation: str) -> None:
        if self._is_read_only:
            raise ReadOnlyHandle(f"{operation} in topic {self.topic!r}", "the journal")


def _numbered(payloads: Sequence[Payload], tags: Sequence[str], first: int) -> tuple[Event, ...]:
    return check_events([Event(first + n, payload, tags) for n, payload in enumerate(payloads)])  # type: ignore[arg-type]


async def _events_of(pages: EventPages) -> AsyncGenerator[StoredEvent, None]:
    async for page in pages:
        for event in page:
            yield event
