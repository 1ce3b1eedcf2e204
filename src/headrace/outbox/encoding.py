"""From what the application gives to a row: encoded, sized and checked before anything is stored."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from headrace.errors import RecordTooLarge
from headrace.model import NewRecord, check_topic_name, size_of
from headrace.observe import inject
from headrace.outbox.headers import as_headers, dump_headers, with_event_id
from headrace.outbox.keys import bucket_of, encode_key
from headrace.outbox.messages import EncodedMessage, Message, event_time_ms
from headrace.outbox.ports import Serializer
from headrace.outbox.serializers import BytesSerializer
from headrace.outbox.settings import OutboxSettings

__all__ = ["Encoding"]


class Encoding:
    """Encodes the messages of one topic. What does not fit raises here, in the caller's transaction."""

    def __init__(
        self,
        topic: str,
        settings: OutboxSettings,
        *,
        serializer: Serializer | None = None,
        key_serializer: Serializer | None = None,
    ) -> None:
        self.topic = check_topic_name(topic)
        self._serializer = serializer or BytesSerializer()
        self._key_serializer = key_serializer
        self._buckets = settings.buckets_of(topic)
        self._limit_bytes = settings.limit_of(topic)

    def encode_all(self, messages: Iterable[Message]) -> list[EncodedMessage]:
        """Encode the messages, all or none."""
        return [self.encode(message) for message in messages]

    def encode(self, message: Message) -> EncodedMessage:
        """Encode one message."""
        value = None if message.payload is None else self._serializer.serialize(message.payload)
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
        return self._key_serializer.serialize(key)

    def _check_size(self, key: bytes | None, value: bytes | None, headers: str | None, event_id: str) -> None:
        size_bytes = size_of(NewRecord(self.topic, key, value, with_event_id(headers, event_id)))
        if size_bytes > self._limit_bytes:
            raise RecordTooLarge(self.topic, size_bytes, self._limit_bytes)
