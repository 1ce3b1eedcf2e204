"""Rebalances: partitions are assigned to a member of a group, revoked from it, or lost; the listener is called."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaError, KafkaException

from headrace.errors import UnreadableRecord
from headrace.log.kafka.faults import error_in
from headrace.log.kafka.metadata import Cluster
from headrace.log.ports import Listener, StartAt
from headrace.model import TopicPartition

__all__ = ["Assignment"]

_LISTENER_S = 0.5


class Assignment:
    """The partitions of one member. The driver calls it in the member's thread, from inside polls.

    The listener is called on the event loop meanwhile. `problem` is an error that was not raised yet. `lost_at` has
    the committed offsets that the log does not hold any more, `unreadable` the offsets of records that can't be decoded
    and at which their partitions have stopped, `paused` the partitions that the application has paused.
    """

    def __init__(self, cluster: Cluster, group: str, listener: Listener | None, start_at: StartAt) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.generation = 0
        self.lost_at: dict[TopicPartition, int] = {}
        self.unreadable: dict[TopicPartition, UnreadableRecord] = {}
        self.paused: set[TopicPartition] = set()
        self.problem: BaseException | None = None
        self.listener = listener
        self.is_ending = False
        self._cluster = cluster
        self._group = group
        self._start_at = start_at
        self._loop = asyncio.get_running_loop()

    def on_assign(self, consumer: Any, partitions: list[Any]) -> None:  # noqa: ANN401
        """Take partitions over, from where they are to start."""
        if self.is_ending:
            # They are given back at once, so any offset will do; the committed ones need not be fetched.
            consumer.incremental_assign(
                [confluent_kafka.TopicPartition(each.topic, each.partition, 0) for each in partitions]
            )
            return
        taken = _topic_partitions(partitions)
        consumer.incremental_assign(self._starts(consumer, partitions))
        for at in taken:
            self.lost_at.pop(at, None)
            self.unreadable.pop(at, None)
            self.paused.discard(at)  # the driver fetches a partition that is assigned again
        self._change(self.partitions | taken)
        if self.listener is not None:
            self._call_listener(self.listener.assigned, taken)

    def on_revoke(self, consumer: Any, partitions: list[Any]) -> None:  # noqa: ANN401
        """Give partitions back after the listener was called."""
        gone = _topic_partitions(partitions)
        if self.listener is not None:
            self._call_listener(self.listener.revoked, gone)
        self._change(self.partitions - gone)

    def on_lost(self, consumer: Any, partitions: list[Any]) -> None:  # noqa: ANN401
        """Note that partitions are gone already."""
        gone = _topic_partitions(partitions)
        self._change(self.partitions - gone)
        if self.listener is not None:
            self._call_listener(self.listener.lost, gone)

    def _change(self, assignment: frozenset[TopicPartition]) -> None:
        if assignment != self.partitions:
            self.partitions = assignment
            self.generation += 1

    def _starts(self, consumer: Any, partitions: list[Any]) -> list[Any]:  # noqa: ANN401
        """Return where to start: at the commits; without one, where `start_at` says."""
        if not partitions:
            return []
        try:
            found = consumer.committed(partitions, timeout=self._cluster.request_timeout_s)
            return [self._start(consumer, each) for each in found]
        except KafkaException as failure:
            timeout_s = self._cluster.request_timeout_s
            what = f"fetch the commits in group {self._group!r}"
            self.problem = self._cluster.faults.of(error_in(failure), what, timeout_s=timeout_s)
            return [confluent_kafka.TopicPartition(each.topic, each.partition, OFFSET_STORED) for each in partitions]

    def _start(self, consumer: Any, commit: Any) -> Any:  # noqa: ANN401
        if commit.error is not None:  # this is no answer, and must not be taken for "no commit"
            raise KafkaException(commit.error)
        return self._first(consumer, commit) if commit.offset < 0 else commit

    def _first(self, consumer: Any, partition: Any) -> Any:  # noqa: ANN401
        """Return the start of a partition without a commit. The end is looked up now: later records must be read."""
        where = confluent_kafka.TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)
        if self._start_at == "latest":
            found = consumer.get_watermark_offsets(where, timeout=self._cluster.request_timeout_s)
            if found is None or found[1] < 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no broker says where {where} ends"))  # noqa: SLF001
            where.offset = found[1]
        return where

    def _call_listener(
        self, listen: Callable[[frozenset[TopicPartition]], Awaitable[None]], partitions: frozenset[TopicPartition]
    ) -> None:
        """Call the listener on the loop and wait for it; what it raises is raised by the poll."""
        if not partitions:
            return

        async def call() -> None:
            await listen(partitions)

        called = asyncio.run_coroutine_threadsafe(call(), self._loop)
        while not called.done() and not self._loop.is_closed():
            concurrent.futures.wait([called], _LISTENER_S)
        if called.done():
            self.problem = called.exception() or self.problem


def _topic_partitions(partitions: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(each.topic, each.partition) for each in partitions)
