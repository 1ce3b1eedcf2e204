"""Turning events into a record, and refusing what could never be one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from headrace.errors import BadArgument
from headrace.journal.actions import Append, PayloadFormat
from headrace.journal.durations import duration_of, duration_text
from headrace.journal.headers import append_headers, encode_action, is_utf8
from headrace.journal.payloads import Payloads, checked_json, encode_binary_events, encode_events, encode_value
from headrace.model import MAX_SEQ_NR, Event, NewRecord, TopicPartition
from headrace.store import Place

__all__ = ["AppendOptions", "check_events", "check_id", "digest_of", "record_of"]

_canonical_json = msgspec.json.Encoder(order="deterministic").encode


class AppendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What goes with the events of one append."""

    metadata: object = None
    payload_metadata: object = None
    headers: Mapping[str, str] = {}
    expire_after: timedelta | str | None = None
    origin: str | None = None
    version: str | None = None


def check_id(id_: str) -> str:
    """Return the id if it can be a journal's."""
    if not id_ or not is_utf8(id_):
        raise BadArgument("id", id_, "a journal needs an id, of text that UTF-8 can carry")
    return id_


def check_events(events: Sequence[Event]) -> None:
    """Refuse no events, and numbers that are not positive or do not rise."""
    if not events:
        raise BadArgument("events", list(events), "an append holds at least one event")
    before = 0
    for event in events:
        seq_nr = event.seq_nr
        if type(seq_nr) is not int or not before < seq_nr <= MAX_SEQ_NR:
            raise _bad_number(seq_nr, before)
        before = seq_nr
        if event.tags != ():
            _check_tags(event)


def _bad_number(seq_nr: object, before: int) -> BadArgument:
    if type(seq_nr) is not int or not 1 <= seq_nr <= MAX_SEQ_NR:
        return BadArgument("seq_nr", seq_nr, f"numbers go from 1 to {MAX_SEQ_NR}")
    return BadArgument("seq_nr", seq_nr, f"it must be above {before}, the number before it in the append")


def _check_tags(event: Event) -> None:
    """Refuse what would be written as something else than a list of texts, and hold the journal."""
    tags: object = event.tags
    if isinstance(tags, str):
        raise BadArgument("tags", tags, "they are a tuple of texts, as in tags=('vip',)")
    for tag in event.tags:
        if not isinstance(tag, str) or not is_utf8(tag):
            raise BadArgument(f"tag of event {event.seq_nr}", tag, "a tag is text that UTF-8 can carry")


def record_of(
    at: TopicPartition,
    id_: str,
    events: Sequence[Event],
    options: AppendOptions,
    *,
    expected: int | None = None,
    append_id: str | None = None,
    since: Place | None = None,
    digest: str | None = None,
) -> NewRecord:
    """Return the record of an append."""
    payload_format, value = _value(events, options)
    first, last = events[0].seq_nr, events[-1].seq_nr
    if append_id is None and expected is None and options.metadata is None and not options.headers:
        headers = append_headers(first, last, payload_format, options.origin, options.version)
    else:
        action = Append(
            first=first,
            last=last,
            payload_format=payload_format,
            metadata=_json("metadata", options.metadata),
            origin=options.origin,
            version=options.version,
            expected=expected,
            append_id=append_id,
            since=since,
            digest=digest,
        )
        headers = encode_action(action, options.headers)
    return NewRecord(at.topic, id_.encode(), value, headers, at.partition)


def digest_of(events: Sequence[Event]) -> str:
    """Return a text that is the same for the same events, whatever the order of the keys in their JSON."""
    parts = []
    for event, encoded in zip(events, encode_events(events), strict=True):
        payload = _canonical_json(event.payload) if encoded.payload_type == "json" else encoded.payload
        parts.append((encoded.seq_nr, encoded.tags, encoded.payload_type, payload))
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def _value(events: Sequence[Event], options: AppendOptions) -> tuple[PayloadFormat, bytes]:
    if options.expire_after is None and options.payload_metadata is None:
        value = encode_binary_events(events)
        if value is not None:
            return "binary", value
    metadata = _json("payload_metadata", options.payload_metadata)
    return encode_value(Payloads(encode_events(events), _expiry(options.expire_after), metadata))


def _expiry(expire_after: timedelta | str | None) -> str | None:
    if expire_after is None:
        return None
    return duration_text(duration_of(expire_after) if isinstance(expire_after, str) else expire_after)


def _json(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        return checked_json(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(name, type(value).__name__, f"it must be what JSON can carry ({error})") from error
