"""Appends: the record of an append, and writing it, unchecked or checked against what the journal holds."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from headrace.errors import (
    AppendIdReused,
    BadArgument,
    HeadraceError,
    JournalHeld,
    OperationFailed,
    ReadAgain,
    RecordsLost,
    Unavailable,
    VoidAppend,
    WrongSeqNr,
)
from headrace.journal.attempts import AppendAttempt, RememberedAppends, Tries
from headrace.journal.read import JournalReader
from headrace.journal.topology import Routed, Topology
from headrace.journal.traces import with_trace_context
from headrace.journal.window import KnownJournalState, without_skipped
from headrace.log import Log
from headrace.model import Event, Headers, NewRecord, Position, TopicPartition, WrittenPosition
from headrace.observe import inject
from headrace.protocol import (
    MAX_METADATA_BYTES,
    MAX_VALUE_BYTES,
    Append,
    AppendValue,
    Delete,
    Effect,
    Entry,
    Layout,
    PayloadFormat,
    Purge,
    Step,
    append_headers,
    check_expiry,
    check_option,
    check_size,
    encode_action,
    encode_binary_events,
    encode_events,
    encode_json,
    encode_json_payload,
    encode_user_headers,
    encode_value,
    pointer_of,
    step,
)
from headrace.runtime import crash_point
from headrace.store import JournalMeta, Place

__all__ = [
    "AppendOptions",
    "AppendedEvents",
    "JournalWriter",
    "NewAppend",
    "json_event_record",
    "new_append",
    "record_of",
]

_canonical_json = msgspec.json.Encoder(order="deterministic").encode


class AppendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an append: what goes with its events."""

    metadata: object = None
    payload_metadata: object = None
    headers: Mapping[str, str] | None = None
    expire_after: timedelta | str | None = None
    origin: str | None = None
    version: str | None = None


class AppendedEvents(tuple[Event, ...]):
    """The events of an append with their numbers. `position` is that of their record, with its consistency token."""

    position: WrittenPosition

    @classmethod
    def at(cls, events: Sequence[Event], position: WrittenPosition) -> AppendedEvents:
        """Return events that were written at a position."""
        appended = cls(events)
        appended.position = position
        return appended

    @property
    def token(self) -> str:
        """The consistency token for reads that must show these events."""
        return self.position.token


