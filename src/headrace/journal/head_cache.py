"""The head cache: one follower for each partition that is read, shared by all reads of a process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.errors import Closed, HeadraceError, OffsetOutOfRange, TimedOut, Unavailable
from headrace.journal.metrics import HEAD_ANSWERS, HEAD_ENTRIES_DROPPED
from headrace.log import Log
from headrace.model import Batch, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Head, HeadAnswer, HeadKind, Mark, bare_entries
from headrace.runtime import Backoff
from headrace.store import ReplicatedOffset, StoreReader

__all__ = ["HeadCache", "KeyWatch"]

_logger = get_logger(__name__)

# An action in the index takes about a thirtieth of the memory of a kept one.
_INDEXED_FOR_ONE = 30

_RESTART = Backoff(first_s=0.1, factor=2.0, limit_s=5.0, jitter=0.2)


class KeyWatch:
    """Tells one reader when the head has taken actions of its key. It keeps two offsets, and no records.

    Promises: `span` returns every stretch of the partition that can hold an action of the key, in order and without
    holes, or None: then the reader must read the journal again, because the head can't tell.
    """

    def __init__(self, followed: _Followed, id_: str, after: int) -> None:
        self._followed = followed
        self._id = id_
        self._after = after
        self._is_touched = followed.head.position > after + 1
        self._is_overtaken = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        followed.watches.setdefault(id_, set()).add(self)

    async def span(self) -> tuple[int, int] | None:
        """Wait for actions of the key; return the offsets (after, up_to] that hold them. Raises Closed."""
        while not (self._is_touched or self._is_overtaken or self._is_closed):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_closed:
            raise Closed("the head cache")
        if self._is_overtaken:
            return None
        after, up_to = self._after, max(self._after, self._followed.head.position - 1)
        self._after, self._is_touched = up_to, False
        return after, up_to

    def touch(self, start: int) -> None:
        """Note that the head has taken actions of the key, at `start` or later."""
        if not self._is_touched:
            self._after = max(self._after, start - 1)
            self._is_touched = True
            self._wake()

    def overtake(self) -> None:
        """Note that the head may have missed actions of the key."""
        self._is_overtaken = True
        self._wake()

    def shut(self) -> None:
        """Let the reader get Closed."""
        self._is_closed = True
        self._wake()

    def leave(self) -> None:
        """Stop watching."""
        watches = self._followed.watches.get(self._id, set())
        watches.discard(self)
        if not watches:
            self._followed.watches.pop(self._id, None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class _Followed:
    """A partition's head, the task that follows it, the reads that wait for it, and the readers that go on with it."""

    head: Head
    first_generation: int  # offsets of an earlier generation belong to a topic that is gone
    task: asyncio.Task[None] | None = None
    asked_s: float = 0.0
    waiters: dict[asyncio.Future[None], int] = field(default_factory=dict)
    replicated: ReplicatedOffset | None = None
    watches: dict[str, set[KeyWatch]] = field(default_factory=dict)

    def all_watches(self) -> list[KeyWatch]:
        """Return the watches of all keys."""
        return [watch for watches in self.watches.values() for watch in watches]


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

    @contextlib.contextmanager
    def watch(self, at: TopicPartition, generation: int, id_: str, *, after: int) -> Iterator[KeyWatch]:
        """Watch for actions of a key behind an offset while the block runs; the partition is followed that long."""
        if self._is_closed:
            raise Closed("the head cache")
        followed = self._follow(at, generation, after + 1)
        watch = KeyWatch(followed, id_, after)
        if followed.head.generation > generation:
            watch.overtake()
        try:
            yield watch
        finally:
            watch.leave()
            followed.asked_s = asyncio.get_running_loop().time()

    def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return the replicated offset that the store had a moment ago; None if that is not known.

        It is as good as asking the store: it was read before everything the reader will read, and never goes back. If
        somebody sets the store back, readers learn it within `trim_every_s`.
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
        tasks = [task for task in (*(one.task for one in self._followed.values()), self._trimmer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for followed in self._followed.values():
            for waiter in followed.waiters:
                if not waiter.done():
                    waiter.set_exception(Closed("the head cache"))
            for watch in followed.all_watches():
                watch.shut()
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
                    _take(followed, batch)
                    self._bound(at.topic, followed.head)
                    _wake(followed)
            except OffsetOutOfRange as error:  # the next read begins where the store is by then
                self._drop(at, followed, error)
                return
            except Exception as error:  # if the follower ended, every read would wait in vain
                if isinstance(error, HeadraceError) and not isinstance(error, Unavailable):
                    _overtake(followed)  # the topic is gone, or a record can't be read: readers get that error
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
        _overtake(followed)

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
        is_idle = asyncio.get_running_loop().time() - followed.asked_s > self._idle_s
        if is_idle and not followed.waiters and not followed.watches:
            self._drop(at, followed)
            return
        try:
            replicated = await self._store.replicated(at)
        except HeadraceError as error:
            _logger.warning("head not trimmed", partition=str(at), error=str(error))
            return
        if replicated is None or replicated.generation < followed.first_generation:
            followed.replicated = None  # a store that was emptied; readers ask it themselves
            return
        offset = replicated.offset
        if followed.watches:  # what the head has not read yet is not skipped: they wait for it
            offset = min(offset, followed.head.position - 1)
        followed.head.replicated(offset, replicated.generation)
        followed.replicated = replicated
        _wake(followed)


def _take(followed: _Followed, batch: Batch) -> None:
    records, head = batch.records, followed.head
    start, generation = head.position, head.generation
    entries = bare_entries(records, generation)
    head.take(entries, batch.next_offset, {record.offset: record for record in records})
    if not followed.watches:
        return
    if head.generation != generation:  # keys move to other partitions here
        _overtake(followed)
        return
    changed = {entry.id for entry in entries if entry.offset >= start and not isinstance(entry.action, Mark)}
    for id_ in changed & followed.watches.keys():
        for watch in followed.watches[id_]:
            watch.touch(start)


def _overtake(followed: _Followed) -> None:
    for watch in followed.all_watches():
        watch.overtake()


def _wake(followed: _Followed) -> None:
    for waiter, offset in followed.waiters.items():
        if followed.head.position > offset and not waiter.done():
            waiter.set_result(None)
