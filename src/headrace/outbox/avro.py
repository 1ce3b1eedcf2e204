"""Avro classes as payloads: `headrace.serde` behind the outbox's own ports."""

from __future__ import annotations

from typing import Any, Literal

from headrace.serde import Decoder, Encoder, Registry, Serde, subject_of

__all__ = ["AvroDecoder", "AvroSerializer"]


class AvroSerializer:
    """Encodes one class. Its schema is registered when it is made, so that publishing never waits for a registry.

    orders = outbox.producer("orders", serializer=await AvroSerializer.register(registry, "orders", OrderPlaced))
    """

    def __init__(self, encoder: Encoder[Any]) -> None:
        self._encoder = encoder

    @classmethod
    async def register(
        cls,
        registry: Registry,
        topic: str,
        kind: Any,  # noqa: ANN401 - a class, a hint or a Schema
        *,
        part: Literal["key", "value"] = "value",
    ) -> AvroSerializer:
        """Register the class as the topic's value, or key. Raises IncompatibleSchema."""
        subject = subject_of(topic, part)
        return cls(await Serde(registry, subject, kind).encoder())

    def serialize(self, value: Any) -> bytes | None:  # noqa: ANN401
        """Return the framed bytes. Raises NotEncodable, in the caller's transaction."""
        return self._encoder(value)


class AvroDecoder:
    """Shows Avro messages for `log_topics`; schemas are loaded before, as it must not wait."""

    def __init__(self, decoder: Decoder[Any]) -> None:
        self._decoder = decoder

    def decode(self, topic: str, message: bytes) -> object:
        """Return the value. Raises UnknownSchema, NotDecodable."""
        return self._decoder(message)
