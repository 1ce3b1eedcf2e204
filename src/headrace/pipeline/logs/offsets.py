"""Offsets by partition, and as Spark's JSON. Processes that only plan for Spark import this, so it imports little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from headrace.model import TopicPartition

__all__ = ["Offsets", "assigned", "decode_offsets", "encode_offsets", "items"]

Offsets: TypeAlias = Mapping[TopicPartition, int]

_decode = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


def encode_offsets(offsets: Offsets) -> str:
    """Return offsets as JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for at, offset in sorted(offsets.items()):
        by_topic.setdefault(at.topic, {})[str(at.partition)] = offset
    return msgspec.json.encode(by_topic).decode()


def assigned(offsets: Offsets) -> str:
    """Return the partitions as JSON, by topic."""
    by_topic: dict[str, list[int]] = {}
    for at in sorted(offsets):
        by_topic.setdefault(at.topic, []).append(at.partition)
    return msgspec.json.encode(by_topic).decode()


def decode_offsets(text: str | bytes) -> dict[TopicPartition, int]:
    """Read offsets from JSON."""
    return dict(items(_decode(text)))


def items(by_topic: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the offsets of a decoded JSON object."""
    for topic, partitions in by_topic.items():
        for partition, offset in partitions.items():
            yield TopicPartition(topic, int(partition)), offset
