"""The admin client: requests that are answered through futures, named errors, and what topics are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource

from headrace.errors import Closed, HeadraceError, Unavailable
from headrace.log.kafka.clients import ClientConfigs
from headrace.log.kafka.configs import from_kafka
from headrace.log.kafka.faults import STALE_LEADER, UNANSWERED, Faults, error_in
from headrace.log.kafka.greeting import Complaints, admin_client, greet
from headrace.log.kafka.producing import refresh
from headrace.log.kafka.threads import Threads
from headrace.model import Topic
from headrace.observe import get_logger
from headrace.runtime import Backoff

__all__ = ["Change", "Cluster"]

_logger = get_logger(__name__)
_WAITS = Backoff(first_s=0.02, limit_s=0.5, jitter=0.2)
_MORE_PATIENCE = 1.5
_REFRESH_S = 1.0  # a frozen broker may be the one that is asked; the next look goes elsewhere
_NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, "no broker gave an answer")  # noqa: SLF001
_AGAIN = STALE_LEADER | UNANSWERED


@dataclass(slots=True)
class Change:
    """A request that changes something; `may_be_made` once an attempt went unanswered."""

    may_be_made: bool = False


class Cluster:
    """Asks the brokers and names what goes wrong."""

    def __init__(
        self, configs: ClientConfigs, faults: Faults, threads: Threads, *, request_timeout_s: float, attempt_s: float
    ) -> None:
        self.configs = configs
        self.faults = faults
        self.threads = threads
        self.request_timeout_s = request_timeout_s
        self._attempt_s = attempt_s
        self._complaints = Complaints()
        self._looked_at: set[str] = set()
        self._refreshing: asyncio.Future[None] | None = None
        self._clients = [admin_client(configs.admin(), self._complaints, given=configs.given)]

    @property
    def client(self) -> Any:  # noqa: ANN401 - the driver has no types
        """The admin client itself. Raises Closed to requests that a close overtakes."""
        if not self._clients:
            raise Closed(f"log {self.faults.address}")
        return self._clients[0]

    async def check(self, *, connect_s: float) -> None:
        """Raise Unreachable unless a broker answers in time, Forbidden as soon as one refuses us."""
        timeout_s = self.request_timeout_s
        await self.threads.run(
            greet, self.client, self._complaints, self.faults.address, timeout_s=timeout_s, connect_s=connect_s
        )

    async def ask(
        self,
        operation: str,
        request: Callable[..., Mapping[Any, Future[Any]]],
        *args: Any,  # noqa: ANN401
        topic: str | None = None,
        change: Change | None = None,
        is_answer: Callable[[Any], bool] = lambda _: True,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Send a request about one thing and return its answer; raises what `Faults` makes of a refusal.

        Until the request's time is up, an attempt that nobody answers is made again, with a fresh look at who leads:
        without one librdkafka goes on asking a controller that is dead. `change` is given with what changes something,
        and is told when an attempt may have made the change.
        """
        deadline = time.monotonic() + self.request_timeout_s
        attempt = 0
        while True:
            attempt += 1
            left_s = max(0.01, deadline - time.monotonic())
            error: Any = _NO_ANSWER
            try:
                answer = await self._answer(
                    request, *args, request_timeout=self._patience_s(attempt, left_s), **options
                )
                if is_answer(answer):
                    return answer
            except KafkaException as failure:
                error = error_in(failure)
            if change is not None and error.code() in UNANSWERED:
                change.may_be_made = True
            wait_s = _WAITS.delay_s(attempt)
            if error.code() not in _AGAIN or time.monotonic() + wait_s >= deadline:
                raise self._fault(error, operation, topic, change) from KafkaException(error)
            await asyncio.sleep(wait_s)
            await self._refresh()

    def _patience_s(self, attempt: int, left_s: float) -> float:
        """Return how long to wait for an attempt: longer each time, because some requests just take long."""
        return float(min(self._attempt_s * _MORE_PATIENCE ** (attempt - 1), left_s))

    async def _refresh(self) -> None:
        """Let the client learn who leads; those who need it at one time share one look."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self.threads.start(refresh, self.client, _REFRESH_S)
        await asyncio.shield(self._refreshing)

    def _fault(self, error: Any, operation: str, topic: str | None, change: Change | None) -> HeadraceError:  # noqa: ANN401
        is_known = change is None or not change.may_be_made
        return self.faults.of(error, operation, timeout_s=self.request_timeout_s, topic=topic, outcome_known=is_known)

    async def _answer(self, request: Callable[..., Mapping[Any, Future[Any]]], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        try:
            (answer,) = request(*args, **options).values()
            return await asyncio.wrap_future(answer)
        finally:
            self.client.poll(0)  # lets librdkafka's log lines out, which would pile up otherwise

    async def metadata(self) -> Any:  # noqa: ANN401
        """Return what any broker says about the cluster: its brokers and topics."""
        deadline = time.monotonic() + self.request_timeout_s
        attempt = 0
        while True:
            attempt += 1
            left_s = max(0.01, deadline - time.monotonic())
            try:
                return await self.threads.run(self.client.list_topics, timeout=self._patience_s(attempt, left_s))
            except KafkaException as failure:
                error = error_in(failure)
                if error.code() not in _AGAIN or time.monotonic() >= deadline:
                    raise self._fault(error, "list topics", None, None) from failure
            await asyncio.sleep(_WAITS.delay_s(attempt))

    async def names(self) -> list[str]:
        """Return the names of all topics, the brokers' own included."""
        return list((await self.metadata()).topics)

    async def layout(self, topic: str) -> Any:  # noqa: ANN401
        """Return the driver's description of a topic: its id, its partitions and their leaders."""
        return await self.ask(
            f"describe topic {topic!r}", self.client.describe_topics, TopicCollection([topic]), topic=topic
        )

    async def describe(self, topic: str) -> Topic:
        """Return what a topic is. Never makes one, whatever the brokers' auto.create.topics.enable says."""
        layout, (effective, own) = await asyncio.gather(self.layout(topic), self.settings(topic))
        await self._warn_of_one_copy(topic, layout)
        return Topic(
            name=topic,
            topic_id=str(layout.topic_id),
            partitions=len(layout.partitions),
            config=from_kafka(effective, own),
        )

    async def brokers(self) -> int:
        """Return how many brokers the cluster has."""
        return len((await self.metadata()).brokers)

    async def _warn_of_one_copy(self, topic: str, layout: Any) -> None:  # noqa: ANN401
        """Warn once of a topic that a single broker's disk can lose though there are several brokers."""
        if topic in self._looked_at or topic.startswith("__"):
            return
        self._looked_at.add(topic)
        alone = sum(len(part.replicas) == 1 for part in layout.partitions)
        try:
            brokers = await self.brokers() if alone else 0
        except Unavailable:  # what was asked for is known; the next description looks again
            self._looked_at.discard(topic)
            return
        if brokers > 1:
            _logger.warning(
                "a topic keeps one copy of its records on a cluster of several brokers: what one broker loses is gone",
                topic=topic,
                brokers=brokers,
                partitions_with_one_copy=alone,
                next_step="give its partitions more replicas with kafka-reassign-partitions.sh, then set its "
                "min.insync.replicas",
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
