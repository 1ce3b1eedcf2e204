"""A watch over followed topics, which notices that a topic was deleted or replaced: brokers do not notify readers.

It sends one request for all topics at an interval, and gets every description that this process asks for:
whoever has seen that a topic is a new one must not be given records that were read from the old one. A topic that was
deleted and created again has another id. Between two requests a follower continues in the new topic at its old offset:
records carry no topic id, so this can't be seen earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.errors import UnknownTopic
from headrace.log.kafka.client import LOGGER
from headrace.log.kafka.faults import error_in
from headrace.log.kafka.metadata import Cluster
from headrace.model import Topic

__all__ = ["TopicWatch"]

_LOOK_EVERY_S = 2.0
# A broker may not know a new topic yet; after this time it does.
_GONE_AFTER_S = 1.5


class TopicWatch:
    """Calls `gone` with the name of a watched topic that was deleted, or deleted and created again."""

    def __init__(self, cluster: Cluster, gone: Callable[[str, Exception], None]) -> None:
        self._cluster = cluster
        self._gone = gone
        self._ids: dict[str, str | None] = {}
        self._missed_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_new = asyncio.Event()

    def add(self, topic: str) -> None:
        """Watch a topic. Its id is fetched at once, so that a later topic of the same name is not taken for it."""
        if topic not in self._ids:
            self._ids[topic] = None
            self._is_new.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="headrace-kafka-topic-watch")

    def learned(self, topic: Topic) -> None:
        """Compare a description that this process has asked for."""
        self._judge(topic.name, topic.topic_id)

    def keep(self, topics: set[str]) -> None:
        """Forget all but these."""
        for topic in self._ids.keys() - topics:
            self._forget(topic)

    async def close(self) -> None:
        """Stop watching."""
        self._ids.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while self._ids:
            self._is_new.clear()
            for topic, id_ in (await self._look()).items():
                self._judge(topic, id_)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._is_new.wait()

    async def _look(self) -> Mapping[str, str | None]:
        """Return the ids of the topics, None for those that don't exist; topics without an answer are left out."""
        client, timeout_s = self._cluster.client, self._cluster.request_timeout_s
        found: dict[str, str | None] = {}
        try:
            asked = client.describe_topics(TopicCollection(list(self._ids)), request_timeout=timeout_s)
        except KafkaException as failure:
            LOGGER.warning("the followed topics could not be checked: %s", failure)
            return found
        for topic, answer in asked.items():
            try:
                found[topic] = str((await asyncio.wrap_future(answer)).topic_id)
            except KafkaException as failure:
                if error_in(failure).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    found[topic] = None
        client.poll(0)
        return found

    def _judge(self, topic: str, id_: str | None) -> None:
        if topic not in self._ids:
            return  # it is not followed any more
        known, now_s = self._ids[topic], time.monotonic()
        if id_ is None:
            self._missed_s.setdefault(topic, now_s)
        else:
            self._missed_s.pop(topic, None)
            self._ids[topic] = id_
        is_another = known is not None and id_ is not None and id_ != known
        if is_another or now_s - self._missed_s.get(topic, now_s) >= _GONE_AFTER_S:
            self._forget(topic)
            self._gone(topic, UnknownTopic(topic))

    def _forget(self, topic: str) -> None:
        self._ids.pop(topic, None)
        self._missed_s.pop(topic, None)
