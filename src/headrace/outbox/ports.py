"""What plugs into the outbox: serializers, and what turns a stored message back into something to look at."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

__all__ = ["BackendName", "Delivery", "MessageDecoder", "PoisonPolicy", "Serializer"]

BackendName: TypeAlias = Literal["db", "kafka", "kafka_async"]
Delivery: TypeAlias = Literal["at_least_once", "exactly_once"]
PoisonPolicy: TypeAlias = Literal["skip", "block_key", "block_topic"]


class Serializer(Protocol):
    """Turns a payload into bytes, before anything is stored.

    Promises: what does not fit raises, in the caller's transaction. None is a tombstone and is never handed in.
    """

    def serialize(self, value: Any) -> bytes | None:  # noqa: ANN401 - each serializer knows its values
        """Return the message's bytes."""
        ...


class MessageDecoder(Protocol):
    """Turns a stored message into something a person can read, for `log_topics`."""

    def decode(self, topic: str, message: bytes) -> object:
        """Return what the message says; may raise."""
        ...
