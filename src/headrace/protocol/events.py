"""Decoding events from rows of the store and from records of the log; both give the same event."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from headrace.errors import BadArgument, IntegrityBroken, JournalHeld
from headrace.model import Record, StoredEvent
from headrace.protocol.actions import Append, duration_of
from headrace.protocol.headers import user_headers
from headrace.protocol.payloads import AppendValue, Encoded, binary_event, binary_payload, decode_payload, decode_value
from headrace.store import MAX_PAYLOAD_BYTES, EventRow, why_tags_are_refused

__all__ = ["decode_append", "event_of_row", "events_of_record", "events_of_records", "stored_event"]


class _RowMetadata(msgspec.Struct, frozen=True):
    header: dict[str, object] = {}
    payload: dict[str, object] = {}


_decode_metadata = msgspec.json.Decoder(_RowMetadata).decode
_NO_METADATA = _RowMetadata()


def event_of_row(row: EventRow) -> StoredEvent:
    """Return the event that a row of the store holds. Raises ValueError if it can't be decoded."""
    metadata = _decode_metadata(row.metadata) if row.metadata else _NO_METADATA
    expire_after = metadata.payload.get("expireAfter")
    return StoredEvent(
        row.seq_nr,
        decode_payload(row.payload_type, row.payload),
        row.tags,
        row.partition,
        row.offset,
        row.timestamp_ms,
        metadata.header.get("data"),
        metadata.payload.get("data"),
        expire_after if isinstance(expire_after, str) else None,
        row.headers,
        row.origin,
        row.version,
    )


def stored_event(id_: str, row: EventRow) -> StoredEvent:
    """Return the event that a row of a journal holds. Raises IntegrityBroken if it can't be decoded."""
    try:
        return event_of_row(row)
    except ValueError as error:
        raise IntegrityBroken(id_, row.seq_nr, f"its row can't be decoded ({error})") from error


def decode_append(append: Append, value: bytes | None) -> AppendValue:
    """Return the value of an append's record. Raises ValueError if it can't be decoded or contradicts the header."""
    decoded = decode_value(append.payload_format, value)
    events = decoded.events
    if not events or events[0].seq_nr != append.first or events[-1].seq_nr != append.last:
        numbers = [event.seq_nr for event in events[:3]]
        raise ValueError(f"the header says events {append.first} to {append.last}, the value holds {numbers}…")
    if len(events) > 1 and any(later.seq_nr <= earlier.seq_nr for earlier, later in itertools.pairwise(events)):
        raise ValueError("the numbers of its events do not rise")
    for event in events:
        _check_storable(event)
    if decoded.expire_after is not None:
        _check_duration(decoded.expire_after)
    return decoded


def events_of_record(id_: str, record: Record, action: Append) -> list[StoredEvent]:
    """Return the events that a record of the log holds. Raises JournalHeld if it can't be decoded."""
    plain = binary_event(record.value) if record.value is not None and action.payload_format == "binary" else None
    if plain is not None and plain[0] == action.first == action.last:
        return [_plain_event(record, action, *plain)]
    try:
        decoded = decode_append(action, record.value)
    except ValueError as error:
        raise JournalHeld(id_, record.topic, record.partition, record.offset, str(error)) from error
    headers = user_headers(record)
    metadata = msgspec.json.decode(action.metadata) if action.metadata else None
    payload_metadata = msgspec.json.decode(decoded.metadata) if decoded.metadata else None
    return [
        StoredEvent(
            event.seq_nr,
            decode_payload(event.payload_type, event.payload),
            event.tags,
            record.partition,
            record.offset,
            record.timestamp_ms,
            metadata,
            payload_metadata,
            decoded.expire_after,
            headers,
            action.origin,
            action.version,
        )
        for event in decoded.events
    ]


def events_of_records(id_: str, records: Iterable[Record], actions: Iterable[Append]) -> list[StoredEvent]:
    """Return the events of records, each with its action, as `events_of_record` does; single binary ones in one go."""
    events: list[StoredEvent] = []
    for record, action in zip(records, actions, strict=True):
        value, seq_nr = record.value, action.first
        payload = None
        if value is not None and seq_nr == action.last and action.metadata is None and len(record.headers) == 1:
            payload = binary_payload(value, seq_nr) if action.payload_format == "binary" else None
        if payload is None:
            events += events_of_record(id_, record, action)
            continue
        events.append(
            StoredEvent(
                seq_nr,
                payload,
                (),
                record.partition,
                record.offset,
                record.timestamp_ms,
                None,
                None,
                None,
                {},
                action.origin,
                action.version,
            )
        )
    return events


def _plain_event(record: Record, action: Append, seq_nr: int, payload: bytes) -> StoredEvent:
    return StoredEvent(
        seq_nr,
        payload,
        (),
        record.partition,
        record.offset,
        record.timestamp_ms,
        msgspec.json.decode(action.metadata) if action.metadata else None,
        None,
        None,
        user_headers(record),
        action.origin,
        action.version,
    )


def _check_storable(event: Encoded) -> None:
    """Raise ValueError for an event that no store accepts: it holds its own journal, not the whole partition."""
    if event.tags and (reason := why_tags_are_refused(event.tags)) is not None:
        raise ValueError(f"event {event.seq_nr}: {reason}")
    if event.payload is not None and len(event.payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"event {event.seq_nr}: {len(event.payload)} bytes, a store takes {MAX_PAYLOAD_BYTES}")


def _check_duration(text: str) -> None:
    try:
        duration_of(text)
    except BadArgument as error:
        raise ValueError(str(error)) from error