class NewAppend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An append in encoded form, so that later changes to the objects it was made from do not matter."""

    first: int
    last: int
    payload_format: PayloadFormat
    value: bytes
    metadata: bytes | None = None
    headers: Headers = ()
    origin: str | None = None
    version: str | None = None
    digest: str | None = None

    def traced(self) -> NewAppend:
        """Return the append with the current span in its headers, unless the application gave one or there is none."""
        headers = with_trace_context(self.headers)
        return self if headers is self.headers else msgspec.structs.replace(self, headers=headers)

    def record(
        self,
        at: TopicPartition,
        id_: str,
        *,
        expected: int | None = None,
        append_id: str | None = None,
        since: Place | None = None,
    ) -> NewRecord:
        """Return the record to write."""
        if append_id is None and self.metadata is None and (expected is None or since is None):
            headers = append_headers(self.first, self.last, self.payload_format, self.origin, self.version, expected)
        else:
            action = Append(
                first=self.first,
                last=self.last,
                payload_format=self.payload_format,
                metadata=self.metadata,
                origin=self.origin,
                version=self.version,
                expected=expected,
                append_id=append_id,
                since=since,
                digest=self.digest if append_id is not None else None,
            )
            headers = encode_action(action)
        if self.headers:
            headers += self.headers
        return NewRecord(at.topic, id_.encode(), self.value, headers, at.partition)


def new_append(events: Sequence[Event], options: AppendOptions, *, with_digest: bool = False) -> NewAppend:
    """Encode an append of checked events. Raises BadArgument for what no record can carry.

    The digest tells it from other appends that have the same append id.
    """
    payload_format, value = _value(events, options)
    check_size("events", len(value), MAX_VALUE_BYTES)
    return NewAppend(
        first=events[0].seq_nr,
        last=events[-1].seq_nr,
        payload_format=payload_format,
        value=value,
        metadata=_json("metadata", options.metadata),
        headers=encode_user_headers(options.headers) if options.headers is not None else (),
        origin=check_option("origin", options.origin),
        version=check_option("version", options.version),
        digest=_digest_of(events, options) if with_digest else None,
    )


def record_of(
    at: TopicPartition,
    id_: str,
    events: Sequence[Event],
    options: AppendOptions,
    *,
    expected: int | None = None,
    append_id: str | None = None,
    since: Place | None = None,
) -> NewRecord:
    """Return the record of an append."""
    return new_append(events, options).record(at, id_, expected=expected, append_id=append_id, since=since)


def json_event_record(
    at: TopicPartition, id_: str, seq_nr: int, payload: bytes, *, origin: str | None, expected: int
) -> NewRecord:
    """Return the record of an append of one event whose payload is JSON already, with the current span if there is one.

    It is the record of `new_append` and `NewAppend.record` without any other option, in a fraction of their time.
    """
    value = encode_json_payload(seq_nr, payload)
    check_size("events", len(value), MAX_VALUE_BYTES)
    headers = append_headers(seq_nr, seq_nr, "json", origin, None, expected)
    return NewRecord(at.topic, id_.encode(), value, inject(headers), at.partition)


def _digest_of(events: Sequence[Event], options: AppendOptions) -> str:
    """Return a text that is equal for equal events and metadata, whatever the order of the keys in their JSON.

    Headers do not count: traces are among them, which differ from try to try.
    """
    parts: list[object] = []
    for event in encode_events(events):
        payload = event.payload or b""
        if event.payload_type == "json":
            payload = _canonical_json(msgspec.json.decode(payload))
        parts.append((event.seq_nr, event.tags, event.payload_type, payload))
    if options.metadata is not None or options.payload_metadata is not None:
        given = (options.metadata, options.payload_metadata)
        # Decoded first: only there are all keys text, which can be put in order.
        parts.append(tuple(_canonical_json(msgspec.json.decode(encode_json(each))) for each in given))
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def _value(events: Sequence[Event], options: AppendOptions) -> tuple[PayloadFormat, bytes]:
    if options.expire_after is None and options.payload_metadata is None:
        value = encode_binary_events(events)
        if value is not None:
            return "binary", value
    metadata = _json("payload_metadata", options.payload_metadata)
    return encode_value(AppendValue(encode_events(events), check_expiry(options.expire_after), metadata))


def _json(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        encoded = encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(name, type(value).__name__, f"it must be what JSON can carry ({error})") from error
    check_size(name, len(encoded), MAX_METADATA_BYTES)
    return encoded


_REMEMBERED = 100_000


class JournalWriter:
    """Writes the journals of one topic."""

    def __init__(self, log: Log, topology: Topology, reader: JournalReader) -> None:
        self._log = log
        self._topology = topology
        self._reader = reader
        self._in_order = asyncio.Lock()
        self._waiting = 0
        self._written: OrderedDict[str, int] = OrderedDict()
        self._appends = RememberedAppends()

    async def append(self, id_: str, append: NewAppend) -> Position:
        """Write events without checking the journal. Raises WrongSeqNr for numbers that this instance has written."""
        if append.first <= self._written.get(id_, 0):
            await self._refuse_known(id_, append.first)
        routed = self._topology.routed(id_) if not self._waiting else None
        if routed is None:
            routed = await self._find_route(id_)
        self._topology.check_unclaimed("append")
        before = routed.end.offset
        (position,) = await self._log.append([append.record(routed.route.at, id_)])
        if not routed.end.rises(before, position.offset) or time.monotonic() > routed.safe_until_s:
            return await self.settle_late(id_, append, routed, position, before)
        self.remember(id_, append.last)
        return position

    def plain_record(self, id_: str, events: Sequence[Event], origin: str | None) -> tuple[NewRecord, Routed] | None:
        """Return the record of an append without options that can go to the log at once, and its route.

        None if the append must go the general way: its events are not plain binary ones, or something has to be looked
        at or waited for first. It is the record that `new_append` and `NewAppend.record` make. The caller writes it in
        the same turn of the event loop, then calls `settle_late` if the route is no longer safe or the partition's end
        has not risen, else `remember`.
        """
        first = events[0].seq_nr
        if self._waiting or first <= self._written.get(id_, 0) or self._topology.is_claimed:
            return None
        routed = self._topology.routed(id_)
        value = encode_binary_events(events) if routed is not None else None
        if routed is None or value is None or len(value) > MAX_VALUE_BYTES:
            return None
        at = routed.route.at
        headers = append_headers(first, events[-1].seq_nr, "binary", origin, None)
        return NewRecord(at.topic, id_.encode(), value, headers, at.partition), routed

    async def settle_late(
        self, id_: str, append: NewAppend, routed: Routed, position: Position, before: int
    ) -> Position:
        """Return where an append counts that was acknowledged when its route was no longer safe.

        `before` was the end of its partition before it was written.
        """
        if await self._is_stray(id_, routed, position, before):
            return await self.append_checked(id_, append, expected=None)
        self.remember(id_, append.last)
        return position

    async def write(self, id_: str, action: Delete | Purge) -> Position:
        """Write an action that has no events."""
        headers = encode_action(action)
        while True:
            routed = await self._topology.find_route(id_)
            self._topology.check_unclaimed("delete" if isinstance(action, Delete) else "purge")
            at, before = routed.route.at, routed.end.offset
            (position,) = await self._log.append([NewRecord(at.topic, id_.encode(), None, headers, at.partition)])
            if not await self._is_stray(id_, routed, position, before):
                return position

    async def prepare(self, id_: str, append_id: str | None = None) -> AppendAttempt:
        """Read the journal's state before an append that may have to be tried again. Raises JournalHeld."""
        layout = await self._topology.layout(creates=True)
        known, end, is_same = await self._known_before(id_, layout)
        if not is_same:
            layout = await self._topology.refresh()
            known, end, _ = await self._known_before(id_, layout)
        stored = known.stored
        if stored is not None and stored.held_from is not None:
            raise _held(id_, stored, stored.held_from)
        return AppendAttempt.of(layout.topic, id_, Place(layout.generation, end), known, append_id=append_id)

    async def _known_before(self, id_: str, layout: Layout) -> tuple[KnownJournalState, int, bool]:
        """Return what the store has of a journal, its partition's end, and False if that lies below what is known."""
        at = layout.route(id_)
        before = self._topology.end_of(at).offset
        known = await self._reader.known(id_, layout)
        end = (await self._log.bounds(at)).high_watermark
        replicated = layout.of_topic(known.replicated.get(at))
        is_beyond = replicated is not None and replicated.offset >= end
        return known, end, self._topology.end_of(at).rises(before - 1, end - 1) and not is_beyond

    async def append_checked(self, id_: str, append: NewAppend, *, expected: int | None) -> Position:
        """Write events and check that they count. Raises WrongSeqNr, VoidAppend, JournalHeld."""
        return await self._try(await self.prepare(id_), append, expected)

    async def append_once(self, id_: str, append: NewAppend, *, expected: int | None, append_id: str) -> Position:
        """Write events at most once, whatever the outcome of this instance's earlier tries with the same append id.

        Raises what `append_checked` raises, and AppendIdReused.
        """
        digest = append.digest or ""
        if (known := self._appends.landed(id_, append_id, digest)) is not None:
            return known
        tries = self._appends.begin(id_, append_id, digest)
        is_open, landed = tries.is_open, None
        try:
            attempt = await self._attempt_of(tries)
            is_open = True  # until there is an answer, also if a cancellation ends this
            landed = await self._try(attempt, append, expected)
            is_open = False
        except (WrongSeqNr, VoidAppend, AppendIdReused):  # the fold has seen every try
            is_open = False
            raise
        except HeadraceError as error:
            is_unknown = isinstance(error, Unavailable) and not error.outcome_known
            is_open = is_unknown or tries.is_open  # that this try wrote nothing says nothing about earlier ones
            raise
        finally:
            self._appends.end(tries, is_open=is_open, landed=landed)
        return landed

    async def append_attempt(self, attempt: AppendAttempt, append: NewAppend, *, expected: int | None) -> Position:
        """Write the events of a prepared attempt, perhaps again, and check that they count."""
        return await self._try(attempt, append, expected)

    def remember(self, id_: str, seq_nr: int) -> None:
        """Remember the last number that was written to a journal."""
        written = self._written
        if seq_nr > written.get(id_, 0):
            written[id_] = seq_nr
        written.move_to_end(id_)
        if len(written) > _REMEMBERED:
            written.popitem(last=False)

    def forget(self, id_: str) -> None:
        """Forget the numbers that were written to a journal, because it was purged."""
        self._written.pop(id_, None)

    async def _attempt_of(self, tries: Tries) -> AppendAttempt:
        """Return the attempt, which holds what was known before the first try."""
        if tries.attempt is None:
            prepared = await self.prepare(tries.id, tries.append_id)
            tries.attempt = tries.attempt or prepared  # another call may have been faster, and has written since
        return tries.attempt

    async def _try(self, attempt: AppendAttempt, append: NewAppend, expected: int | None) -> Position:
        crash_point("append.before-write")
        position = await self._write_attempt(attempt, append, expected)
        crash_point("append.written")
        try:
            landed = await self._outcome(attempt, position, expected, append.digest)
        except (WrongSeqNr, VoidAppend, AppendIdReused):
            raise
        except HeadraceError as error:
            # The record is in the log, so the error must not mean "nothing was done". Behind a hold it may count later.
            what = f"checking the append to {attempt.id!r}"
            raise OperationFailed(what, _why_unknown(error), outcome_known=False) from error
        self.remember(attempt.id, append.last)
        return landed

    async def _find_route(self, id_: str) -> Routed:
        """Find out where to write; appends that began one after another continue, and reach the log, in that order."""
        self._waiting += 1
        try:
            async with self._in_order:
                return await self._topology.find_route(id_)
        finally:
            self._waiting -= 1

    async def _is_stray(self, id_: str, routed: Routed, position: Position, before: int) -> bool:
        try:
            return await self._topology.is_stray(id_, routed, position.offset, before=before)
        except HeadraceError as error:  # the record is in the log, so the error must not mean "nothing was done"
            raise OperationFailed(f"checking what was written to {id_!r}", str(error), outcome_known=False) from error

    async def _write_attempt(self, attempt: AppendAttempt, append: NewAppend, expected: int | None) -> Position:
        while True:
            routed = await self._topology.find_route(attempt.id)
            self._topology.check_unclaimed("append")
            record = append.record(
                routed.route.at, attempt.id, expected=expected, append_id=attempt.append_id, since=attempt.since
            )
            before = routed.end.offset
            (position,) = await self._log.append([record])
            if not await self._is_stray(attempt.id, routed, position, before):
                return position

    async def _refuse_known(self, id_: str, first: int) -> None:
        """Raise WrongSeqNr for numbers that this instance has written, unless the journal has been purged since."""
        pointer = pointer_of((await self._reader.view(id_)).meta)
        if first <= pointer:
            raise WrongSeqNr(id_, first - 1, pointer)
        self.forget(id_)

    async def _outcome(
        self, attempt: AppendAttempt, position: Position, expected: int | None, digest: str | None
    ) -> Position:
        """Fold the log from what was known before the first attempt up to the record just written."""
        id_, meta = attempt.id, attempt.stored
        is_reused = False
        for entry in without_skipped(await self._entries(id_, attempt.known, position.offset)):
            if meta is not None and entry.place <= meta.place:
                continue
            done = step(meta, entry)
            is_ours = isinstance(entry.action, Append) and entry.action.append_id == attempt.append_id
            if is_ours and done.effect is Effect.APPENDED:
                if _has_digest(entry, digest):
                    return Position(position.topic, entry.partition, entry.offset, entry.timestamp_ms)
                is_reused = True
            if entry.offset == position.offset and entry.partition == position.partition:
                raise _refusal(attempt, meta, expected, done, is_reused=is_reused)
            meta = done.meta
        raise VoidAppend(id_, "its record was not found in the log again")

    async def _entries(self, id_: str, known: KnownJournalState, up_to: int) -> list[Entry]:
        """Return all entries of the journal since then, from the log and not from the head cache.

        The log still has what the cache dropped because it was replicated or because a purge came after it.
        """
        layout = await self._topology.layout()
        windows = await self._reader.windows(id_, layout, known, up_to, scan=False)
        if windows is None or any(isinstance(entry.action, Purge) for window in windows for entry in window.entries):
            windows = await self._reader.windows(id_, await self._topology.refresh(), known, up_to, scan=True)
        if windows is None:
            raise ReadAgain(id_, "the topic grew while the append was checked")
        return [entry for window in windows for entry in window.entries]


