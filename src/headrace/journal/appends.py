"""Turning events into a record, whole and checked, before anything is written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from headrace.errors import BadArgument
from headrace.journal.actions import Append, PayloadFormat
from headrace.journal.headers import append_headers, encode_action, encode_user_headers
from headrace.journal.limits import MAX_METADATA_BYTES, MAX_VALUE_BYTES, check_expiry, check_option, check_size
from headrace.journal.payloads import Payloads, encode_binary_events, encode_events, encode_json, encode_value
from headrace.model import Event, Headers, NewRecord, TopicPartition
from headrace.observe import inject
from headrace.store import Place

__all__ = ["AppendOptions", "NewAppend", "new_append", "record_of"]

_TRACE_PARENT = "traceparent"
_canonical_json = msgspec.json.Encoder(order="deterministic").encode


class AppendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What goes with the events of one append."""

    metadata: object = None
    payload_metadata: object = None
    headers: Mapping[str, str] | None = None
    expire_after: timedelta | str | None = None
    origin: str | None = None
    version: str | None = None


class NewAppend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An append as its record will hold it, whatever becomes of the objects it was made from."""

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
        """Return it with the current span in its headers, unless the application gave one itself or there is none."""
        if any(name == _TRACE_PARENT for name, _ in self.headers):
            return self
        headers = inject(self.headers)
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
        """Return the record."""
        if append_id is None and expected is None and self.metadata is None:
            headers = append_headers(self.first, self.last, self.payload_format, self.origin, self.version)
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
    """Encode an append of events that are checked. Raises BadArgument for what no record can carry.

    With a digest it can be told from other appends that carry the same append id.
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
        digest=_digest_of(events) if with_digest else None,
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


def _digest_of(events: Sequence[Event]) -> str:
    """Return a text that is the same for the same events, whatever the order of the keys in their JSON."""
    parts = []
    for event in encode_events(events):
        payload = event.payload or b""
        if event.payload_type == "json":
            payload = _canonical_json(msgspec.json.decode(payload))
        parts.append((event.seq_nr, event.tags, event.payload_type, payload))
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def _value(events: Sequence[Event], options: AppendOptions) -> tuple[PayloadFormat, bytes]:
    if options.expire_after is None and options.payload_metadata is None:
        value = encode_binary_events(events)
        if value is not None:
            return "binary", value
    metadata = _json("payload_metadata", options.payload_metadata)
    return encode_value(Payloads(encode_events(events), check_expiry(options.expire_after), metadata))


def _json(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        encoded = encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(name, type(value).__name__, f"it must be what JSON can carry ({error})") from error
    check_size(name, len(encoded), MAX_METADATA_BYTES)
    return encoded
