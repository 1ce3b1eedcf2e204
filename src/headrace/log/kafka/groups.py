"""Consumer groups: joining them, and looking at their commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError

from headrace.log import checks
from headrace.log.kafka.catalogue import Catalogue
from headrace.log.kafka.cluster import Cluster
from headrace.log.kafka.members import KafkaMember
from headrace.log.ports import Listener, StartAt
from headrace.model import TopicPartition

__all__ = ["KafkaGroups"]

_SETTLE_S = 0.5
_ASK_AGAIN_S = 0.005


class KafkaGroups:
    """Kafka's Groups: the classic protocol, whose members choose their session time-out themselves."""

    def __init__(self, cluster: Cluster, catalogue: Catalogue, check_open: Callable[[], None]) -> None:
        self._cluster = cluster
        self._catalogue = catalogue
        self._check_open = check_open
        self._members: set[KafkaMember] = set()

    async def join(
        self,
        group: str,
        topics: Sequence[str],
        *,
        listener: Listener | None = None,
        start_at: StartAt = "earliest",
        session_timeout_s: float = 45.0,
    ) -> KafkaMember:
        """Become a member; partitions come with the first polls."""
        self._check_open()
        topics = checks.check_join(group, topics, listener, start_at, session_timeout_s)
        for topic in topics:
            await self._catalogue.get(topic)
        member = KafkaMember(self._cluster, group, listener, start_at, session_timeout_s)
        member.on_leave = self._members.discard
        self._members.add(member)
        await member.subscribe(topics)
        return member

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the committed offsets; those of open transactions don't count yet."""
        self._check_open()
        checks.check_name("group", group)
        wanted = [confluent_kafka.TopicPartition(*at) for at in checks.check_places(partitions)]
        if not wanted:
            return {}
        # A transaction that was committed a moment ago may still wait for its marker: then so do we, for a while.
        deadline = time.monotonic() + _SETTLE_S
        while True:
            found = await self._list(group, wanted, require_stable=time.monotonic() < deadline)
            if not any(_is_unstable(each) for each in found):
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        for each in found:
            if each.error is not None:  # no answer, which must not be taken for "no commit"
                timeout_s = self._cluster.request_timeout_s
                raise self._cluster.faults.of(each.error, _listing(group), timeout_s=timeout_s, topic=each.topic)
        return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    async def _list(self, group: str, wanted: list[Any], *, require_stable: bool) -> list[Any]:
        answer = await self._cluster.ask(
            _listing(group),
            self._cluster.client.list_consumer_group_offsets,
            [ConsumerGroupTopicPartitions(group, wanted)],
            require_stable=require_stable,
        )
        return list(answer.topic_partitions)

    async def close(self) -> None:
        """Leave all groups."""
        await asyncio.gather(*(member.stop() for member in list(self._members)))


def _listing(group: str) -> str:
    return f"list the commits of group {group!r}"


def _is_unstable(commit: Any) -> bool:  # noqa: ANN401
    return commit.error is not None and commit.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
