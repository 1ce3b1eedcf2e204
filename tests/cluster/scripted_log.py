"""A log of brokers in memory whose answers are late, lost or refused by the roll of dice, in virtual time.

It has what matters of Kafka's transactions: an id has an epoch that each taking raises; records of an open transaction
take offsets and hide all that comes after them from readers; a commit is answered before its records can be read;
a request can arrive long after its sender gave it up, and then it is done or refused by the epoch it carries.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import Closed, Fenced, HeadraceError, TimedOut, TransactionFailed
from headrace.model import Batch, Bounds, NewRecord, Position, Record, Topic, TopicConfig, TopicPartition

REQUEST_TIMEOUT_S = 1.5

# What brokers do goes on when the node that asked for it is frozen: it is done outside of the node's context.
_BROKERS = contextvars.Context()


@dataclass
class Weather:
    """How bad the network is: chances and times of one history."""

    dice: random.Random
    lost: float = 0.002
    late: float = 0.01
    usual_s: float = 0.002
    latest_s: float = 3.0
    marking_s: float = 0.02

    def delay_s(self) -> float | None:
        """Return how long a message takes; None if it is lost."""
        chance = self.dice.random()
        if chance < self.lost:
            return None
        if chance < self.lost + self.late:
            return self.dice.random() ** 2 * self.latest_s
        return self.usual_s * (0.5 + self.dice.random())


@dataclass
class _Entry:
    record: Record | None
    is_open: bool = True
    is_kept: bool = False


@dataclass
class _Partition:
    entries: list[_Entry] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stable: int = 0

    @property
    def end(self) -> int:
        """The last stable offset."""
        while self.stable < len(self.entries) and not self.entries[self.stable].is_open:
            self.stable += 1
        return self.stable

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class _Id:
    epoch: int = 0
    open: list[tuple[TopicPartition, int]] = field(default_factory=list)
    marking: asyncio.Future[None] | None = None


class Brokers:
    """What all nodes share."""

    def __init__(self, weather: Weather, topics: Mapping[str, int]) -> None:
        self.weather = weather
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._topics = dict(topics)
        self._partitions = {TopicPartition(t, p): _Partition() for t, n in topics.items() for p in range(n)}
        self._ids: dict[str, _Id] = {}

    def partition(self, at: TopicPartition) -> _Partition:
        return self._partitions[at]

    def topic(self, name: str) -> Topic:
        return Topic(name=name, topic_id=name, partitions=self._topics[name], config=TopicConfig())

    def committed(self, at: TopicPartition) -> list[Record]:
        """Return what a reader gets once all that was decided is marked."""
        return [entry.record for entry in self.partition(at).entries if entry.is_kept and entry.record is not None]

    async def take(self, transactional_id: str) -> int:
        """Raise the id's epoch; what its last owner left open is aborted, what it committed is marked first."""
        owned = self._ids.setdefault(transactional_id, _Id())
        owned.epoch += 1
        epoch = owned.epoch
        if owned.marking is not None:
            await asyncio.shield(owned.marking)
        if owned.epoch == epoch and owned.open:
            await self._mark(owned, is_kept=False)
        if owned.epoch != epoch:
            raise Fenced(transactional_id)
        return epoch

    def append(self, new: NewRecord) -> None:
        """Put a record of a producer without transactions into its partition."""
        partition = self.partition(TopicPartition(new.topic, new.partition or 0))
        stamp_ms = int(self._loop.time() * 1000)
        offset = len(partition.entries)
        record = Record(new.topic, new.partition or 0, offset, stamp_ms, new.key, new.value, new.headers)
        partition.entries.append(_Entry(record, is_open=False, is_kept=True))
        partition.wake()

    def produce(self, transactional_id: str, epoch: int, records: Sequence[NewRecord]) -> list[Position]:
        """Put records into the partitions, as part of the open transaction."""
        owned = self._current(transactional_id, epoch)
        positions = []
        for new in records:
            at = TopicPartition(new.topic, new.partition or 0)
            partition = self.partition(at)
            offset = len(partition.entries)
            stamp_ms = int(self._loop.time() * 1000)
            record = Record(at.topic, at.partition, offset, stamp_ms, new.key, new.value, new.headers)
            partition.entries.append(_Entry(record))
            owned.open.append((at, offset))
            positions.append(Position(at.topic, at.partition, offset, stamp_ms))
        return positions

    def end(self, transactional_id: str, epoch: int, *, is_kept: bool) -> None:
        """Decide the open transaction; its records can be read a moment later."""
        owned = self._current(transactional_id, epoch)
        if owned.open:
            owned.marking = asyncio.ensure_future(self._mark(owned, is_kept=is_kept))

    async def _mark(self, owned: _Id, *, is_kept: bool) -> None:
        open_, owned.open = owned.open, []
        for at, offset in open_:
            self.partition(at).entries[offset].is_kept = is_kept
        touched = list(dict.fromkeys(at for at, _ in open_))
        self.weather.dice.shuffle(touched)
        for at in touched:  # one after the other: readers of two partitions see a transaction end at two moments
            await asyncio.sleep(self.weather.dice.random() * self.weather.marking_s)
            for offset in (offset for place, offset in open_ if place == at):
                self.partition(at).entries[offset].is_open = False
            self.partition(at).entries.append(_Entry(None, is_open=False))
            self.partition(at).wake()
        owned.marking = None

    def _current(self, transactional_id: str, epoch: int) -> _Id:
        owned = self._ids[transactional_id]
        if owned.epoch != epoch:
            raise Fenced(transactional_id)
        return owned


