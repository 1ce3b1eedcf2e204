"""Topics in Kafka: create, configure, describe, grow and delete, with the number of copies that a topic gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from headrace.config import KafkaLogSettings
from headrace.errors import (
    BadArgument,
    HeadraceError,
    ImpossibleTopicChange,
    TimedOut,
    TopicExists,
    UnknownTopic,
)
from headrace.log import checks
from headrace.log.kafka.faults import error_in
from headrace.log.kafka.metadata import Change, Cluster, TopicCache, to_kafka
from headrace.model import Topic, TopicConfig

__all__ = ["MIN_IN_SYNC", "KafkaAdmin", "copies_for", "durability_of"]

MIN_IN_SYNC = "min.insync.replicas"
_ENOUGH = 3


def copies_for(settings: KafkaLogSettings, brokers: int) -> int:
    """Return the number of copies of a new topic: one for each broker, up to three.

    The brokers' default is one copy unless an operator changed it, and then the loss of one broker loses records.
    """
    return settings.replication_factor or max(1, min(brokers, _ENOUGH))


def durability_of(settings: KafkaLogSettings, copies: int) -> dict[str, str]:
    """Return the properties of a new topic with this number of copies: an append waits for all but one of them."""
    if settings.min_in_sync_replicas is not None:
        return {MIN_IN_SYNC: str(settings.min_in_sync_replicas)}
    return {MIN_IN_SYNC: str(copies - 1)} if copies > 1 else {}


_SETTLE_S = 0.02
_REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - librdkafka's local codes are spelt like this
    }
)


class KafkaAdmin:
    """Kafka's Admin. A call returns when the brokers' metadata shows what it did."""

    def __init__(
        self, cluster: Cluster, topic_cache: TopicCache, check_open: Callable[[], None], settings: KafkaLogSettings
    ) -> None:
        self._cluster = cluster
        self._topic_cache = topic_cache
        self._check_open = check_open
        self._settings = settings

    async def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        """Create a topic with the configured number of copies, or with one for each broker, up to three."""
        self._check_open()
        checks.check_topic(topic)
        checks.check_partitions(partitions)
        config = checks.check_config(config)
        copies = copies_for(self._settings, await self._cluster.brokers())
        durable = {**durability_of(self._settings, copies), **to_kafka(config)}
        new, change = NewTopic(topic, partitions, copies, config=durable), Change()
        try:
            await self._ask(f"create topic {topic!r}", self._cluster.client.create_topics, [new], topic, change)
        except HeadraceError as error:
            is_there = _code(error) == KafkaError.TOPIC_ALREADY_EXISTS
            if is_there:
                self._cluster.expect(topic)
            # An attempt without an answer may have created the topic that the next attempt finds.
            if not (change.may_be_made and is_there):
                _explain_create(error, topic, config)
        made = await self._made(topic, partitions)
        self._cluster.expect(topic)
        return made

    async def _made(self, topic: str, partitions: int) -> Topic:
        """Return a topic that was just created or grown, once the brokers can describe it.

        Brokers learn of it at different times: one may know its leaders while the next one does not know the topic.
        """
        await self._until(f"topic {topic!r} to get its leaders", lambda: self._has_leaders(topic, partitions))
        found: list[Topic] = []

        async def is_described() -> bool:
            with contextlib.suppress(UnknownTopic):
                found.append(await self._learn(topic))
            return bool(found) and found[-1].partitions >= partitions

        await self._until(f"topic {topic!r} to be known everywhere", is_described)
        return found[-1]

    async def configure(self, topic: str, config: TopicConfig) -> Topic:
        """Set the whole configuration, and reset the properties that only the former one had.

        The number of copies that an append waits for is kept unless `extra` sets it: the topic was created with it.
        """
        self._check_open()
        checks.check_topic(topic)
        config = checks.check_config(config)
        _, own = await self._cluster.settings(topic)
        wanted = {**{name: own[name] for name in own if name == MIN_IN_SYNC}, **to_kafka(config)}
        changes = [_set(name, value) for name, value in wanted.items() if own.get(name) != value]
        changes += [_unset(name) for name in own.keys() - wanted.keys()]
        if changes:
            await self._alter(topic, changes)
            return await self._changed(topic, own, wanted)
        return await self._learn(topic)

    async def describe(self, topic: str) -> Topic:
        """Return the topic as it is now."""
        self._check_open()
        return await self._learn(checks.check_topic(topic))

    async def topics(self) -> Sequence[str]:
        """List the names of all topics but the brokers' own."""
        self._check_open()
        return sorted(name for name in await self._cluster.names() if not name.startswith("__"))

    async def delete(self, topic: str) -> None:
        """Remove the topic."""
        self._check_open()
        checks.check_topic(topic)
        change = Change()
        self._cluster.forget(topic)
        try:
            await self._ask(f"delete topic {topic!r}", self._cluster.client.delete_topics, [topic], topic, change)
        except UnknownTopic:
            if not change.may_be_made:
                raise
        await self._until(f"topic {topic!r} to go", lambda: self._is_gone(topic))
        self._topic_cache.forget(topic)

    async def add_partitions(self, topic: str, *, total: int) -> Topic:
        """Give the topic more partitions."""
        self._check_open()
        checks.check_partitions(total)
        known = await self._cluster.describe(checks.check_topic(topic))
        if total <= known.partitions:
            problem = f"it has {known.partitions} partitions, {total} were requested"
            raise ImpossibleTopicChange(topic, problem, "ask for more, or copy into a new topic")
        operation, change = f"add partitions to topic {topic!r}", Change()
        try:
            new = [NewPartitions(topic, total)]
            await self._ask(operation, self._cluster.client.create_partitions, new, topic, change)
        except HeadraceError as error:
            if not (change.may_be_made and await self._has_leaders(topic, total)):
                _explain_change(error, topic, "ask for a number of partitions that the brokers allow")
        return await self._made(topic, total)

    async def _alter(self, topic: str, changes: list[Any]) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        try:
            alter = self._cluster.client.incremental_alter_configs
            await self._ask(f"configure topic {topic!r}", alter, [resource], topic, Change())
        except HeadraceError as error:
            _explain_change(error, topic, "ask for settings that the brokers take, or copy into a new topic")

    async def _ask(
        self,
        operation: str,
        request: Callable[..., Any],
        what: list[Any],
        topic: str,
        change: Change,
    ) -> None:
        """Request a change; then drop the cached topic, which may be wrong now even if the request failed."""
        try:
            await self._cluster.ask(operation, request, what, topic=topic, change=change)
        finally:
            self._topic_cache.forget(topic)

    async def _learn(self, topic: str) -> Topic:
        return self._topic_cache.remember(await self._cluster.describe(topic))

    async def _until(self, what: str, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Wait until the brokers' metadata has caught up with a change they accepted."""
        timeout_s = self._cluster.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not await holds():  # noqa: ASYNC110 - brokers can only be asked
                    await asyncio.sleep(_SETTLE_S)
        except TimeoutError as late:
            raise TimedOut(f"waiting for {what}", timeout_s, outcome_known=False) from late

    async def _has_leaders(self, topic: str, partitions: int) -> bool:
        try:
            layout = await self._cluster.layout(topic)
        except UnknownTopic:
            return False
        led = [part for part in layout.partitions if part.leader is not None and part.leader.id >= 0]
        return len(led) >= partitions

    async def _changed(self, topic: str, before: dict[str, str], wanted: dict[str, str]) -> Topic:
        """Return the topic as the first broker describes it that knows of its new settings; others may not yet."""
        found: list[Topic] = []

        async def has_settings() -> bool:
            described, own = await self._cluster.describe_with_settings(topic)
            found.append(described)
            # A broker may write a value differently from us; it is enough that it is no longer the old one.
            return own.keys() == wanted.keys() and all(
                own[name] == value or own[name] != before.get(name) for name, value in wanted.items()
            )

        await self._until(f"topic {topic!r} to change", has_settings)
        return self._topic_cache.remember(found[-1])

    async def _is_gone(self, topic: str) -> bool:
        try:
            await self._cluster.layout(topic)
        except UnknownTopic:
            return True
        return False


def _set(name: str, value: str) -> Any:  # noqa: ANN401
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def _unset(name: str) -> Any:  # noqa: ANN401
    return ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)


def _refusal(error: HeadraceError) -> Any:  # noqa: ANN401
    """Return the broker's error that caused one of ours, if there is one."""
    cause = error.__cause__
    return error_in(cause) if isinstance(cause, KafkaException) else None


def _code(error: HeadraceError) -> int | None:
    refusal = _refusal(error)
    return None if refusal is None else int(refusal.code())


def _explain_create(error: HeadraceError, topic: str, config: TopicConfig) -> NoReturn:
    refusal = _refusal(error)
    if refusal is not None and refusal.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        raise TopicExists(topic) from error.__cause__
    if refusal is not None and refusal.code() in _REFUSED:
        raise BadArgument(
            f"config of topic {topic!r}", config, f"the brokers say: {refusal.str()}"
        ) from error.__cause__
    raise error


def _explain_change(error: HeadraceError, topic: str, next_step: str) -> NoReturn:
    refusal = _refusal(error)
    if refusal is not None and refusal.code() in _REFUSED:
        raise ImpossibleTopicChange(topic, refusal.str(), next_step) from error.__cause__
    raise error
