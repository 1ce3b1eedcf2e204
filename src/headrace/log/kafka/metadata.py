"""Topic metadata: requests to the brokers through the admin client, and a cache of the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource, NewTopic

from headrace.errors import Closed, HeadraceError, Unavailable, UnknownPartition
from headrace.log.kafka.client import ClientConfigs, ConnectionErrors, Threads, admin_client, wait_for_broker
from headrace.log.kafka.deliveries import refresh
from headrace.log.kafka.faults import STALE_LEADER, UNANSWERED, UNKNOWN_TOPIC, Faults, error_in
from headrace.model import Cleanup, Topic, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff

__all__ = ["Change", "Cluster", "TopicCache", "from_kafka", "to_kafka"]

_CLEANUP = "cleanup.policy"
_RETENTION = "retention.ms"
_TOMBSTONES = "delete.retention.ms"
_COMPACTION_LAG = "min.compaction.lag.ms"
_MAX_BYTES = "max.message.bytes"
_AHEAD = "message.timestamp.after.max.ms"
_OURS = frozenset({_CLEANUP, _RETENTION, _TOMBSTONES, _COMPACTION_LAG, _MAX_BYTES, _AHEAD})


def to_kafka(config: TopicConfig) -> dict[str, str]:
    """Return the Kafka properties for a topic's configuration; those in `extra` win."""
    return {
        _CLEANUP: str(config.cleanup),
        _RETENTION: str(-1 if config.retention_ms is None else config.retention_ms),
        _TOMBSTONES: str(config.tombstone_retention_ms),
        _COMPACTION_LAG: str(config.min_compaction_lag_ms),
        _MAX_BYTES: str(config.max_record_bytes),
        _AHEAD: str(config.timestamp_ahead_ms),
        **config.extra,
    }


def from_kafka(effective: Mapping[str, str], own: Mapping[str, str]) -> TopicConfig:
    """Return a topic's configuration from all its effective properties and from those set on the topic itself."""
    retention_ms = int(effective[_RETENTION])
    policies = {policy.strip() for policy in effective[_CLEANUP].split(",")} - {""}
    return TopicConfig(
        cleanup=_cleanup_of(policies),
        # Kafka allows an empty policy ("keep everything") and a retention of 0; here both become the nearest value.
        retention_ms=None if retention_ms < 0 or not policies else max(1, retention_ms),
        tombstone_retention_ms=int(effective[_TOMBSTONES]),
        min_compaction_lag_ms=int(effective[_COMPACTION_LAG]),
        max_record_bytes=max(1, int(effective[_MAX_BYTES])),
        timestamp_ahead_ms=max(1, int(effective[_AHEAD])),
        extra={name: value for name, value in own.items() if name not in _OURS},
    )


def _cleanup_of(policies: set[str]) -> Cleanup:
    if "compact" not in policies:
        return Cleanup.DELETE
    return Cleanup.COMPACT_DELETE if "delete" in policies else Cleanup.COMPACT


_logger = get_logger(__name__)
_WAITS = Backoff(first_s=0.02, limit_s=0.5, jitter=0.2)
_MORE_PATIENCE = 1.5
_REFRESH_S = 1.0  # the broker that was asked may be frozen; the next request goes to another one
_NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, "no broker gave an answer")  # noqa: SLF001
_AGAIN = STALE_LEADER | UNANSWERED
# For so long after a topic was made a broker may not have heard of it; on a busy machine that took seconds.
_SPREAD_S = 60.0
_NOT_EVERYWHERE = KafkaError(KafkaError._TIMED_OUT, "a broker does not know the new topic yet")  # noqa: SLF001


@dataclass(slots=True)
class Change:
    """A request that changes something; `may_be_made` is True once an attempt got no answer."""

    may_be_made: bool = False


