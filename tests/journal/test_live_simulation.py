"""Live reads under attack: they stop and resume while the log grows, replication stumbles, and retention follows it.

The oracle is a plain reading of the log, one record after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.journal.test_simulation import Client, remover, replicator, writer
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore, Tables
from tests.suites.journal_oracle import Oracle
from tests.suites.journal_script_log import ScriptLog

from headrace.errors import JournalPurged
from headrace.journal import HeadCache, Journal, live
from headrace.model import Record, StoredEvent
from headrace.runtime import Backoff
from headrace.testing.plugin import Size


@dataclass
class Incarnation:
    """All events that a journal ever had between two purges, and up to where they were deleted in the end."""

    events: dict[int, StoredEvent] = field(default_factory=dict)
    delete_to: int = 0


class Incarnations:
    """The journals of a log, by id and in order, with what was deleted and purged."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.oracle = Oracle()
        self.by_id: dict[str, dict[int, Incarnation]] = {id_: {} for id_ in IDS}
        for record in records:
            self.oracle.apply(record)
            for id_, journal in self.oracle.journals.items():
                known = self.by_id[id_].setdefault(journal.born, Incarnation())
                known.events.update(journal.events)
                known.delete_to = journal.delete_to

    def check(self, id_: str, first: int, given: Sequence[StoredEvent]) -> Incarnation:
        """Check that events are those of one incarnation, in order; what is left out was deleted."""
        numbers = [event.seq_nr for event in given]
        assert numbers == sorted(set(numbers))
        assert numbers[0] >= first
        for known in self.by_id[id_].values():
            if all(known.events.get(event.seq_nr) == event for event in given):
                left_out = {n for n in known.events if first <= n <= numbers[-1]} - set(numbers)
                if all(n <= known.delete_to for n in left_out):
                    return known
        raise AssertionError(f"{numbers} from {first} are of no single journal {id_}")

    def is_whole(self, id_: str, first: int, given: Sequence[StoredEvent]) -> bool:
        """Return True if a read has nothing more to give: it has all that is alive, and nothing of what is gone."""
        journal = self.oracle.journals.get(id_)
        if journal is None or not given:
            return not given and (journal is None or not any(n >= first for n in journal.events))
        alive = {n for n in journal.events if n >= first}
        is_last = self.check(id_, first, given) is self.by_id[id_][journal.born]
        return is_last and alive <= {event.seq_nr for event in given}


class LiveReader:
    """Reads a journal without an end; stops now and then, and resumes behind the last event, or from 1 on."""

    def __init__(self, journal: Journal, id_: str, rng: random.Random) -> None:
        self.id = id_
        self.first = rng.choice((1, 1, 1, 3))
        self.events: list[StoredEvent] = []
        self.earlier: list[tuple[int, list[StoredEvent]]] = []
        self.purges = 0
        self._journal = journal
        self._rng = rng

    async def run(self) -> None:
        """Read forever."""
        while True:
            try:
                await self._read(self._rng.choice((1, 3, 1000)))
                first = self.events[-1].seq_nr + 1
            except JournalPurged:
                self.purges += 1
                first = 1
            self.earlier.append((self.first, self.events))
            self.first, self.events = first, []

    async def _read(self, most: int) -> None:
        async with contextlib.aclosing(self._journal.read(self.id, self.first, live=True)) as events:
            async for event in events:
                self.events.append(event)
                for _ in range(self._rng.choice((0, 0, 1, 8, 40))):
                    await asyncio.sleep(0)
                if len(self.events) == most:
                    return


