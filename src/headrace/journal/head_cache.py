"""The head cache: one follower for each partition that is read, shared by all reads of a process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from headrace.errors import Closed, HeadraceError, OffsetOutOfRange, TimedOut
from headrace.journal.metrics import HEAD_ANSWERS, HEAD_ENTRIES_DROPPED
from headrace.log import Log
from headrace.model import Batch, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Head, HeadAnswer, HeadKind, bare_entries
from headrace.runtime import Backoff
from headrace.store import ReplicatedOffset, StoreReader

__all__ = ["HeadCache"]

_logger = get_logger(__name__)

# An action in the index takes about a thirtieth of the memory of a kept one.
_INDEXED_FOR_ONE = 30

_RESTART = Backoff(first_s=0.1, factor=2.0, limit_s=5.0, jitter=0.2)


@dataclass(slots=True)
class _Followed:
    """A partition's head, the task that follows it, and the reads that wait for it."""

    head: Head
    first_generation: int  # offsets of an earlier generation belong to a topic that is gone
    task: asyncio.Task[None] | None = None
    asked_s: float = 0.0
    waiters: dict[asyncio.Future[None], int] = field(default_factory=dict)
    replicated: ReplicatedOffset | None = None


class HeadCache:
    """The un-replicated actions of all keys, in memory.

    There are two bounds over all partitions: on actions, and on the bytes of the newest records (0: no records are
    kept and only headers are read). Of evicted actions the offsets are kept, for up to thirty times as many actions;
    beyond that a key is unknown. A reader gets what is not here from the log. A partition that was not asked about for
    `idle_s` is dropped.
    """

    def __init__(
        self,
        log: Log,
        store: StoreReader,
        *,
        max_actions: int = 100_000,
        max_record_bytes: int = 32 * 1024 * 1024,
        idle_s: float = 300.0,
        trim_every_s: float = 1.0,
    ) -> None:
        self._log = log
        self._store = store
        self._max_actions = max_actions
        self._max_record_bytes = max_record_bytes
        self._idle_s = idle_s
        self._trim_every_s = trim_every_s
        self._followed: dict[TopicPartition, _Followed] = {}
        self._trimmer: asyncio.Task[None] | None = None
        self._is_closed = False

    async def ask(
        self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int, timeout_s: float
    ) -> HeadAnswer:
        """Wait until the head is known up to the offset, then return the key's actions after `after`.

        Raises TimedOut if the head does not get there in time, Closed if the cache is closed meanwhile.
        """
        if self._is_closed:
            raise Closed("the head cache")
        followed = self._follow(at, generation, after + 1)
        followed.asked_s = asyncio.get_running_loop().time()
        await self._reach(at, followed, up_to, timeout_s)
        if followed.head.generation < generation:  # else it would have passed the boundary by now
            self._drop(at, followed, TimedOut(f"following {at} of a topic that was created again", timeout_s))
            return HeadAnswer(HeadKind.UNKNOWN)
        answer = followed.head.ask(id_, after=after, up_to=up_to)
        HEAD_ANSWERS.labels(at.topic, answer.kind.value).inc()
        return answer

    def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return the replicated offset that the store had a moment ago; None if the partition is not followed.

        It is as good as asking the store: it never goes back, and it was read before everything the reader will read.
        """
        followed = self._followed.get(at)
        return followed.replicated if followed is not None else None

    @property
    def actions(self) -> int:
        """The number of actions that are kept."""
        return sum(followed.head.actions for followed in self._followed.values())

    @property
    def indexed(self) -> int:
        """The number of actions of which only the offsets are kept."""
        return sum(followed.head.indexed for followed in self._followed.values())

    @property
    def record_bytes(self) -> int:
        """The size of the records that are kept."""
        return sum(followed.head.record_bytes for followed in self._followed.values())

    async def close(self) -> None:
        """Stop following; reads that wait get Closed."""
        self._is_closed = True
        tasks = [followed.task for followed in self._followed.values()]
        for task in (*tasks, self._trimmer):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for followed in self._followed.values():
            for waiter in followed.waiters:
                if not waiter.done():
                    waiter.set_exception(Closed("the head cache"))
        self._followed.clear()

    def _follow(self, at: TopicPartition, generation: int, start: int) -> _Followed:
        followed = self._followed.get(at)
        if followed is None:
            followed = self._followed[at] = _Followed(Head(start, generation, has_index=True), generation)
            followed.task = asyncio.create_task(self._run(at, followed), name=f"headrace-head-{at}")
        if self._trimmer is None or self._trimmer.done():
            self._trimmer = asyncio.create_task(self._trim_on(), name="headrace-head-trim")
        return followed

    async def _reach(self, at: TopicPartition, followed: _Followed, offset: int, timeout_s: float) -> None:
        if followed.head.position > offset:
            return
        waiter = asyncio.get_running_loop().create_future()
        followed.waiters[waiter] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError as error:
            raise TimedOut(f"following the head of {at} up to offset {offset}", timeout_s) from error
        finally:
            followed.waiters.pop(waiter, None)

    async def _run(self, at: TopicPartition, followed: _Followed) -> None:
        """Follow the partition forever; a log reader that fails is opened again where it was."""
        attempt = 0
        while True:
            try:
                headers_only = self._max_record_bytes <= 0
                async for batch in self._log.read(at, followed.head.position, headers_only=headers_only):
                    attempt = 0
                    _take(followed.head, batch)
                    self._bound(at.topic, followed.head)
                    _wake(followed)
            except OffsetOutOfRange as error:  # the next read begins where the store is by then
                self._drop(at, followed, error)
                return
            except Exception as error:  # if the follower ended, every read would wait in vain
                attempt += 1
                delay_s = _RESTART.delay_s(attempt)
                _logger.warning("head follower failed", partition=str(at), error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    def _drop(self, at: TopicPartition, followed: _Followed, error: HeadraceError | None = None) -> None:
        """Forget a head. Reads that wait for it get the error."""
        if self._followed.get(at) is followed:
            del self._followed[at]
        if followed.task is not None and followed.task is not asyncio.current_task():
            followed.task.cancel()
        for waiter in followed.waiters:
            if error is not None and not waiter.done():
                waiter.set_exception(error)

    def _bound(self, topic: str, head: Head) -> None:
        excess_bytes = self.record_bytes - self._max_record_bytes
        if excess_bytes > 0:
            head.drop_records(max(head.record_bytes - excess_bytes, 0))
        excess = self.actions - self._max_actions
        if excess > 0:
            HEAD_ENTRIES_DROPPED.labels(topic).inc(head.evict(max(head.actions - excess, 0)))
        if self.indexed > self._max_actions * _INDEXED_FOR_ONE:
            head.drop_index()

    async def _trim_on(self) -> None:
        while self._followed:
            await asyncio.sleep(self._trim_every_s)
            for at, followed in list(self._followed.items()):
                await self._trim(at, followed)

    async def _trim(self, at: TopicPartition, followed: _Followed) -> None:
        if asyncio.get_running_loop().time() - followed.asked_s > self._idle_s and not followed.waiters:
            self._drop(at, followed)
            return
        try:
            replicated = await self._store.replicated(at)
        except HeadraceError as error:
            _logger.warning("head not trimmed", partition=str(at), error=str(error))
            return
        if replicated is not None and replicated.generation >= followed.first_generation:
            followed.head.replicated(replicated.offset, replicated.generation)
            followed.replicated = replicated
            _wake(followed)


def _take(head: Head, batch: Batch) -> None:
    records = batch.records
    head.take(bare_entries(records, head.generation), batch.next_offset, {record.offset: record for record in records})


def _wake(followed: _Followed) -> None:
    for waiter, offset in followed.waiters.items():
        if followed.head.position > offset and not waiter.done():
            waiter.set_result(None)