def _has_digest(entry: Entry, digest: str | None) -> bool:
    """Return True if an append has that digest, or if one of the two is not known."""
    written = entry.action.digest if isinstance(entry.action, Append) else None
    return written is None or digest is None or written == digest


def _refusal(
    attempt: AppendAttempt, before: JournalMeta | None, expected: int | None, done: Step, *, is_reused: bool
) -> AppendIdReused | JournalHeld | WrongSeqNr | VoidAppend:
    """Return the error for an append that does not count; `before` is the journal's state before the append."""
    if done.effect is Effect.HELD and done.meta is not None and done.meta.held_from is not None:
        return _held(attempt.id, done.meta, done.meta.held_from)
    if is_reused:
        return AppendIdReused(attempt.id, attempt.append_id)
    pointer = pointer_of(before)
    if expected is not None and expected != pointer:
        return WrongSeqNr(attempt.id, expected, pointer)
    return VoidAppend(attempt.id, done.reason)


def _why_unknown(error: HeadraceError) -> str:
    if not isinstance(error, RecordsLost):
        return str(error)
    gone = f"offsets {error.first} to {error.last} of {error.topic}[{error.partition}]"
    return f"{gone} have left the log since the append was first tried; read the journal to see whether it is there"


def _held(id_: str, meta: JournalMeta, offset: int) -> JournalHeld:
    return JournalHeld(id_, meta.topic, meta.partition, offset, "a record can't be decoded")
