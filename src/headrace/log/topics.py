"""Topics that are created or re-configured on demand."""

from __future__ import annotations

import msgspec

from headrace.errors import TopicExists, UnknownTopic, WrongPartitionCount
from headrace.log.ports import Admin
from headrace.model import Topic, TopicConfig

__all__ = ["ensure_topic"]

# Properties that a log may add to a topic that it creates, depending on the number of brokers.
_OF_THE_LOG = frozenset({"min.insync.replicas"})


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
            found = await admin.describe(topic)
    if found.partitions != partitions:
        raise WrongPartitionCount(topic, partitions, found.partitions)
    return found if _is_as(found.config, config) else await admin.configure(topic, config)


def _is_as(found: TopicConfig, wanted: TopicConfig) -> bool:
    """Return True if a topic is configured as wanted, apart from properties that the log itself added."""
    extra = {name: value for name, value in found.extra.items() if name in wanted.extra or name not in _OF_THE_LOG}
    return msgspec.structs.replace(found, extra=extra) == wanted
