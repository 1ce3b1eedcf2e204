"""Making sure that a topic is there and is as it should be."""

from __future__ import annotations

from headrace.errors import TopicExists, UnknownTopic, WrongPartitionCount
from headrace.log.ports import Admin
from headrace.model import Topic, TopicConfig

__all__ = ["ensure_topic"]


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
    return found if found.config == config else await admin.configure(topic, config)
