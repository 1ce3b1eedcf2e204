"""Events of a journal: as applications write them, and as they come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

__all__ = ["MAX_SEQ_NR", "Event", "Payload", "StoredEvent"]

MAX_SEQ_NR = (1 << 63) - 1

# None is no payload, bytes are binary, str is text, and anything else that JSON can carry is JSON.
Payload: TypeAlias = Any


class Event(msgspec.Struct, frozen=True):
    """Something that happened to an entity, with its number in the entity's journal, from 1 on."""

    seq_nr: int
    payload: Payload = None
    tags: tuple[str, ...] = ()


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it was read, with the record that brought it.

    `metadata` is the record's own, `payload_metadata` goes with the payloads; both are the same for all events of
    one append.
    """

    seq_nr: int
    payload: Payload
    tags: tuple[str, ...]
    partition: int
    offset: int
    timestamp_ms: int
    metadata: Any = None
    payload_metadata: Any = None
    expire_after: str | None = None
    headers: Mapping[str, str] = {}
    origin: str | None = None
    version: str | None = None
