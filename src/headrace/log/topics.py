"""Topics that are created or re-configured on demand."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.errors import TopicExists, UnknownTopic, WrongPartitionCount
from headrace.log.ports import Admin
from headrace.model import Topic, TopicConfig
from headrace.runtime import Backoff

__all__ = ["ensure_topic"]

# Properties that a log may add to a topic that it creates, depending on the number of brokers.
_OF_THE_LOG = frozenset({"min.insync.replicas"})

_BACKOFF = Backoff(first_s=0.02, limit_s=0.5)
_LOOKS = 20


async def ensure_topic(admin: Admin, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
    """Return the topic, created or re-configured to `config`. Any number of processes may do this at once.

    Partitions are never added here, because keys would move: raises WrongPartitionCount.
    """
    try:
        found = await admin.describe(topic)
    except UnknownTopic:
        try:
            return await admin.create(topic, partitions=partitions, config=config)
        except TopicExists:
            found = await _described(admin, topic)
    if found.partitions != partitions:
        raise WrongPartitionCount(topic, partitions, found.partitions)
    return found if _is_as(found.config, config) else await admin.configure(topic, config)


async def _described(admin: Admin, topic: str) -> Topic:
    """Return a topic that another process has just created: a broker may not show it for a moment."""
    for attempt in range(1, _LOOKS):
        try:
            return await admin.describe(topic)
        except UnknownTopic:
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
    return await admin.describe(topic)


def _is_as(found: TopicConfig, wanted: TopicConfig) -> bool:
    """Return True if a topic is configured as wanted, apart from properties that the log itself added."""
    extra = {name: value for name, value in found.extra.items() if name in wanted.extra or name not in _OF_THE_LOG}
    return msgspec.structs.replace(found, extra=extra) == wanted
