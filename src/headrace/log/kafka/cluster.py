"""The admin client: requests that are answered through futures, named errors, and what topics are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource

from headrace.log.kafka.clients import ClientConfigs
from headrace.log.kafka.configs import from_kafka
from headrace.log.kafka.faults import STALE_LEADER, Faults, error_in
from headrace.log.kafka.greeting import Complaints, admin_client, greet
from headrace.log.kafka.producing import refresh
from headrace.log.kafka.threads import Threads
from headrace.model import Topic

__all__ = ["Cluster"]

_STALE_S = 5.0


class Cluster:
    """Asks the brokers and names what goes wrong."""

    def __init__(self, configs: ClientConfigs, faults: Faults, threads: Threads, *, request_timeout_s: float) -> None:
        self.configs = configs
        self.faults = faults
        self.threads = threads
        self.request_timeout_s = request_timeout_s
        self._complaints = Complaints()
        self._clients = [admin_client(configs.admin(), self._complaints, given=configs.given)]

    @property
    def client(self) -> Any:  # noqa: ANN401 - the driver has no types
        """The admin client itself."""
        return self._clients[0]

    async def check(self) -> None:
        """Raise Unreachable unless a broker answers in time, Forbidden as soon as one refuses us."""
        timeout_s = self.request_timeout_s
        await self.threads.run(greet, self.client, self._complaints, self.faults.address, timeout_s=timeout_s)

    async def ask(
        self,
        operation: str,
        request: Callable[..., Mapping[Any, Future[Any]]],
        *args: Any,  # noqa: ANN401
        topic: str | None = None,
        outcome_known: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Send a request about one thing and return its answer; raises what `Faults` makes of a refusal.

        `outcome_known` says what a time-out leaves behind: False for whatever changes something.
        """
        deadline = time.monotonic() + min(_STALE_S, self.request_timeout_s)
        while True:
            try:
                return await self._answer(request, *args, **options)
            except KafkaException as failure:
                error = error_in(failure)
                if error.code() not in STALE_LEADER or time.monotonic() >= deadline:
                    raise self.faults.of(
                        error, operation, timeout_s=self.request_timeout_s, topic=topic, outcome_known=outcome_known
                    ) from failure
            # A broker that was frozen or restarted has a new epoch, and the client goes on asking with the old one.
            await self.threads.run(refresh, self.client)

    async def _answer(self, request: Callable[..., Mapping[Any, Future[Any]]], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        try:
            (answer,) = request(*args, request_timeout=self.request_timeout_s, **options).values()
            return await asyncio.wrap_future(answer)
        finally:
            self.client.poll(0)  # lets librdkafka's log lines out, which would pile up otherwise

    async def names(self) -> list[str]:
        """Return the names of all topics, the brokers' own included."""
        try:
            found = await self.threads.run(self.client.list_topics, timeout=self.request_timeout_s)
        except KafkaException as failure:
            raise self.faults.of(error_in(failure), "list topics", timeout_s=self.request_timeout_s) from failure
        return list(found.topics)

    async def layout(self, topic: str) -> Any:  # noqa: ANN401
        """Return the driver's description of a topic: its id, its partitions and their leaders."""
        return await self.ask(
            f"describe topic {topic!r}", self.client.describe_topics, TopicCollection([topic]), topic=topic
        )

    async def describe(self, topic: str) -> Topic:
        """Return what a topic is. Never makes one, whatever the brokers' auto.create.topics.enable says."""
        layout, (effective, own) = await asyncio.gather(self.layout(topic), self.settings(topic))
        return Topic(
            name=topic,
            topic_id=str(layout.topic_id),
            partitions=len(layout.partitions),
            config=from_kafka(effective, own),
        )

    async def settings(self, topic: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return all settings that hold for a topic, and those set on the topic itself."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = await self.ask(f"describe topic {topic!r}", self.client.describe_configs, [resource], topic=topic)
        effective = {name: entry.value for name, entry in entries.items()}
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        own = {name: entry.value for name, entry in entries.items() if entry.source == source}
        return effective, own

    async def close(self) -> None:
        """Let go of the client; its destruction blocks, so it happens in a thread."""
        await self.threads.run(self._clients.clear)
