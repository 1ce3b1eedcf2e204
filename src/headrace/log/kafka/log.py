"""The log on Kafka, assembled from its parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from headrace.config import KafkaLogSettings
from headrace.errors import Closed
from headrace.log import checks
from headrace.log.follower import Following
from headrace.log.kafka.admin import KafkaAdmin
from headrace.log.kafka.append import Producers
from headrace.log.kafka.client import ClientConfigs, Threads, servers_of
from headrace.log.kafka.consumers import ConsumerPool
from headrace.log.kafka.deliveries import DeliveryFailed
from headrace.log.kafka.faults import Faults
from headrace.log.kafka.follower import KafkaSource
from headrace.log.kafka.groups import KafkaGroups
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.kafka.read import PartitionRead, Read, RecentEnds, find_offset_at
from headrace.log.kafka.retention import KafkaRetention
from headrace.log.kafka.transactions import KafkaTransactional, take_id
from headrace.model import Batch, Bounds, NewRecord, Position, TopicPartition

__all__ = ["KafkaLog"]

_THREADS = 4
_LINGER_S = 3.0


class KafkaLog:
    """Kafka's Log."""

    def __init__(self, address: str, settings: KafkaLogSettings) -> None:
        configs = ClientConfigs(servers_of(address), settings)
        faults = Faults(address)
        self._address = address
        self._settings = settings
        self._threads = Threads("calls", count=_THREADS)
        self._cluster = Cluster(
            configs,
            faults,
            self._threads,
            request_timeout_s=settings.request_timeout_s,
            attempt_s=min(settings.attempt_timeout_s, settings.request_timeout_s),
        )
        self._topic_cache = TopicCache(self._cluster.describe, max_age_s=settings.metadata_max_age_s)
        self._producers = Producers(self._cluster, self._topic_cache, delivery_timeout_s=settings.delivery_timeout_s)
        self._pool = ConsumerPool(configs, address, max_idle=settings.idle_consumers)
        self._reading = PartitionRead(self._cluster, self._topic_cache, self._pool)
        self._source = KafkaSource(configs, self._cluster, self._topic_cache)
        self._following = Following(self._source, self._part, self.bounds, name=f"log {address}", linger_s=_LINGER_S)
        self._admin = KafkaAdmin(self._cluster, self._topic_cache, self._check_open, settings)
        self._retention = KafkaRetention(self._cluster, self._topic_cache, self._check_open)
        self._groups = KafkaGroups(self._cluster, self._topic_cache, self._check_open)
        self._recent_ends = RecentEnds(self._cluster)
        self._transactional: set[KafkaTransactional] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, address: str, settings: KafkaLogSettings) -> KafkaLog:
        """Open a log whose brokers answer. Raises Unreachable or Forbidden."""
        log = cls(address, settings)
        try:
            await log._cluster.check(connect_s=settings.connect_timeout_s)
        except BaseException:
            await log.close()
            raise
        return log

    @property
    def admin(self) -> KafkaAdmin:
        """Topics."""
        return self._admin

    @property
    def retention(self) -> KafkaRetention:
        """What may be thrown away."""
        return self._retention

    @property
    def groups(self) -> KafkaGroups:
        """Consumer groups."""
        return self._groups

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records, acknowledged by all in-sync replicas."""
        if self._is_closed:
            self._check_open()
        checked = checks.check_records(records)
        if not checked:
            return []
        try:
            return await self._producers.append(checked)
        except DeliveryFailed as failure:
            raise await self._producers.named(failure) from failure

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        """Yield batches from `start` to `end`, or without an end."""
        wanted = Read(at, start, end, headers_only, max_records, timeout_s)
        return self._reading.read(wanted) if end is not None else self._follow(wanted)

    async def _follow(self, wanted: Read) -> AsyncIterator[Batch]:
        await self._reading.check(wanted)
        batches = self._following.follow(
            wanted.at, wanted.start, headers_only=wanted.headers_only, max_records=wanted.max_records
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield batch

    def _part(self, at: TopicPartition, start: int, end: int, *, timeout_s: float) -> AsyncGenerator[Batch, None]:
        return self._reading.read(Read(at, start, end, headers_only=False, max_records=1000, timeout_s=timeout_s))

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return what the partition holds now."""
        self._check_open()
        await self._topic_cache.check(checks.check_place(at))
        return await self._recent_ends.bounds(at)

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        """Return the lowest offset whose timestamp is not below."""
        self._check_open()
        await self._topic_cache.check(checks.check_place(at))
        return await find_offset_at(self._cluster, at, max(0, checks.check_timestamp(timestamp_ms)))

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> KafkaTransactional:
        """Take over the id."""
        self._check_open()
        checks.check_transactional(transactional_id, timeout_s)
        producer = await take_id(
            self._cluster, self._topic_cache, self._recent_ends, transactional_id, timeout_s=timeout_s
        )
        self._transactional.add(producer)
        producer.on_close = self._transactional.discard
        return producer

    async def close(self) -> None:
        """Flush what the brokers take, leave groups, abort open transactions, close every client and thread."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._following.close()
        await asyncio.gather(
            self._source.close(),
            self._producers.close(self._settings.delivery_timeout_s),
            self._pool.close(),
            self._groups.close(),
            self._topic_cache.close(),
            *(producer.close() for producer in list(self._transactional)),
        )
        await self._cluster.close()
        await self._threads.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"log {self._address}")
