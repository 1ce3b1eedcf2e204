"""The consumer that follows all followed partitions of a log, in one thread.

The event loop sets which partitions are wanted; the thread changes the assignment between two polls and hands over the
records that came.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException

from headrace.errors import OperationFailed, UnreadableRecord
from headrace.log.follower import Feed
from headrace.log.kafka.client import DRIVER_LOG, LOGGER, ClientConfigs
from headrace.log.kafka.consumers import take
from headrace.log.kafka.faults import whole
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.kafka.read import count_batch, find_bounds, is_retried_by_driver, out_of_range, record_of
from headrace.log.kafka.topic_watch import TopicWatch
from headrace.model import Batch, Record, TopicPartition

__all__ = ["KafkaSource", "sort_messages"]

# How long one poll blocks the thread, and so the longest that a new partition and closing wait.
_POLL_S = 0.05
_RECORDS_AT_ONCE = 1000
_LINGER_S = 5.0
_ANSWER_S = 1.0
# The number of polls whose results may wait for the event loop.
_POLLS_AHEAD = 4


class _StartRequest(NamedTuple):
    """The offset from which a partition is followed; `turn` distinguishes this start from later ones."""

    turn: int
    start: int


class FollowedBatch(NamedTuple):
    """What one poll brought for a partition: records, and the error after them."""

    at: TopicPartition
    turn: int
    batch: Batch
    error: Any


@dataclass(slots=True)
class Assigned:
    """A partition that is assigned to the consumer, and the position up to which it was read.

    A consumer may still have messages queued from another offset of the same partition. So if the first message is not
    at the start, the consumer seeks once more. Aborted and control records make such gaps too, and then the second read
    begins with the same gap.
    """

    turn: int
    start: int
    position: int
    is_sure: bool = False
    doubt: int | None = None
    has_failed: bool = False


@dataclass(slots=True)
class SortedMessages:
    """Messages by partition, and the partitions that must be read again from their start."""

    brought: list[FollowedBatch] = field(default_factory=list)
    doubtful: list[TopicPartition] = field(default_factory=list)


class KafkaSource:
    """Follows partitions for feeds. The consumer is opened when it is needed, and closed when it is not."""

    def __init__(self, configs: ClientConfigs, cluster: Cluster, topic_cache: TopicCache) -> None:
        self._configs = configs
        self._cluster = cluster
        self._topic_cache = topic_cache
        self._loop = asyncio.get_running_loop()
        self._feeds: dict[TopicPartition, Feed] = {}
        self._wanted: Mapping[TopicPartition, _StartRequest] = {}
        self._has_changed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ahead = threading.Semaphore(_POLLS_AHEAD)
        self._is_closed = False
        self._naming: set[asyncio.Task[None]] = set()
        self._watch = TopicWatch(cluster, self._topic_is_gone)
        topic_cache.on_described = self._watch.learned

    def start(self, feed: Feed) -> None:
        """Follow a partition from the feed's position on."""
        self._feeds[feed.at] = feed
        self._watch.add(feed.at.topic)
        self._want({**self._wanted, feed.at: _StartRequest(feed.turn, feed.position)})

    def stop(self, feed: Feed) -> None:
        """Stop following a partition for now."""
        if self._feeds.get(feed.at) is feed and feed.at in self._wanted:
            self._want({at: wanted for at, wanted in self._wanted.items() if at != feed.at})

    def end(self, feed: Feed) -> None:
        """Forget the feed."""
        if self._feeds.get(feed.at) is feed:
            self.stop(feed)
            del self._feeds[feed.at]
            self._watch.keep({at.topic for at in self._feeds})

    async def close(self) -> None:
        """Close the consumer and end its thread."""
        self._is_closed = True
        await self._watch.close()
        self._has_changed.set()
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)
        await asyncio.gather(*self._naming, return_exceptions=True)

    def _want(self, wanted: Mapping[TopicPartition, _StartRequest]) -> None:
        with self._lock:
            self._wanted = wanted
            if wanted and self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="headrace-kafka-follower", daemon=True)
                self._thread.start()
        self._has_changed.set()

    def _run(self) -> None:
        """Follow until nothing has been wanted for a while. Runs in the thread, as all methods up to `hand_over`."""
        while True:
            try:
                _FollowingConsumer(self).run()
            except Exception as error:  # if the thread ended, every listener would wait forever
                LOGGER.warning("the consumer that follows partitions failed: %s", error)
                self._fail_all(error)
            with self._lock:
                if self._is_closed or not self._wanted:
                    self._thread = None
                    return

    def rest(self) -> bool:
        """Wait until a partition is wanted; returns False if none was for a while."""
        deadline_s = time.monotonic() + _LINGER_S
        while not self._wanted and not self._is_closed and time.monotonic() < deadline_s:
            self._has_changed.clear()
            if not self._wanted:
                self._has_changed.wait(deadline_s - time.monotonic())
        return bool(self._wanted) and not self._is_closed

    @property
    def wanted(self) -> Mapping[TopicPartition, _StartRequest]:
        """The partitions that are wanted now."""
        return self._wanted

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed

    @property
    def config(self) -> dict[str, Any]:
        """The consumer's configuration."""
        return self._configs.reader(follow=True)

    def hand_over(self, brought: list[FollowedBatch]) -> None:
        """Give the records to the event loop; waits while the loop has too many already."""
        while not self._ahead.acquire(timeout=_POLL_S):
            if self._is_closed:
                return
        try:
            self._loop.call_soon_threadsafe(self._take, brought)
        except RuntimeError:  # the loop is closed: no listener is left
            self._is_closed = True

    def _fail_all(self, error: Exception) -> None:
        """Fail all feeds because the consumer failed; a new one is opened for the next listener."""
        self._has_changed.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no listener is left
            self._loop.call_soon_threadsafe(self._fail, self._wanted, error)
        self._has_changed.wait(_ANSWER_S)

    def _take(self, brought: Iterable[FollowedBatch]) -> None:
        self._ahead.release()
        for at, turn, batch, error in brought:
            feed = self._feeds.get(at)
            if feed is None or feed.turn != turn:
                continue
            count_batch(at.topic, batch)
            feed.take(batch, turn)
            if error is not None and feed.turn == turn:
                naming = self._loop.create_task(self._name_error(feed, turn, error), name=f"headrace-kafka-error-{at}")
                self._naming.add(naming)
                naming.add_done_callback(self._naming.discard)

    async def _name_error(self, feed: Feed, turn: int, error: Any) -> None:  # noqa: ANN401
        at = feed.at
        try:
            if isinstance(error, UnreadableRecord):
                named: Exception = error
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                named = out_of_range(at, feed.position, await find_bounds(self._cluster, at))
            else:
                self._topic_cache.forget(at.topic)
                timeout_s = self._cluster.request_timeout_s
                named = self._cluster.faults.of(error, f"follow {at}", timeout_s=timeout_s, topic=at.topic)
        except Exception as failure:  # the request for the bounds failed: its error is raised instead
            named = failure
        if feed.turn == turn:
            feed.fail(named)

    def _fail(self, wanted: Mapping[TopicPartition, _StartRequest], error: Exception) -> None:
        for at, (turn, *_) in wanted.items():
            feed = self._feeds.get(at)
            if feed is not None and feed.turn == turn:
                feed.fail(OperationFailed(f"following {at}", str(error)))

    def _topic_is_gone(self, topic: str, error: Exception) -> None:
        self._topic_cache.forget(topic)
        for at, feed in list(self._feeds.items()):
            if at.topic == topic:
                feed.fail(error)


