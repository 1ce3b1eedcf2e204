"""Keys as bytes, always the same ones, and the bucket a key belongs to."""

from __future__ import annotations

import decimal
import uuid
from typing import Any

import msgspec

from headrace.errors import BadArgument
from headrace.model import partition_of

__all__ = ["bucket_of", "encode_key", "encode_text"]

_encoder = msgspec.json.Encoder(order="sorted")


def encode_key(key: Any) -> bytes | None:  # noqa: ANN401 - keys are what applications have
    """Return the one encoding of a key: bytes as they are, text, numbers and UUIDs as text, structures as sorted JSON.

    A float is refused: 1.0 and 1 are equal, and would be two keys.
    """
    if key is None:
        return None
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if isinstance(key, str):
        return encode_text("key", key)
    if isinstance(key, bool | float):
        raise BadArgument("key", key, "a key is bytes, text, a whole number, a UUID or a structure of these")
    if isinstance(key, int | uuid.UUID | decimal.Decimal):
        return str(key).encode()
    try:
        return _encoder.encode(key)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArgument("key", key, f"it has no JSON form: {error}") from error


def encode_text(name: str, words: str) -> bytes:
    """Return the text as UTF-8. Raises BadArgument for what has no UTF-8, as half of a surrogate pair."""
    try:
        return words.encode()
    except UnicodeEncodeError as error:
        raise BadArgument(name, words, f"it has no UTF-8: {error.reason}") from error


def bucket_of(order_key: bytes | None, event_id: str, buckets: int) -> int:
    """Return the bucket: messages of one order key share it, those without a key are spread."""
    return 0 if buckets == 1 else partition_of(event_id.encode() if order_key is None else order_key, buckets)
