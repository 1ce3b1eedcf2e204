"""The matrix of the J lines: events × splits × head cache × deliveries × what the replica has, in one timeline a case.

After every step of the timeline the replica is brought to where the case wants it, and the journal is read.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from tests.suites.journal_faults import RepeatingLog
from tests.suites.journal_setting import JournalSetting, new_topic, numbers, records_of, replicate

from headrace.journal import HeadCache, Journal
from headrace.log import Log
from headrace.model import MAX_SEQ_NR, Event, TopicPartition
from headrace.protocol.actions import Delete, Mark
from headrace.protocol.headers import decode_action
from headrace.store import Store

__all__ = ["Case", "JournalMatrix", "all_cases", "pairwise"]

_AT_ONCE = 24


class Replica(NamedTuple):
    """What the store has: `actions` of the last it lacks, and its replicated offset lags `offsets` behind them."""

    name: str
    actions: int = 0
    offsets: int = 0


REPLICAS = (
    Replica("empty"),
    Replica("log holds marks only"),
    Replica("consistent"),
    *(Replica("pointer behind", 0, n) for n in (1, 2, 3)),
    *(Replica("actions behind", n, 0) for n in (1, 2, 3, 4)),
    *(Replica("both", actions, offsets) for actions, offsets in ((1, 1), (2, 3), (4, 2))),
)


class Case(NamedTuple):
    """One case."""

    split: tuple[int, ...]
    is_cached: bool
    is_repeated: bool
    replica: Replica


def splits(count: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to split a number of events into appends."""
    if count == 0:
        yield ()
    for first in range(1, count + 1):
        for rest in splits(count - first):
            yield (first, *rest)


def all_cases() -> list[Case]:
    """Return the whole matrix."""
    every_split = [split for count in range(6) for split in splits(count)]
    return [Case(*values) for values in itertools.product(every_split, (False, True), (False, True), REPLICAS)]


def pairwise(cases: Sequence[Case], *, most: int) -> list[Case]:
    """Choose cases so that every pair of values of two columns occurs, as far as `most` allows."""
    rng = random.Random(7)
    pool = list(cases)
    rng.shuffle(pool)
    missing = {pair for case in cases for pair in _pairs(case)}
    chosen: list[Case] = []
    while missing and len(chosen) < most:
        best = max(rng.sample(pool, min(200, len(pool))), key=lambda case: len(_pairs(case) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[int, object], tuple[int, object]]]:
    return set(itertools.combinations(enumerate(case), 2))


class Timeline:
    """Runs one case in a topic of its own."""

    def __init__(self, log: Log, store: Store, topic: str, case: Case) -> None:
        self.log: Log = RepeatingLog(log) if case.is_repeated else log
        self.store = store
        self.topic = topic
        self.case = case
        self.cache = HeadCache(self.log, store.reader) if case.is_cached else None
        self.journal = Journal(self.log, store, topic, cache=self.cache)
        self.actions: list[int] = []

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:
            error.add_note(f"in {self.case}")
            raise
        finally:
            if self.cache is not None:
                await self.cache.close()

    async def _run(self) -> None:
        await self.step_before_all()
        count = sum(self.case.split)
        await self.appends()
        await self.expect(1, count)
        for first in {2, max(1, count), count + 1}:
            assert await numbers(self.journal, "k", first) == list(range(first, count + 1))
        assert await numbers(self.journal, "k", MAX_SEQ_NR) == []
        await self.marks(count)
        if count > 0:
            await self.deletes(count)
        await self.purges(count)

    async def step_before_all(self) -> None:
        """J1: nothing is there, and a delete of nothing writes nothing."""
        assert await numbers(self.journal, "k") == []
        assert await self.journal.pointer("k") is None
        assert await self.journal.delete("k", to=MAX_SEQ_NR) is None
        assert await self.all_of(Delete) == []

    async def appends(self) -> None:
        first = 1
        for size in self.case.split:
            written = await self.journal.append("k", [Event(n, {"n": n}) for n in range(first, first + size)])
            self.actions.append(written.offset)
            first += size
            await self.bring_replica()
            await self.expect(1, first - 1)

    async def marks(self, count: int) -> None:
        await self.journal.mark("k", "x")
        await self.bring_replica()
        await self.expect(1, count)
        marks = [action for action in await self.all_of(Mark) if isinstance(action, Mark)]
        assert [mark.id for mark in marks].count("x") <= 1

    async def deletes(self, count: int) -> None:
        for to in sorted({1, max(1, count - 1), count}):
            deleted = await self.journal.delete("k", to=to)
            assert deleted is not None
            self.actions.append(deleted.offset)
            await self.bring_replica()
            await self.expect(to + 1, count)
        deleted = await self.journal.delete("k", to=MAX_SEQ_NR)
        assert deleted is not None
        self.actions.append(deleted.offset)
        last = [action for action in await self.all_of(Delete) if isinstance(action, Delete)]
        assert last[-1].to == count
        await self.bring_replica()
        await self.expect(count + 1, count)

    async def purges(self, count: int) -> None:
        self.actions.append((await self.journal.purge("k")).offset)
        await self.bring_replica()
        await self.expect(1, 0)
        self.actions.append((await self.journal.append("k", [Event(1, "again")])).offset)
        await self.bring_replica()
        await self.expect(1, 1)
        await replicate(self.log, self.store, self.topic)
        await self.expect(1, 1)

    async def expect(self, first: int, last: int) -> None:
        assert await numbers(self.journal, "k") == list(range(first, last + 1))
        assert await self.journal.pointer("k") == (last or None)

    async def all_of(self, kind: type) -> list[object]:
        found = {record.offset: decode_action(record) for record in await records_of(self.log, self.topic)}
        return [action for action in found.values() if isinstance(action, kind)]

    async def bring_replica(self) -> None:
        """Bring the replica to where the case wants it."""
        replica = self.case.replica
        if replica.name == "empty":
            return
        end = (await self.log.bounds(TopicPartition(self.topic, 0))).end
        up_to = end - 1
        if replica.actions > 0:
            behind = self.actions[-replica.actions :]
            up_to = behind[0] - 1 if len(behind) == replica.actions else -1
        if up_to < 0:
            return
        await replicate(self.log, self.store, self.topic, up_to=up_to, move_to=up_to - replica.offsets)
        if replica.name == "log holds marks only":
            offset = await self.journal.mark("k", "only")
            await replicate(self.log, self.store, self.topic, up_to=offset - 1)
            await self.log.retention.truncate(TopicPartition(self.topic, 0), before=offset)


class JournalMatrix(JournalSetting):
    """The matrix; a tier says which cases it runs."""

    @pytest.fixture
    def cases(self) -> Sequence[Case]:
        """Return the cases to run."""
        return all_cases()

    async def test_every_case_reads_what_was_written(self, log: Log, store: Store, cases: Sequence[Case]) -> None:
        """J1, J2, J3, J4, J5, J6, J7, J8, J10, J11: whatever the split, cache, delivery and replica."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(case: Case) -> None:
            async with limit:
                await Timeline(log, store, await new_topic(log), case).run()

        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(one(case))
