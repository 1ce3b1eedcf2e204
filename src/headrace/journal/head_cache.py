"""The head cache: one follower per partition somebody asks about, headers only, shared by all reads of a process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from headrace.errors import Closed, HeadraceError, OffsetOutOfRange, TimedOut
from headrace.journal.head import Head, HeadAnswer
from headrace.journal.metrics import HEAD_ANSWERS, HEAD_ENTRIES_DROPPED
from headrace.journal.partition_batch import entry_of
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff
from headrace.store import StoreReader

__all__ = ["HeadCache"]

_logger = get_logger(__name__)

_RESTART = Backoff(first_s=0.1, factor=2.0, limit_s=5.0, jitter=0.2)


@dataclass(slots=True)
class _Followed:
    """A partition's head, who follows it, and who waits for it to get further."""

    head: Head
    task: asyncio.Task[None] | None = None
    asked_s: float = 0.0
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)


class HeadCache:
    """Answers what the head of the log holds for a key.

    The bound is on actions, over all partitions. A partition that nobody asked about for `idle_s` is dropped.
    """

    def __init__(
        self,
        log: Log,
        store: StoreReader,
        *,
        max_actions: int = 100_000,
        idle_s: float = 300.0,
        trim_every_s: float = 1.0,
    ) -> None:
        self._log = log
        self._store = store
        self._max_actions = max_actions
        self._idle_s = idle_s
        self._trim_every_s = trim_every_s
        self._followed: dict[TopicPartition, _Followed] = {}
        self._trimmer: asyncio.Task[None] | None = None
        self._is_closed = False

    async def ask(
        self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int, timeout_s: float
    ) -> HeadAnswer:
        """Wait until the head is known up to the offset, then say what the key's actions after `after` are.

        Raises TimedOut when the head does not get there in time, Closed when the cache is closed meanwhile.
        """
        if self._is_closed:
            raise Closed("the head cache")
        followed = self._follow(at, generation, after + 1)
        followed.asked_s = asyncio.get_running_loop().time()
        await self._reach(at, followed, up_to, timeout_s)
        answer = followed.head.ask(id_, after=after, up_to=up_to)
        HEAD_ANSWERS.labels(at.topic, answer.kind.value).inc()
        return answer

    @property
    def actions(self) -> int:
        """How many actions are kept."""
        return sum(followed.head.actions for followed in self._followed.values())

    async def close(self) -> None:
        """Stop following; those who wait get Closed."""
        self._is_closed = True
        tasks = [followed.task for followed in self._followed.values()]
        for task in (*tasks, self._trimmer):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for followed in self._followed.values():
            for _, waiter in followed.waiters:
                if not waiter.done():
                    waiter.set_exception(Closed("the head cache"))
        self._followed.clear()

    def _follow(self, at: TopicPartition, generation: int, start: int) -> _Followed:
        followed = self._followed.get(at)
        if followed is None:
            followed = self._followed[at] = _Followed(Head(start, generation))
            followed.task = asyncio.create_task(self._run(at, followed), name=f"headrace-head-{at}")
        if self._trimmer is None or self._trimmer.done():
            self._trimmer = asyncio.create_task(self._trim_on(), name="headrace-head-trim")
        return followed

    async def _reach(self, at: TopicPartition, followed: _Followed, offset: int, timeout_s: float) -> None:
        if followed.head.position > offset:
            return
        waiter = asyncio.get_running_loop().create_future()
        followed.waiters.append((offset, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError as error:
            raise TimedOut(f"following the head of {at} up to offset {offset}", timeout_s) from error
        finally:
            followed.waiters = [(o, w) for o, w in followed.waiters if w is not waiter]

    async def _run(self, at: TopicPartition, followed: _Followed) -> None:
        """Follow the partition for ever; a reader that fails is opened again where it was."""
        attempt = 0
        while True:
            try:
                async for batch in self._log.read(at, followed.head.position, headers_only=True):
                    attempt = 0
                    entries = [entry_of(record, followed.head.generation) for record in batch.records]
                    followed.head.take([entry for entry in entries if entry is not None], batch.next_offset)
                    self._bound(at)
                    _wake(followed)
            except OffsetOutOfRange as error:
                self._give_up(at, followed, error)
                return
            except Exception as error:  # a follower that ended would let every reader wait in vain
                attempt += 1
                delay_s = _RESTART.delay_s(attempt)
                _logger.warning("head follower failed", partition=str(at), error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    def _give_up(self, at: TopicPartition, followed: _Followed, error: HeadraceError) -> None:
        """Forget a head that retention has overtaken; whoever asks next begins where the store is by then."""
        self._followed.pop(at, None)
        for _, waiter in followed.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _bound(self, at: TopicPartition) -> None:
        excess = self.actions - self._max_actions
        if excess > 0:
            head = self._followed[at].head
            HEAD_ENTRIES_DROPPED.labels(at.topic).inc(head.evict(max(head.actions - excess, 0)))

    async def _trim_on(self) -> None:
        while self._followed:
            await asyncio.sleep(self._trim_every_s)
            for at, followed in list(self._followed.items()):
                await self._trim(at, followed)

    async def _trim(self, at: TopicPartition, followed: _Followed) -> None:
        if asyncio.get_running_loop().time() - followed.asked_s > self._idle_s and not followed.waiters:
            self._followed.pop(at, None)
            if followed.task is not None:
                followed.task.cancel()
            return
        try:
            replicated = await self._store.replicated(at)
        except HeadraceError as error:
            _logger.warning("head not trimmed", partition=str(at), error=str(error))
            return
        if replicated is not None:
            followed.head.replicated(replicated.offset, replicated.generation)
            _wake(followed)


def _wake(followed: _Followed) -> None:
    for offset, waiter in followed.waiters:
        if followed.head.position > offset and not waiter.done():
            waiter.set_result(None)
