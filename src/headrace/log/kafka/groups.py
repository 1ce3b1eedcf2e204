"""Consumer groups: members with their partitions, records and commits."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException

from headrace.errors import BadArgument, Closed, HeadraceError, NotOwner, OffsetOutOfRange, TimedOut, UnreadableRecord
from headrace.log import checks
from headrace.log.kafka.client import DRIVER_LOG, Threads
from headrace.log.kafka.consumers import take
from headrace.log.kafka.faults import NOT_OWNER, error_in
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.kafka.read import find_bounds, record_of
from headrace.log.kafka.rebalances import Assignment
from headrace.log.metrics import FETCHED, FETCHES
from headrace.log.ports import Listener, StartAt
from headrace.model import Record, TopicPartition

__all__ = ["KafkaGroups", "KafkaMember"]

_POLL_S = 0.1
_GIVING_BACK_S = 5.0


class KafkaMember:
    """Kafka's Member. `member_id` is the client id, with which the brokers' own member id begins.

    Polls run in the member's thread, and rebalances inside of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        listener: Listener | None,
        start_at: StartAt,
        session_timeout_s: float,
    ) -> None:
        self.group = group
        self.member_id = f"headrace-{uuid.uuid4().hex}"
        self.on_leave: Callable[[KafkaMember], None] = lambda _: None
        self._cluster = cluster
        self._session_timeout_s = session_timeout_s
        self._threads = Threads("member", count=1)
        # Not the member's own thread: that one waits for the listener when `revoked` commits.
        self._committing = Threads("commit", count=1)
        config = cluster.configs.member(group, self.member_id, session_timeout_s=session_timeout_s)
        self._consumer = Consumer(config, logger=DRIVER_LOG)
        self._assignment = Assignment(cluster, group, listener, start_at)
        self._turn = asyncio.Lock()
        self._polling: asyncio.Future[list[Record]] | None = None
        self._is_leaving = False
        self._is_closed = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns, as of the last poll."""
        return self._assignment.partitions

    @property
    def generation(self) -> int:
        """How often the assignment has changed."""
        return self._assignment.generation

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to the topics."""
        subscribe = functools.partial(
            self._consumer.subscribe,
            list(topics),
            on_assign=self._assignment.on_assign,
            on_revoke=self._assignment.on_revoke,
            on_lost=self._assignment.on_lost,
        )
        await self._threads.run(subscribe)

    async def poll(self, *, max_records: int = 1000, timeout_s: float = 1.0) -> Sequence[Record]:
        """Take part in the group and return the next records.

        When a caller is cancelled, the records of its poll go to the next poll.
        """
        checks.check_poll(max_records, timeout_s)
        async with self._turn:
            self._check_open()
            await self._check_position()
            if self._polling is None:
                self._polling = self._threads.start(self._poll, max_records, timeout_s)
            polling = self._polling
            records = await asyncio.shield(polling)
            self._polling = None
            self._raise_problem(after=records)
            return [record for record in records if (record.topic, record.partition) in self.assignment]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets to continue from."""
        self._check_open()
        positions = self.positions_of(offsets)
        if positions:
            await self._bounded(self._committing.start(self._commit, positions))
            await self._cluster.threads.run(self._go_past_unreadable, dict(offsets))

    async def _bounded(self, committing: asyncio.Future[None]) -> None:
        """Wait for a commit with a time-out, which the driver does not have if the coordinator is silent.

        A commit that has not begun when the time is up, because another one still waits, is dropped.
        """
        timeout_s = self._cluster.request_timeout_s
        await asyncio.wait([committing], timeout=timeout_s)
        if not committing.done():
            committing.cancel()
            raise TimedOut(f"commit in group {self.group!r}", timeout_s, outcome_known=False)
        committing.result()

    async def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Stop fetching the owned ones of these partitions, or fetch them again."""
        self._check_open()
        owned = [at for at in checks.check_places(partitions) if at in self.assignment]
        (self._assignment.paused.update if paused else self._assignment.paused.difference_update)(owned)
        partitions_owned = [confluent_kafka.TopicPartition(*at) for at in owned]
        (self._consumer.pause if paused else self._consumer.resume)(partitions_owned)

    async def leave(self) -> None:
        """Give all partitions back and leave the group."""
        if self._is_leaving:
            return
        self._is_leaving = True
        async with self._turn:
            try:
                # Called here and not by the driver's close, in which a commit of the listener would wait for itself.
                if self._assignment.listener is not None and self.assignment:
                    await self._assignment.listener.revoked(self.assignment)
            finally:
                await asyncio.shield(asyncio.ensure_future(self._end()))

    async def stop(self) -> None:
        """Leave without calling the listener: the log is being closed."""
        self._assignment.listener = None
        await self.leave()

    async def _end(self) -> None:
        self._assignment.listener = None
        self._assignment.is_ending = True
        await self._threads.run(self._shut)
        await self._threads.join()
        await self._committing.join()
        self._is_closed = True
        self.on_leave(self)

    def positions_of(self, offsets: Mapping[TopicPartition, int]) -> list[Any]:
        """Return offsets in the driver's form. Raises NotOwner for partitions of other members."""
        offsets = checks.check_offsets(offsets)
        foreign = sorted(at for at in offsets if at not in self.assignment)
        if foreign:
            raise NotOwner(self.group, f"{', '.join(map(str, foreign))} not owned by {self.member_id}")
        return [confluent_kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]

    def group_metadata(self) -> Any:  # noqa: ANN401
        """Return the group metadata that a transaction needs to commit this member's offsets."""
        return self._consumer.consumer_group_metadata()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"member {self.member_id} of group {self.group!r}")

    async def _check_position(self) -> None:
        """Raise OffsetOutOfRange while this member owns a partition whose committed offset the log does not hold."""
        for at, offset in self._assignment.lost_at.items():
            if at in self.assignment:
                bounds = await find_bounds(self._cluster, at)
                raise OffsetOutOfRange(at.topic, at.partition, offset, bounds.start, bounds.high_watermark)

    def _raise_problem(self, *, after: Sequence[Record]) -> None:
        """Raise the thread's error, after the records that came before it were returned."""
        problem = self._assignment.problem
        if problem is not None and not after:
            self._assignment.problem = None
            raise problem
        if not after:
            for at, unreadable in self._assignment.unreadable.items():
                if at in self.assignment:
                    raise unreadable

    def _poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while not self._is_leaving:
            wait_s = max(0.0, min(_POLL_S, deadline - time.monotonic()))
            records = self._sort(take(self._consumer, max_records, wait_s))
            if records or self._has_news() or time.monotonic() >= deadline:
                return records
        return []

    def _has_news(self) -> bool:
        assignment = self._assignment
        return assignment.problem is not None or bool(assignment.lost_at) or bool(assignment.unreadable)

    def _sort(self, messages: list[Any]) -> list[Record]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records += self._readable(message)
            else:
                self._note(error, message)
        if records:
            for topic in {record.topic for record in records}:
                FETCHES.labels("kafka", topic).inc()
                FETCHED.labels("kafka", topic).inc(sum(record.topic == topic for record in records))
        return records

    def _readable(self, message: Any) -> list[Record]:  # noqa: ANN401
        """Return a message's record; nothing if it, or one before it, can't be decoded: the partition stops there."""
        at = TopicPartition(message.topic(), message.partition())
        if at in self._assignment.unreadable:
            return []
        try:
            return [record_of(message)]
        except UnreadableRecord as unreadable:
            self._assignment.unreadable[at] = unreadable
            self._consumer.pause([confluent_kafka.TopicPartition(*at)])
            return []

    def _go_past_unreadable(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue after a record that can't be decoded, if an offset after it was committed."""
        for at, offset in offsets.items():
            unreadable = self._assignment.unreadable.get(at)
            if unreadable is not None and unreadable.offset < offset and at in self.assignment:
                self._consumer.seek(confluent_kafka.TopicPartition(*at, offset))
                del self._assignment.unreadable[at]
                if at not in self._assignment.paused:
                    self._consumer.resume([confluent_kafka.TopicPartition(*at)])

    def _note(self, error: Any, message: Any) -> None:  # noqa: ANN401
        """Keep an error for the end of the poll, unless librdkafka retries after it automatically."""
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._assignment.lost_at[TopicPartition(message.topic(), message.partition())] = message.offset()
        elif code == KafkaError.INVALID_SESSION_TIMEOUT:
            self._assignment.problem = BadArgument(
                "session_timeout_s", self._session_timeout_s, f"the brokers say: {error.str()}"
            )
        elif not error.retriable() and code not in NOT_OWNER:
            self._assignment.problem = self._named(error, "poll", topic=message.topic())

    def _commit(self, positions: list[Any]) -> None:
        try:
            done = self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as failure:
            raise self._refused(error_in(failure)) from failure
        for each in done:
            if each.error is not None:
                raise self._refused(each.error)

    def _refused(self, error: Any) -> HeadraceError:  # noqa: ANN401
        if error.code() in NOT_OWNER:
            return NotOwner(self.group, error.str())
        return self._named(error, "commit", outcome_known=False)

    def _named(
        self,
        error: Any,  # noqa: ANN401
        what: str,
        *,
        topic: str | None = None,
        outcome_known: bool = True,
    ) -> HeadraceError:
        return self._cluster.faults.of(
            error,
            f"{what} in group {self.group!r}",
            timeout_s=self._cluster.request_timeout_s,
            topic=topic,
            outcome_known=outcome_known,
        )

    def _shut(self) -> None:
        """Give back what is owned, then close.

        An assignment that arrives during the driver's close can freeze the whole process: the callback waits, holding
        the interpreter's lock, for a group that does not answer any more. So assignments are given back first.
        """
        try:
            self._consumer.unsubscribe()
            self._consumer.poll(0)
            deadline = time.monotonic() + _GIVING_BACK_S
            while self._consumer.assignment() and time.monotonic() < deadline:
                self._consumer.poll(_POLL_S)
        finally:
            self._consumer.close()
            self._consumer = None


_SETTLE_S = 0.5
_ASK_AGAIN_S = 0.005


class KafkaGroups:
    """Kafka's Groups: the classic protocol, whose members choose their session time-out themselves."""

    def __init__(self, cluster: Cluster, topic_cache: TopicCache, check_open: Callable[[], None]) -> None:
        self._cluster = cluster
        self._topic_cache = topic_cache
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
            await self._topic_cache.get(topic)
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
        # A transaction that was just committed may still wait for its marker: wait for that, for a while.
        deadline = time.monotonic() + _SETTLE_S
        while True:
            found = await self._list(group, wanted, require_stable=time.monotonic() < deadline)
            if not any(_is_unstable(each) for each in found):
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        for each in found:
            if each.error is not None:  # this is no answer, and must not be taken for "no commit"
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