class Cluster:
    """Sends requests to the brokers and turns their errors into ours."""

    def __init__(
        self, configs: ClientConfigs, faults: Faults, threads: Threads, *, request_timeout_s: float, attempt_s: float
    ) -> None:
        self.configs = configs
        self.faults = faults
        self.threads = threads
        self.request_timeout_s = request_timeout_s
        self._attempt_s = attempt_s
        self._connection_errors = ConnectionErrors()
        self._looked_at: set[str] = set()
        self._made_s: dict[str, float] = {}
        self._refreshing: asyncio.Future[None] | None = None
        self._clients = [admin_client(configs.admin(), self._connection_errors, given=configs.given)]

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
            wait_for_broker,
            self.client,
            self._connection_errors,
            self.faults.address,
            timeout_s=timeout_s,
            connect_s=connect_s,
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

        Until the request's time is up, an attempt without an answer is repeated after a refresh of the metadata:
        without it librdkafka goes on asking a controller that is dead. So is one to a broker that has not heard of a
        new topic yet (`expect`). Requests that change something come with a `change`, which is marked when an attempt
        may have made the change.
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
            if topic is not None and error.code() in UNKNOWN_TOPIC and await self._is_made(topic):
                error = _NOT_EVERYWHERE
            wait_s = _WAITS.delay_s(attempt)
            if error.code() not in _AGAIN or time.monotonic() + wait_s >= deadline:
                raise self._fault(error, operation, topic, change) from KafkaException(error)
            await asyncio.sleep(wait_s)
            await self._refresh()

    def expect(self, topic: str) -> None:
        """Note that a topic exists since a moment ago: a broker that does not know it is asked again."""
        now_s = time.monotonic()
        self._made_s = {name: made_s for name, made_s in self._made_s.items() if made_s + _SPREAD_S > now_s}
        self._made_s[topic] = now_s

    def forget(self, topic: str) -> None:
        """Note that a topic was deleted: nobody waits for it any more."""
        self._made_s.pop(topic, None)

    async def _is_made(self, topic: str) -> bool:
        """Return True if a topic was made a moment ago, and is still there. Only the controller knows at any time."""
        if self._made_s.get(topic, float("-inf")) + _SPREAD_S < time.monotonic():
            return False
        try:
            await self._answer(
                self.client.create_topics, [NewTopic(topic, 1, 1)], validate_only=True, request_timeout=self._attempt_s
            )
        except KafkaException as failure:
            code = error_in(failure).code()
            return code == KafkaError.TOPIC_ALREADY_EXISTS or code in _AGAIN
        self.forget(topic)
        return False

    def _patience_s(self, attempt: int, left_s: float) -> float:
        """Return how long to wait for an attempt: longer each time, because some requests just take long."""
        return float(min(self._attempt_s * _MORE_PATIENCE ** (attempt - 1), left_s))

    async def _refresh(self) -> None:
        """Refresh the client's metadata; concurrent callers share one refresh."""
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
            self.client.poll(0)  # serves librdkafka's log lines, which would pile up otherwise

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
        """Return the topic. This never creates it, whatever the brokers' auto.create.topics.enable says."""
        return (await self.describe_with_settings(topic))[0]

    async def describe_with_settings(self, topic: str) -> tuple[Topic, dict[str, str]]:
        """Return the topic, and the settings that are set on the topic itself."""
        layout, (effective, own) = await asyncio.gather(self.layout(topic), self.settings(topic))
        await self._warn_of_one_copy(topic, layout)
        described = Topic(
            name=topic,
            topic_id=str(layout.topic_id),
            partitions=len(layout.partitions),
            config=from_kafka(effective, own),
        )
        return described, own

    async def brokers(self) -> int:
        """Return how many brokers the cluster has."""
        return len((await self.metadata()).brokers)

    async def _warn_of_one_copy(self, topic: str, layout: Any) -> None:  # noqa: ANN401
        """Warn once about a topic that has one copy although there are several brokers."""
        if topic in self._looked_at or topic.startswith("__"):
            return
        self._looked_at.add(topic)
        alone = sum(len(part.replicas) == 1 for part in layout.partitions)
        try:
            brokers = await self.brokers() if alone else 0
        except Unavailable:  # the description itself is complete; the next one tries again
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
        """Close the client; its destruction blocks, so it happens in a thread."""
        await self.threads.run(self._clients.clear)


class TopicCache:
    """Descriptions of topics, each valid for `max_age_s`; concurrent callers for one topic share one request."""

    def __init__(self, describe: Callable[[str], Awaitable[Topic]], *, max_age_s: float) -> None:
        self._describe = describe
        self._max_age_s = max_age_s
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[float, Topic]] = {}
        self._asking: dict[str, asyncio.Task[Topic]] = {}
        # Called with each new description, before it is kept.
        self.on_described: Callable[[Topic], None] = lambda topic: None

    def fresh(self, name: str) -> Topic | None:
        """Return the topic if its description has not expired."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] > self._loop.time() else None

    async def get(self, name: str) -> Topic:
        """Return the topic, asking the brokers if need be. Raises UnknownTopic."""
        known = self.fresh(name)
        return known if known is not None else await asyncio.shield(self._ask(name))

    async def check(self, at: TopicPartition) -> None:
        """Raise UnknownTopic or UnknownPartition unless the partition exists; a cached count may be refreshed."""
        topic = await self.get(at.topic)
        if at.partition >= topic.partitions:
            self.forget(at.topic)
            topic = await self.get(at.topic)
        if not 0 <= at.partition < topic.partitions:
            raise UnknownPartition(at.topic, at.partition, topic.partitions)

    def remember(self, topic: Topic) -> Topic:
        """Keep a new description."""
        self.on_described(topic)
        self._known[topic.name] = (self._loop.time() + self._max_age_s, topic)
        return topic

    def forget(self, name: str) -> None:
        """Drop the description: an operation on the topic failed, or the topic was changed."""
        self._known.pop(name, None)
        self._asking.pop(name, None)

    async def close(self) -> None:
        """Cancel the requests that run."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _ask(self, name: str) -> asyncio.Task[Topic]:
        task = self._asking.get(name)
        if task is None:
            task = self._loop.create_task(self._refresh(name), name=f"headrace-describe-{name}")
            task.add_done_callback(_look)
            self._asking[name] = task
        return task

    async def _refresh(self, name: str) -> Topic:
        asking = asyncio.current_task()
        try:
            topic = await self._describe(name)
        except BaseException:
            self._known.pop(name, None)
            raise
        else:
            # If the topic was forgotten meanwhile, the answer may be older than the change.
            return self.remember(topic) if self._asking.get(name) is asking else topic
        finally:
            if self._asking.get(name) is asking:
                del self._asking[name]


def _look(task: asyncio.Task[Topic]) -> None:
    """Retrieve the error of a request whose callers are all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