@pytest.mark.filterwarnings("ignore:.*never retrieved")
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "tiny cache"])
async def test_live_readers_give_each_event_once_and_never_mix_two_journals(
    size: Size, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is void, deleted, purged, replicated, removed or evicted meanwhile, and wherever a reader resumes."""
    monkeypatch.setattr(live, "_AGAIN", Backoff(first_s=0.0, limit_s=0.0))
    purges = resumed = 0
    for seed in range(size(150, 3000)):
        rng = random.Random(seed)
        records = random_history(rng, actions=rng.randint(5, 40), plain=(0.0, 0.5)[seed % 2]).records
        incarnations = Incarnations(records)
        tables, log = Tables(), ScriptLog("t", records, rng)
        store = MemoryStore(tables, before=Client(rng, None))
        bounds = {"max_actions": rng.choice((1, 3, 1000)), "max_record_bytes": rng.choice((0, 1500, 1 << 20))}
        cache = HeadCache(log, store, **bounds, trim_every_s=0.0005) if cached else None
        journal = Journal(log, store, "t", cache=cache, read_only=True)
        readers = [LiveReader(journal, rng.choice(IDS), rng) for _ in range(4)]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        rivals = rng.choice((0, 1, 2))
        removing = [remover(rng, tables, log)] if rivals > 0 and rng.random() < 0.5 else []
        try:
            async with asyncio.timeout(20):
                replicators = [replicator(rng, tables, log, crashes=rng.randint(0, 3)) for _ in range(rivals)]
                await asyncio.gather(writer(rng, log), *replicators, *removing)
                for reader, task in zip(readers, tasks, strict=True):
                    while not incarnations.is_whole(reader.id, reader.first, reader.events):
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0)
        except (TimeoutError, AssertionError) as error:
            left = [(reader.id, reader.first, [event.seq_nr for event in reader.events]) for reader in readers]
            raise AssertionError(f"seed {seed}: {left}") from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if cache is not None:
                await cache.close()
        for reader in readers:
            for first, given in reader.earlier:
                if given:
                    incarnations.check(reader.id, first, given)
            purges += reader.purges
            resumed += len(reader.earlier) - reader.purges
    assert min(purges, resumed) > size(20, 200)


class Lister:
    """Lists all journals while the log grows, and holds each list against what existed meanwhile."""

    def __init__(self, log: ScriptLog, journal: Journal) -> None:
        self.lists = 0
        self._log = log
        self._journal = journal

    async def run(self, end: int) -> None:
        """List them until the log is written."""
        is_last = False
        while not is_last:
            is_last = self._log.end >= end
            await self.check()

    async def check(self) -> None:
        """List them once: what existed all the time is there, once, and what never existed is not."""
        before = self._log.end
        found = [id_ async for id_ in self._journal.ids(unreplicated=True)]
        oracle = Oracle(record for record in self._log.records if record.offset < before)
        always = ever = set(oracle.journals)
        for record in self._log.records:
            if before <= record.offset < self._log.end:
                oracle.apply(record)
                always, ever = always & set(oracle.journals), ever | set(oracle.journals)
        assert len(found) == len(set(found))
        assert always <= set(found) <= ever
        self.lists += 1


class LiveLister:
    """Lists journals without an end, in a task of its own."""

    def __init__(self, journal: Journal, incarnations: Incarnations) -> None:
        self.ids: list[str] = []
        self._journal = journal
        self._incarnations = incarnations
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with contextlib.aclosing(self._journal.ids(live=True)) as ids:
            async for id_ in ids:
                self.ids.append(id_)

    async def check(self) -> None:
        """Wait until it has given all journals that exist; none came twice, and each existed."""
        while not set(self._incarnations.oracle.journals) <= set(self.ids):
            assert not self._task.done(), self._task.exception()
            await asyncio.sleep(0)
        assert len(self.ids) == len(set(self.ids))
        assert set(self.ids) <= {id_ for id_, known in self._incarnations.by_id.items() if known}

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.filterwarnings("ignore:.*never retrieved")
async def test_lists_of_journals_are_whole_whatever_replication_does(size: Size) -> None:
    """Journals that are purged, void, half replicated, or replicated and removed during the list, live or not."""
    lists = 0
    for seed in range(size(100, 2000)):
        rng = random.Random(seed)
        records = random_history(rng, actions=rng.randint(5, 30)).records
        tables, log = Tables(), ScriptLog("t", records, rng)
        journal = Journal(log, MemoryStore(tables, before=Client(rng, None)), "t", cache=None, read_only=True)
        lister, rivals = Lister(log, journal), rng.choice((0, 1, 2))
        following = LiveLister(journal, Incarnations(records))
        removing = [remover(rng, tables, log)] if rivals > 0 and rng.random() < 0.5 else []
        replicators = [replicator(rng, tables, log, crashes=rng.randint(0, 3)) for _ in range(rivals)]
        try:
            async with asyncio.timeout(20):
                await asyncio.gather(writer(rng, log), *replicators, *removing, lister.run(records[-1].offset + 1))
                await following.check()
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            await following.stop()
        lists += lister.lists
    assert lists > size(200, 4000)
