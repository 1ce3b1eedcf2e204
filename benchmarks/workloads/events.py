"""Events of 200 bytes under 1000 keys, the same in every run."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

__all__ = ["KEYS", "VALUE_BYTES", "Event", "events"]

KEYS = 1000
VALUE_BYTES = 200


class Event(NamedTuple):
    """What is written: a key and a value."""

    key: bytes
    value: bytes


def events(count: int, *, keys: int = KEYS, value_bytes: int = VALUE_BYTES) -> list[Event]:
    """Return `count` events, going round the keys. Values are random bytes: nothing compresses them away."""
    random = Random(2024)
    return [Event(b"key-%04d" % (nr % keys), random.randbytes(value_bytes)) for nr in range(count)]
