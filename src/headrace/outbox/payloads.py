"""Payloads: the serializers that need no schema, and from what an application gives to a checked row."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.config import OutboxSettings
from headrace.errors import BadArgument, RecordTooLarge
from headrace.model import NewRecord, check_topic_name, size_of
from headrace.observe import inject
from headrace.outbox.messages import (
    EncodedMessage,
    Message,
    as_headers,
    bucket_of,
    dump_headers,
    encode_key,
    encode_text,
    event_time_ms,
    with_event_id,
)
from headrace.outbox.ports import Serializer
from headrace.protocol import encode_json

__all__ = ["BytesSerializer", "JsonDecoder", "JsonSerializer", "RowEncoder"]


class BytesSerializer:
    """Takes bytes, and text as UTF-8; anything else needs a serializer of its own."""

    def serialize(self, value: Any) -> bytes:  # noqa: ANN401
        """Return the bytes."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            return encode_text("payload", value)
        raise BadArgument("payload", value, "without a serializer it must be bytes, text or None")


class JsonSerializer:
    """JSON, keys in the order given; takes what msgspec takes: dicts, dataclasses, datetimes, UUIDs …

    What consumers would not read as it was given is refused, as in journals: NaN and infinity, deep nesting.
    """

    def serialize(self, value: Any) -> bytes:  # noqa: ANN401
        """Return the JSON."""
        try:
            return encode_json(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadArgument("payload", value, f"JSON can't hold it: {error}") from error


class JsonDecoder:
    """Shows JSON."""

    def decode(self, topic: str, message: bytes) -> object:
        """Return what the JSON says."""
        return msgspec.json.decode(message)


class RowEncoder:
    """Encodes the messages of one topic. What does not fit raises here, in the caller's transaction."""

    def __init__(
        self,
        topic: str,
        settings: OutboxSettings,
        *,
        serializer: Serializer | None = None,
        key_serializer: Serializer | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise BadArgument("topic", topic, "a topic's name is text")
        self.topic = check_topic_name(topic)
        self._serializer = _checked_serializer("serializer", serializer) or BytesSerializer()
        self._key_serializer = _checked_serializer("key_serializer", key_serializer)
        self._buckets = settings.buckets_of(topic)
        self._limit_bytes = settings.limit_of(topic)

    def encode_all(self, messages: Iterable[Message]) -> list[EncodedMessage]:
        """Encode the messages, all or none."""
        return [self.encode(message) for message in messages]

    def encode_given(self, messages: object) -> tuple[list[Message], list[EncodedMessage]]:
        """Return what the application gave as a list, and encoded. Raises BadArgument for anything but messages."""
        if isinstance(messages, str | bytes | Message) or not isinstance(messages, Iterable):
            raise BadArgument("messages", messages, "it must be a list of headrace.outbox.Message")
        given = list(messages)
        for message in given:
            if not isinstance(message, Message):
                raise BadArgument("messages", message, "each of them is a headrace.outbox.Message")
        return given, self.encode_all(given)

    def encode(self, message: Message) -> EncodedMessage:
        """Encode one message."""
        value = None if message.payload is None else _checked_bytes("payload", self._serializer, message.payload)
        key, partition_key = self._key(message.key), encode_key(message.partition_key)
        headers = dump_headers(inject(as_headers(message.headers)))
        event_id = str(uuid.uuid4())
        self._check_size(key, value, headers, event_id)
        bucket = bucket_of(key if partition_key is None else partition_key, event_id, self._buckets)
        event_time = event_time_ms(message.event_time)
        return EncodedMessage(self.topic, value, key, partition_key, headers, event_id, bucket, event_time)

    def _key(self, key: object) -> bytes | None:
        if key is None or self._key_serializer is None:
            return encode_key(key)
        return _checked_bytes("key", self._key_serializer, key)

    def _check_size(self, key: bytes | None, value: bytes | None, headers: str | None, event_id: str) -> None:
        size_bytes = size_of(NewRecord(self.topic, key, value, with_event_id(headers, event_id)))
        if size_bytes > self._limit_bytes:
            raise RecordTooLarge(self.topic, size_bytes, self._limit_bytes)


def _checked_serializer(name: str, serializer: Serializer | None) -> Serializer | None:
    if serializer is not None and (
        isinstance(serializer, type) or not callable(getattr(serializer, "serialize", None))
    ):
        raise BadArgument(name, serializer, "it needs a method serialize(value) -> bytes")
    return serializer


def _checked_bytes(name: str, serializer: Serializer, value: object) -> bytes | None:
    """Return what the serializer makes of the value; a database would store text as something else."""
    made: object = serializer.serialize(value)
    if isinstance(made, bytearray | memoryview):
        return bytes(made)
    if made is not None and not isinstance(made, bytes):
        raise BadArgument(name, value, f"{type(serializer).__name__} made {type(made).__name__} of it, and not bytes")
    return made