class _FollowingConsumer:
    """One consumer, in its thread."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._consumer: Any = Consumer(source.config, logger=DRIVER_LOG)
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._asked: set[str] = set()

    def run(self) -> None:
        """Read the wanted partitions until none is wanted. Raises KafkaException, RuntimeError."""
        source = self._source
        applied: Mapping[TopicPartition, _StartRequest] | None = None
        try:
            while not source.is_closed:
                wanted = source.wanted
                if wanted is not applied:
                    self._apply(wanted)
                    applied = wanted
                if not wanted:
                    if not source.rest():
                        return
                    continue
                self._poll()
        finally:
            self._consumer.close()
            self._consumer = None

    def _apply(self, wanted: Mapping[TopicPartition, _StartRequest]) -> None:
        """Assign what is wanted. A partition that is wanted from another offset is given back and assigned again."""
        assigned = self._assigned
        gone = [at for at, has in assigned.items() if at not in wanted or wanted[at].turn != has.turn]
        if gone:
            self._consumer.incremental_unassign([_driver_partition(at) for at in gone])
            for at in gone:
                del assigned[at]
        new = {at: Assigned(turn, start, start) for at, (turn, start) in wanted.items() if at not in assigned}
        if new:
            self._find_leaders({at.topic for at in new})
            self._consumer.incremental_assign([_driver_partition(at, has.start) for at, has in new.items()])
            assigned.update(new)

    def _poll(self) -> None:
        found = sort_messages(whole(take, self._consumer, _RECORDS_AT_ONCE, _POLL_S), self._assigned)
        if found.doubtful:
            self._consumer.incremental_unassign([_driver_partition(at) for at in found.doubtful])
            self._consumer.incremental_assign(
                [_driver_partition(at, self._assigned[at].start) for at in found.doubtful]
            )
        if found.brought:
            self._source.hand_over(found.brought)

    def _find_leaders(self, topics: set[str]) -> None:
        """Ask for the leaders of new topics now: the driver would ask at its next tick, up to a second later."""
        with contextlib.suppress(KafkaException):  # no broker answers: the driver goes on asking
            for topic in topics - self._asked:
                self._consumer.list_topics(topic, _ANSWER_S)
                self._asked.add(topic)


def sort_messages(messages: Iterable[Any], assigned: Mapping[TopicPartition, Assigned]) -> SortedMessages:
    """Make a batch of messages for each partition, and move the positions.

    The end-of-partition event carries a position past what readers never see.
    """
    sorting = _Sorting(assigned)
    run: _Run | None = None  # nearly all messages come in runs of one partition
    for message in messages:
        if run is not None and message.error() is None and (message.topic(), message.partition()) == run.at:
            if message.offset() >= run.has.position and not run.has.has_failed:
                sorting.add(run, message)
        else:
            run = sorting.take(message)
    return sorting.sorted()


@dataclass(slots=True)
class _Run:
    """A partition that may be trusted, and the records that one poll brought for it."""

    at: TopicPartition
    has: Assigned
    before: int
    records: list[Record] = field(default_factory=list)


class _Sorting:
    """The messages of one poll by partition."""

    def __init__(self, assigned: Mapping[TopicPartition, Assigned]) -> None:
        self._assigned = assigned
        self._runs: dict[TopicPartition, _Run] = {}
        self._errors: dict[TopicPartition, Any] = {}
        self._doubtful: list[TopicPartition] = []

    def take(self, message: Any) -> _Run | None:  # noqa: ANN401
        """Take any message; if it was a partition's next record, return what the poll has brought for it so far."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            if not is_retried_by_driver(error):
                self._errors |= _fail(message, error, self._assigned)
            return None
        at = TopicPartition(message.topic(), message.partition())
        has = self._assigned.get(at)
        offset = message.offset()
        if has is None or has.has_failed or at in self._doubtful or offset < has.position:
            return None
        if not has.is_sure and not _is_believed(has, offset):
            self._doubtful.append(at)
            return None
        run = self._runs.get(at)
        if run is None:
            run = self._runs[at] = _Run(at, has, has.position)
        if error is not None:
            has.position = max(has.position, offset)
            return None
        self.add(run, message)
        return run

    def add(self, run: _Run, message: Any) -> None:  # noqa: ANN401
        """Add the next record of a partition. If it can't be decoded, later messages of the partition are ignored."""
        try:
            record = record_of(message)
        except UnreadableRecord as unreadable:
            run.has.has_failed = True
            self._errors[run.at] = unreadable
            return
        run.records.append(record)
        run.has.position = record.offset + 1

    def sorted(self) -> SortedMessages:
        """Return what was taken."""
        found = SortedMessages(doubtful=self._doubtful)
        for at in {**self._runs, **self._errors}:
            has, run, error = self._assigned[at], self._runs.get(at), self._errors.get(at)
            if error is not None or (run is not None and has.position > run.before):
                batch = Batch(run.records if run is not None else [], has.position)
                found.brought.append(FollowedBatch(at, has.turn, batch, error))
        return found


def _fail(message: Any, error: Any, assigned: Mapping[TopicPartition, Assigned]) -> dict[TopicPartition, Any]:  # noqa: ANN401
    """Note an error of a partition, of a topic, or of all; later messages are ignored."""
    topic, partition = message.topic(), message.partition()
    failed = [
        at
        for at, has in assigned.items()
        if not has.has_failed and topic in (None, at.topic) and (partition in (None, at.partition) or partition < 0)
    ]
    for at in failed:
        assigned[at].has_failed = True
    return dict.fromkeys(failed, error)


def _is_believed(has: Assigned, offset: int) -> bool:
    """Return True if the first message may be trusted to be the first record from the start on."""
    if offset == has.start or offset == has.doubt:
        has.is_sure = True
        return True
    has.doubt = offset
    return False


def _driver_partition(at: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID) -> Any:  # noqa: ANN401
    return confluent_kafka.TopicPartition(at.topic, at.partition, offset)
