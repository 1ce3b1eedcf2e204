"""Kafka's default partitioner, so that every Kafka producer and Headrace send a key to the same partition."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


# By hand: the packages that offer this hash are drivers, or compute another murmur. The cache is there
# because applications use the same keys again and pure Python needs microseconds for each.
@lru_cache(maxsize=65_536)
def murmur2(key: bytes) -> int:
    """Return the unsigned 32-bit murmur2 of `key`, with Kafka's seed."""
    length = len(key)
    value = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = (int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ word
    if length > whole:
        value = ((value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER) & _MASK
    value = ((value ^ (value >> 13)) * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, of `partitions`, that holds `key`."""
    if partitions == 1:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions
