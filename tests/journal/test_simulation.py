"""Replication under attack: crashes before every operation, replays in other slices, two replicators, late writers.

The oracle is a plain reading of the log. A reader in the middle of it all sees a state that the log had, or a typed
error.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore, Tables
from tests.suites.journal_oracle import Oracle
from tests.suites.journal_script import Script
from tests.suites.journal_script_log import ScriptLog

from headrace.errors import HeadraceError, ReadAgain
from headrace.journal import HeadCache, Journal, KeptHeads, held_journals, replicate_batch
from headrace.journal.retention import removable_before
from headrace.journal.window import fold, last_of
from headrace.model import Record, TopicPartition
from headrace.protocol.actions import Verdict
from headrace.protocol.entries import batch_of
from headrace.protocol.fold import Effect, step
from headrace.protocol.headers import encode_action
from headrace.protocol.layout import Generation, Layout
from headrace.store import JournalMeta
from headrace.testing import SimulatedCrash
from headrace.testing.plugin import Size

AT = TopicPartition("t", 0)
LAYOUT = Layout("t", "script", (Generation(1),))


class Client:
    """A replicator's connection: holds it up at random, and dies before its n-th operation, whole."""

    def __init__(self, rng: random.Random, dies_at: int | None) -> None:
        self._rng = rng
        self._left = dies_at

    async def __call__(self, operation: str) -> None:
        for _ in range(self._rng.choice((0, 0, 1, 2, 7))):
            await asyncio.sleep(0)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise SimulatedCrash(operation, 1)


def delivered(rng: random.Random, records: Sequence[Record]) -> list[Record]:
    """Deliver the records, in half of the cases some of them twice, now and then a whole run."""
    if rng.random() < 0.5:
        return list(records)
    again = [record for record in records for _ in range(rng.choice((1, 1, 1, 2)))]
    return again + list(records) if rng.random() < 0.1 else again


async def replicator(rng: random.Random, tables: Tables, log: ScriptLog, *, crashes: int) -> None:
    """Apply random slices of what the log holds until all is done, dying a few times on the way.

    Heads are kept from slice to slice. Some crashes are those of a task: its process lives on with what it has kept.
    """
    last, heads = log.records[-1].offset, KeptHeads(most=rng.choice((1, 3, 100)))
    while True:
        replicated = tables.replicated.get(AT)
        done = replicated.offset if replicated is not None else -1
        if done >= last:
            return
        await asyncio.sleep(0)
        begin, up_to = rng.randint(max(0, done - 8), done + 1), rng.randint(done, min(log.end - 1, done + 12))
        records = [record for record in log.records if begin <= record.offset <= up_to]
        dies_at = rng.randint(0, 12) if crashes > 0 and rng.random() < 0.6 else None
        store = MemoryStore(tables, before=Client(rng, dies_at))
        try:
            await replicate_batch(store, LAYOUT, AT, delivered(rng, records), up_to=up_to, heads=heads)
        except SimulatedCrash:
            crashes -= 1
            heads = rng.choice((heads, KeptHeads()))


async def writer(rng: random.Random, log: ScriptLog) -> None:
    """Let the log grow."""
    for record in log.records:
        for _ in range(rng.choice((0, 1, 5, 20))):
            await asyncio.sleep(0)
        await log.move(record.offset + 1)


async def remover(rng: random.Random, tables: Tables, log: ScriptLog) -> None:
    """Remove from the log what is replicated, as replication does with what is old."""
    while log.start <= log.records[-1].offset:
        for _ in range(rng.choice((1, 5, 30))):
            await asyncio.sleep(0)
        log.start = removable_before(await log.bounds(AT), tables.replicated.get(AT), 0, None)


async def settle() -> None:
    """Let tasks end that outlive a crash, as those of a process that hangs would."""
    for _ in range(200):
        await asyncio.sleep(0)


async def in_order(records: Sequence[Record]) -> Tables:
    """Apply records in one pass."""
    store = MemoryStore()
    await replicate_batch(store, LAYOUT, AT, records, up_to=records[-1].offset)
    return store.tables


@pytest.mark.filterwarnings("ignore:.*never retrieved")
async def test_crashes_replays_and_rivals_end_in_what_one_pass_makes(size: Size) -> None:
    """R24, B7: rows and heads of the store equal those of one pass in order, whatever happened on the way."""
    for seed in range(size(400, 5000)):
        rng = random.Random(seed)
        records = random_history(rng, actions=rng.randint(5, 30), plain=(0.0, 0.7)[seed % 2]).records
        tables, log = Tables(), ScriptLog("t", records, rng)
        log.end = records[-1].offset + 1
        rivals = [replicator(rng, tables, log, crashes=rng.randint(0, 4)) for _ in range(rng.choice((1, 2, 3)))]
        await asyncio.gather(*rivals)
        await settle()
        expected = await in_order(records)
        assert tables.state() == expected.state(), f"seed {seed}"
        assert tables.replicated[AT].segment_size == expected.replicated[AT].segment_size, f"seed {seed}"
        await check_all(seed, tables, records)


async def check_all(seed: int, tables: Tables, records: Sequence[Record]) -> None:
    """Read every journal from the store alone."""
    log = ScriptLog("t", records, random.Random(seed))
    log.end = records[-1].offset + 1
    journal = Journal(log, MemoryStore(tables), "t", cache=None, read_only=True)
    oracle = Oracle(records)
    for id_ in IDS:
        found = [event async for event in journal.read(id_)]
        assert (await journal.pointer(id_), tuple(found)) == oracle.visible(id_), f"seed {seed}, journal {id_}"


async def replicate_in_slices(rng: random.Random, tables: Tables, script: Script) -> None:
    """Apply all that the script holds, in slices, dying now and then."""
    last = script.records[-1].offset
    while (done := tables.replicated.get(AT)) is None or done.offset < last:
        reached = done.offset if done is not None else -1
        up_to = min(last, reached + rng.randint(1, 9))
        dies_at = rng.randint(0, 12) if rng.random() < 0.3 else None
        records = [record for record in script.records if record.offset <= up_to]
        with contextlib.suppress(SimulatedCrash):
            await replicate_batch(MemoryStore(tables, before=Client(rng, dies_at)), LAYOUT, AT, records, up_to=up_to)
        await settle()


def poisoned(rng: random.Random, history: Script) -> tuple[Script, dict[str, list[int]]]:
    """Put records that can't be decoded between those of a history; returns where they are, by journal."""
    script, poison = Script(), dict[str, list[int]]()
    for record in history.records:
        if rng.random() < 0.2:
            id_ = rng.choice(IDS)
            poison.setdefault(id_, []).append(script.poison(id_).offset)
        script.put((record.key or b"").decode(), record.value, record.headers)
    return script, poison


@pytest.mark.filterwarnings("ignore:.*never retrieved")
async def test_poison_records_are_named_and_skipped_one_by_one(size: Size) -> None:
    """FJ12, E9: whatever the slices, the list names the first one held; skipped one by one, the rest is all there."""
    rounds = 0
    for seed in range(size(60, 1000)):
        rng = random.Random(seed)
        plain = plain_history(rng)
        script, poison = poisoned(rng, plain)
        tables = Tables()
        while any(poison.values()):
            await replicate_in_slices(rng, tables, script)
            held = {one.id: one.offset async for one in held_journals(MemoryStore(tables), "t")}
            assert held == {id_: offsets[0] for id_, offsets in poison.items() if offsets}, f"seed {seed}"
            id_ = rng.choice(sorted(held))
            verdict = Verdict(id="v", held_from=poison[id_].pop(0), is_skip=True)
            script.put(id_, None, encode_action(verdict))
            rounds += 1
        if script.records:
            await replicate_in_slices(rng, tables, script)
            await check_numbers(seed, tables, script, plain)
    assert rounds > 60


def plain_history(rng: random.Random) -> Script:
    """Write a history in which no action depends on the offset of another."""
    script = Script()
    for _ in range(rng.randint(5, 20)):
        id_, kind = rng.choice(IDS), rng.random()
        if kind < 0.75:
            first = rng.randint(1, 12)
            script.append(id_, first, first + rng.randint(0, 3))
        elif kind < 0.9:
            script.delete(id_, rng.randint(1, 12))
        else:
            script.purge(id_)
    return script


async def check_numbers(seed: int, tables: Tables, script: Script, plain: Script) -> None:
    """Hold what every journal is against the history without its poison."""
    log = ScriptLog("t", script.records, random.Random(seed))
    log.end = script.records[-1].offset + 1
    journal, oracle = Journal(log, MemoryStore(tables), "t", cache=None, read_only=True), Oracle(plain.records)
    for id_ in IDS:
        found = [event.seq_nr async for event in journal.read(id_)]
        pointer, events = oracle.visible(id_)
        assert (await journal.pointer(id_), found) == (pointer, [event.seq_nr for event in events]), f"seed {seed}"


class Watcher:
    """Reads journals while the log grows and replication stumbles, and holds each answer against the log."""

    def __init__(self, seed: int, log: ScriptLog, journal: Journal, rng: random.Random) -> None:
        self.seed = seed
        self.log = log
        self.journal = journal
        self.rng = rng
        self.answers = 0
        self.again = 0

    async def watch(self, end: int) -> None:
        is_last = False
        while not is_last:
            is_last = self.log.end >= end
            await self.read(self.rng.choice(IDS))
            for _ in range(self.rng.choice((0, 3, 10))):
                await asyncio.sleep(0)

    async def read(self, id_: str) -> None:
        before, first = self.log.end, self.rng.choice((1, 1, 1, 2, 4))
        try:
            found = tuple([event async for event in self.journal.read(id_, first)])
        except ReadAgain:
            self.again += 1
            return
        possible = self.possible(id_, before, self.log.end, first)
        assert found in possible, f"seed {self.seed}, journal {id_} from {first}: {found} is none of {possible}"
        self.answers += 1

    def possible(self, id_: str, before: int, after: int, first: int) -> list[tuple[object, ...]]:
        """Return all that the journal was between two ends of the log."""
        oracle = Oracle(record for record in self.log.records if record.offset < before)
        states = [oracle.visible(id_)[1]]
        for record in self.log.records:
            if before <= record.offset < after:
                oracle.apply(record)
                states.append(oracle.visible(id_)[1])
        return [tuple(event for event in events if event.seq_nr >= first) for events in states]


async def test_a_fold_of_many_equals_one_step_after_another(size: Size) -> None:
    """H1: what a read folds in one go, from any state on, is what step by step gives: the state, and who is alive."""
    runs = 0
    for seed in range(size(600, 10_000)):
        rng = random.Random(seed)
        history = random_history(rng, actions=rng.randint(3, 40))
        batch = batch_of(history.records, 0)
        for entries in batch.by_id.values():
            cut = rng.randint(0, len(entries))
            meta: JournalMeta | None = None
            for entry in entries[:cut]:
                meta = step(meta, entry).meta
            expected, alive = meta, list[int]()
            for entry in entries:
                if meta is not None and entry.place <= meta.place:
                    continue
                done = step(expected, entry)
                expected = done.meta
                alive = [] if done.effect is Effect.PURGED else alive
                alive += [entry.offset] if done.effect is Effect.APPENDED else []
            delete_to = expected.delete_to if expected is not None else 0
            found, appends = fold(meta, entries)
            assert found == expected, f"seed {seed}"
            last = {entry.offset: last_of(entry) for entry in entries}
            assert [entry.offset for entry in appends] == [o for o in alive if last[o] > delete_to], f"seed {seed}"
            runs += len(appends) > 2
    assert runs > 50


@pytest.mark.filterwarnings("ignore:.*never retrieved")
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "tiny cache"])
async def test_a_reader_in_the_middle_sees_a_state_the_log_had(size: Size, cached: bool) -> None:
    """J32, R24, P5, P11: never a mixture of two states, never what was purged, also with a cache that forgets."""
    answers = again = 0
    for seed in range(size(150, 3000)):
        rng = random.Random(seed)
        records = random_history(rng, actions=rng.randint(5, 30)).records
        tables, log = Tables(), ScriptLog("t", records, rng)
        store = MemoryStore(tables, before=Client(rng, None))
        kept_bytes, actions = rng.choice((0, 1500, 1 << 20)), rng.choice((1, 3, 1000))
        bounds = {"max_actions": actions, "max_record_bytes": kept_bytes}
        cache = HeadCache(log, store, **bounds, trim_every_s=0.0005) if cached else None
        journal = Journal(log, store, "t", cache=cache, read_only=True)
        watchers = [Watcher(seed, log, journal, rng) for _ in range(2)]
        rivals = rng.choice((0, 1, 2))
        is_removed = rivals > 0 and rng.random() < 0.5
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(
                    writer(rng, log),
                    *(replicator(rng, tables, log, crashes=rng.randint(0, 3)) for _ in range(rivals)),
                    *([remover(rng, tables, log)] if is_removed else []),
                    *(watcher.watch(records[-1].offset + 1) for watcher in watchers),
                )
        except HeadraceError as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            if cache is not None:
                await cache.close()
        answers += sum(watcher.answers for watcher in watchers)
        again += sum(watcher.again for watcher in watchers)
    assert answers > 10 * again, "most reads are answered"
