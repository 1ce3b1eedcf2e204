"""Payloads that need no schema: bytes as they are, and JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import BadArgument
from headrace.outbox.keys import encode_text

__all__ = ["BytesSerializer", "JsonDecoder", "JsonSerializer"]


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
    """JSON, keys in the order given; takes what msgspec takes: dicts, dataclasses, datetimes, UUIDs …"""

    def serialize(self, value: Any) -> bytes:  # noqa: ANN401
        """Return the JSON."""
        try:
            return msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadArgument("payload", value, f"JSON can't hold it: {error}") from error


class JsonDecoder:
    """Shows JSON."""

    def decode(self, topic: str, message: bytes) -> object:
        """Return what the JSON says."""
        return msgspec.json.decode(message)