class ScriptedLog:
    """One node's client of the brokers: the part of the log's port that ownership uses."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._loop = asyncio.get_running_loop()
        self.cut_until_s = 0.0
        self.stalled_until_s = 0.0
        self.slow_until_s = 0.0

    @property
    def admin(self) -> ScriptedLog:
        return self

    async def describe(self, topic: str) -> Topic:
        return self._brokers.topic(topic)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> ScriptedProducer:
        epoch = await self.ask(lambda: self._brokers.take(transactional_id), f"take {transactional_id}")
        return ScriptedProducer(self, self._brokers, transactional_id, epoch)

    async def bounds(self, at: TopicPartition) -> Bounds:
        partition = self._brokers.partition(at)
        return await self.ask(lambda: Bounds(0, partition.end, len(partition.entries)), f"bounds of {at}")

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        partition = self._brokers.partition(at)
        while end is None or start < end:
            changed = partition.changed
            upto = partition.end if end is None else min(end, partition.end)
            if upto > start:
                entries = partition.entries[start:upto]
                start = upto
                await self._deliver()
                yield Batch([e.record for e in entries if e.is_kept and e.record is not None], upto)
            else:
                await self._wait(changed, at, None if end is None else timeout_s)

    async def _wait(self, changed: asyncio.Event, at: TopicPartition, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError as error:
            raise TimedOut(f"read {at}", timeout_s or 0) from error

    async def _deliver(self) -> None:
        """Let a fetched batch travel: late at times, and as late as can be where it is lost and fetched again."""
        delay_s = self._delay_s()
        again_s = max(self.cut_until_s, self.stalled_until_s) - self._loop.time()
        await asyncio.sleep(max(again_s, 0.2 if delay_s is None else delay_s))

    def _delay_s(self) -> float | None:
        return None if self._loop.time() < self.cut_until_s else self._brokers.weather.delay_s()

    async def ask(self, effect: Callable[[], Any], operation: str) -> Any:
        """Send a request and wait for its answer, which may never come though the request was done."""
        if self._brokers.is_over:
            raise Closed("the log")
        answer: asyncio.Future[Any] = self._loop.create_future()
        there_s = self._delay_s()
        if there_s is not None:
            self._loop.call_later(there_s, self._arrive, effect, answer, context=_BROKERS)
        unanswered = TimedOut(operation, REQUEST_TIMEOUT_S, outcome_known=False)
        timer = self._loop.call_later(REQUEST_TIMEOUT_S, _resolve, answer, unanswered)
        try:
            return await answer
        finally:
            timer.cancel()

    def _arrive(self, effect: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        """Do what was asked for, on the broker's side: it does not matter whether the asker still lives."""
        try:
            result = effect()
        except HeadraceError as error:
            self._answer(answer, error)
            return
        if asyncio.iscoroutine(result):
            done = asyncio.ensure_future(result)
            done.add_done_callback(lambda task: self._answer(answer, task.exception() or task.result()))
        else:
            self._answer(answer, result)

    def _answer(self, answer: asyncio.Future[Any], result: Any) -> None:
        back_s = self._delay_s()
        if back_s is not None:
            if self._loop.time() < self.slow_until_s:
                back_s += self._brokers.weather.dice.random() * 0.45
            self._loop.call_later(back_s, _resolve, answer, result, context=_BROKERS)


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class ScriptedProducer:
    """One owner of a transactional id, with the port's promises: after a call without an answer it is spent."""

    def __init__(self, log: ScriptedLog, brokers: Brokers, transactional_id: str, epoch: int) -> None:
        self.transactional_id = transactional_id
        self._log = log
        self._brokers = brokers
        self._epoch = epoch
        self._records: list[NewRecord] = []
        self._is_spent = False
        self._is_open = False

    async def begin(self) -> None:
        if self._is_spent:
            raise TransactionFailed(self.transactional_id, "spent; take the id again")
        self._is_open, self._records = True, []

    async def append(self, records: Sequence[NewRecord]) -> None:
        self._records.extend(records)

    async def commit(self) -> list[Position]:
        positions: list[Position] = await self._ask(
            lambda: self._brokers.produce(self.transactional_id, self._epoch, self._records), is_known=True
        )
        self._is_open = False
        await self._ask(lambda: self._brokers.end(self.transactional_id, self._epoch, is_kept=True), is_known=False)
        return positions

    async def abort(self) -> None:
        self._is_open = False

    async def close(self) -> None:
        """Abort what is open, if the brokers hear of it."""
        if self._is_open and not self._brokers.is_over:
            self._is_open = False
            try:
                await self._ask(
                    lambda: self._brokers.end(self.transactional_id, self._epoch, is_kept=False), is_known=True
                )
            except (Fenced, TransactionFailed):
                return

    async def _ask(self, effect: Callable[[], Any], *, is_known: bool) -> Any:
        # As the real one, a call goes to its end when its caller leaves; it is spent until it was answered.
        was_spent, self._is_spent = self._is_spent, True
        try:
            asking = asyncio.ensure_future(self._log.ask(effect, "transaction"))
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            answer = await asyncio.shield(asking)
        except Fenced as error:
            raise Fenced(self.transactional_id, outcome_known=is_known) from error
        except TimedOut as error:
            raise TransactionFailed(self.transactional_id, "no answer", outcome_known=is_known) from error
        self._is_spent = was_spent
        return answer
