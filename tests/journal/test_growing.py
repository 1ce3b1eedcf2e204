"""Topics that grow: keys move, and nobody notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.suites.journal_faults import WatchedLog
from tests.suites.tags_following import AbsentStore

import headrace
from headrace.app import Headrace
from headrace.errors import BadArgument, HeadraceError, ImpossibleTopicChange, LayoutLost, Unavailable
from headrace.journal import (
    JOURNAL_TOPIC,
    HeadCache,
    Journal,
    Layout,
    Topology,
    grow_topic,
    held_journals,
    pass_verdict,
    replicate_batch,
    topology,
)
from headrace.journal.marks import PartitionMarks, rebuilt
from headrace.journal.metrics import STRAY_RECORDS
from headrace.journal.retention import remove_replicated
from headrace.journal.topology import longest_lease_s
from headrace.log import Log
from headrace.model import Event, NewRecord, Position, Topic, TopicPartition, partition_of
from headrace.protocol.actions import Append, Purge
from headrace.protocol.headers import encode_action
from headrace.protocol.layout import Generation
from headrace.store import SharedSettings, open_store
from headrace.testing import SimulatedCrash, crash_at
from headrace.testing.conformance.log_on_top import LogOnTop
from headrace.testing.conformance.log_setting import eventually

LEASE_S = 0.3


@pytest.fixture
async def hr(tmp_path: Path) -> AsyncIterator[Headrace]:
    async with headrace.connect(f"embedded:{tmp_path}") as opened:
        await opened.log.admin.create("t", partitions=4, config=JOURNAL_TOPIC)
        yield opened


@pytest.fixture
async def cache(hr: Headrace) -> AsyncIterator[HeadCache]:
    opened = HeadCache(hr.log, hr.store.reader, trim_every_s=0.05)
    yield opened
    await opened.close()


def journal(hr: Headrace, cache: HeadCache | None) -> Journal:
    return Journal(hr.log, hr.store, "t", cache=cache, lease_s=LEASE_S)


async def grow(hr: Headrace, partitions: int) -> Layout:
    return await grow_topic(hr.log, hr.store.settings, "t", partitions=partitions, lease_s=LEASE_S + 0.1)


async def replicate(hr: Headrace, only: Sequence[int] | None = None, share: float = 1.0, start: int = 0) -> None:
    """Carry what the log holds, or a share of it, into the store, of some partitions."""
    layout = await Topology(hr.log, hr.store.settings, "t").layout()
    numbers = list(only if only is not None else range(layout.partitions))
    for partition in numbers:
        at = TopicPartition("t", partition)
        bounds = await hr.log.bounds(at)
        up_to = int((bounds.end - 1) * share)
        if bounds.end > 0:
            records = [r async for batch in hr.log.read(at, start, up_to + 1) for r in batch.records]
            await replicate_batch(hr.store, layout, at, records, up_to=up_to)


async def write_all(accounts: Journal, ids: Sequence[str], first: int) -> None:
    for id_ in ids:
        await accounts.append(id_, [Event(first), Event(first + 1)])


async def numbers(of: Journal, id_: str) -> list[int]:
    return [event.seq_nr async for event in of.read(id_)]


def test_a_key_stays_until_it_moves() -> None:
    """The stays of a key: one as long as its partition is the same, the next from a boundary on."""
    layout = Layout("t", "x", (Generation(4),)).growing(8, {}).grown(dict.fromkeys(range(4), 10))
    layout = layout.growing(16, {}).grown(dict.fromkeys(range(8), 20))
    moved = 0
    for n in range(100):
        id_ = f"k{n}"
        stays = layout.stays(id_)
        assert stays[-1].end is None
        assert stays[-1].at == layout.route(id_)
        homes = [partition_of(id_.encode(), count) for count in (4, 8, 16)]
        assert [stay.at.partition for stay in stays] == list(dict.fromkeys(homes))
        moved += len(stays) > 1
    assert moved > 50
    anew = layout.recreated("y", 4)
    assert anew.first_generation(0) == 3
    assert len(anew.stays("k1")) == 1


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("replicated", ["nothing", "before", "half", "all"])
async def test_a_journal_reads_the_same_across_growth(
    hr: Headrace, cache: HeadCache, is_cached: bool, replicated: str
) -> None:
    """R21, P9: written before, between and after 4 → 6 → 8, each journal is whole, whatever is replicated."""
    accounts = journal(hr, cache if is_cached else None)
    ids = [f"k{n}" for n in range(24)]
    await write_all(accounts, ids, 1)
    if replicated == "before":
        await replicate(hr)
    await grow(hr, 6)
    await write_all(accounts, ids, 3)
    await grow(hr, 8)
    await write_all(accounts, ids, 5)
    for only, share in {"half": [(None, 0.5), ([1, 5, 7], 1.0)], "all": [(None, 1.0)] * 3}.get(replicated, []):
        await replicate(hr, only, share)
    for id_ in ids:
        assert await numbers(accounts, id_) == [1, 2, 3, 4, 5, 6]
        assert await accounts.pointer(id_) == 6
        await accounts.append(id_, [Event(7)], expected=6)
    for _ in range(3):
        await replicate(hr)
    for id_ in ids:
        assert await numbers(accounts, id_) == [1, 2, 3, 4, 5, 6, 7]
        meta = await hr.store.reader.meta("t", id_)
        assert meta is not None
        assert (meta.seq_nr, meta.generation) == (7, 2)


async def test_records_behind_a_boundary_wait_for_all_old_partitions(hr: Headrace) -> None:
    """From 4 to 6 a key may move between old partitions: its new records are not applied before its old ones."""
    accounts = journal(hr, None)
    ids = [f"k{n}" for n in range(40)]
    for id_ in ids:
        await accounts.append(id_, [Event(1)])
    await grow(hr, 6)
    for id_ in ids:
        await accounts.append(id_, [Event(2)])
    rng = random.Random(7)
    for _ in range(30):
        await replicate(hr, only=[rng.randrange(6)])
    for id_ in ids:
        meta = await hr.store.reader.meta("t", id_)
        assert meta is not None
        assert meta.seq_nr == 2
        assert await numbers(accounts, id_) == [1, 2]


class Load:
    """Writers, readers and a replicator that go on until they are told."""

    def __init__(self, hr: Headrace, accounts: Journal) -> None:
        self._hr = hr
        self._accounts = accounts
        self._is_over = False
        self.written = dict.fromkeys((f"k{n}" for n in range(12)), 0)
        works = [work(id_) for id_ in self.written for work in (self._write, self._read)]
        self._tasks = [asyncio.ensure_future(work) for work in (*works, self._carry())]

    async def go_on(self) -> None:
        """Wait until every writer has come some way further."""
        before = dict(self.written)

        async def is_further() -> bool:
            assert not [task for task in self._tasks if task.done()]
            return all(self.written[id_] > last + 3 for id_, last in before.items())

        await eventually(is_further)

    async def end(self) -> None:
        """Let all come to their end; raises what one of them met."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _write(self, id_: str) -> None:
        while not self._is_over:
            await self._accounts.append(id_, [Event(self.written[id_] + 1)])
            self.written[id_] += 1
            await asyncio.sleep(0.01)

    async def _read(self, id_: str) -> None:
        while not self._is_over:
            known = self.written[id_]
            found = await numbers(self._accounts, id_)
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= known
            await asyncio.sleep(0.02)

    async def _carry(self) -> None:
        while not self._is_over:
            await replicate(self._hr)
            await asyncio.sleep(0.03)


async def test_growth_under_load_loses_nothing(hr: Headrace, cache: HeadCache) -> None:
    """Writers and readers go on while the topic grows twice; every journal ends whole and in order."""
    accounts = journal(hr, cache)
    load = Load(hr, accounts)
    for partitions in (6, 8):
        await load.go_on()
        await grow(hr, partitions)
    await load.go_on()
    await load.end()
    for _ in range(3):
        await replicate(hr)
    for id_, last in load.written.items():
        assert await numbers(accounts, id_) == list(range(1, last + 1))


@pytest.mark.parametrize("point", ["grow.announced", "grow.added", "grow.marked"])
async def test_growing_again_finishes_what_a_crash_left(hr: Headrace, point: str) -> None:
    """A crash between any two steps is mended by the same command; another number is refused meanwhile."""
    accounts = journal(hr, None)
    await accounts.append("a", [Event(1)])
    with pytest.raises(SimulatedCrash), crash_at(point):
        await grow(hr, 8)
    with pytest.raises(ImpossibleTopicChange, match="growing to 8"):
        await grow(hr, 6)
    waiting = asyncio.ensure_future(journal(hr, None).append("a", [Event(2)]))
    layout = await grow(hr, 8)
    await asyncio.wait_for(waiting, 10)
    assert (layout.partitions, layout.generation, layout.growing_to) == (8, 1, None)
    assert await numbers(accounts, "a") == [1, 2]


async def test_a_topic_only_grows(hr: Headrace) -> None:
    """Fewer, or as many: refused with the number it has."""
    for partitions in (4, 3, 0):
        with pytest.raises(BadArgument, match="it can only grow"):
            await grow(hr, partitions)


async def test_a_stray_record_of_a_moved_key_counts_for_nothing_and_is_named(hr: Headrace) -> None:
    """A producer with old metadata writes to the old partition behind the boundary: void, counted."""
    accounts = journal(hr, None)
    layout = await grow(hr, 8)
    id_ = next(f"k{n}" for n in range(100) if len(layout.stays(f"k{n}")) == 2)
    old = layout.stays(id_)[0].at
    await accounts.append(id_, [Event(1, "right")])
    stray = encode_action(Append(first=2, last=2, payload_format="json"))
    value = b'{"events":[{"seqNr":2,"tags":[],"payloadType":"text","payload":"stray"}],"metadata":{}}'
    await hr.log.append([NewRecord("t", id_.encode(), value, stray, partition=old.partition)])
    before = STRAY_RECORDS.labels("t")._value.get()
    for _ in range(2):
        await replicate(hr)
    assert STRAY_RECORDS.labels("t")._value.get() == before + 1
    assert [event.payload async for event in accounts.read(id_)] == ["right"]


class Gate(LogOnTop):
    """Holds up appends on their way into the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_reached = asyncio.Event()

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        self.is_reached.set()
        await self.is_open.wait()
        return await self.log.append(records)


@pytest.mark.parametrize("kind", ["append", "plain", "expected", "delete", "purge"])
async def test_what_outlasts_the_lease_on_its_way_is_written_where_its_key_went(hr: Headrace, kind: str) -> None:
    """Acknowledged, but behind the boundary of a topic that grew meanwhile: it would count for nothing there."""
    gate = Gate(hr.log)
    accounts = Journal(gate, hr.store, "t", cache=None, lease_s=LEASE_S)
    moved = (f"k{n}" for n in range(100))
    id_ = next(k for k in moved if partition_of(k.encode(), 4) != partition_of(k.encode(), 8))
    await accounts.append(id_, [Event(1), Event(2)])
    write: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "append": lambda: accounts.append(id_, [Event(3)]),
        "plain": lambda: accounts.append(id_, [Event(3, b"x")]),
        "expected": lambda: accounts.append(id_, [Event(3)], expected=2),
        "delete": lambda: accounts.delete(id_, to=1),
        "purge": lambda: accounts.purge(id_),
    }
    if kind == "delete":  # its own read comes first, and writes a mark
        accounts.pointer = lambda _: asyncio.sleep(0, 2)  # type: ignore[method-assign,assignment]
    gate.is_open.clear()
    gate.is_reached.clear()
    writing = asyncio.ensure_future(write[kind]())
    await asyncio.wait_for(gate.is_reached.wait(), 10)
    await grow(hr, 8)
    gate.is_open.set()
    await asyncio.wait_for(writing, 10)
    expected = {"delete": [2], "purge": []}.get(kind, [1, 2, 3])
    other = journal(hr, None)
    for _ in range(3):
        assert await numbers(other, id_) == expected
        await replicate(hr)


async def test_a_topic_made_anew_begins_a_new_generation(hr: Headrace) -> None:
    """Deleted and created again: offsets start over, and what the store has of the old one is not taken for it."""
    accounts = journal(hr, None)
    for n in range(1, 6):
        await accounts.append("a", [Event(n)])
    await replicate(hr)
    await hr.log.admin.delete("t")
    await hr.log.admin.create("t", partitions=4, config=JOURNAL_TOPIC)
    again = journal(hr, None)
    layout = await Topology(hr.log, hr.store.settings, "t").layout()
    assert layout.generation == 1
    await again.append("b", [Event(1)])
    await replicate(hr)
    assert await numbers(again, "b") == [1]
    assert await numbers(again, "a") == [1, 2, 3, 4, 5]
    with pytest.raises(HeadraceError):
        await again.append("a", [Event(3)], expected=2)


async def test_many_who_ask_at_once_cause_one_reading(hr: Headrace) -> None:
    """A thousand first readers of a topic ask the store for its layout once, and get the same."""
    asked = 0

    class Counted:
        async def get(self, key: str) -> str | None:
            nonlocal asked
            asked += 1
            return await hr.store.settings.get(key)

        async def put(self, key: str, value: str, *, expected: str | None) -> bool:
            return await hr.store.settings.put(key, value, expected=expected)

        async def all(self, prefix: str) -> Mapping[str, str]:
            return await hr.store.settings.all(prefix)

    topology = Topology(hr.log, Counted(), "t")
    layouts = await asyncio.gather(*(topology.layout() for _ in range(1000)))
    assert asked == 1
    assert all(layout == layouts[0] for layout in layouts)


async def test_growth_waits_for_the_longest_lease_of_any_client(hr: Headrace) -> None:
    """FJ7: an operator with a shorter lease than the clients' lost what they wrote where their keys no longer lived."""
    gate = Gate(hr.log)
    accounts = Journal(gate, hr.store, "t", cache=None, lease_s=1.0)
    ids = [f"k{n}" for n in range(20)]
    await write_all(accounts, ids, 1)
    growing = asyncio.ensure_future(grow_topic(hr.log, hr.store.settings, "t", partitions=8, lease_s=0.01))

    async def is_announced() -> bool:
        stored = await hr.store.settings.get("topic/t")
        return stored is not None and ('"growing_to":8' in stored or '"partitions":8' in stored)

    await eventually(is_announced)
    await write_all(accounts, ids, 3)  # trusting what it read before
    layout = await growing
    assert layout.partitions == 8
    for id_ in ids:
        assert await numbers(journal(hr, None), id_) == [1, 2, 3, 4]
    for _ in range(3):
        await replicate(hr)
    for id_ in ids:
        assert await numbers(accounts, id_) == [1, 2, 3, 4]


async def test_a_lease_is_stored_before_a_layout_is_trusted(hr: Headrace) -> None:
    """FJ7: what was read before the lease was stored, growth does not wait for; the longest of all leases counts."""
    reader = Topology(hr.log, hr.store.settings, "t", lease_s=7.0)
    await reader.layout()
    assert await longest_lease_s(hr.store.settings, "t") == 0.0
    assert reader.routed("k") is None
    await reader.route("k")
    assert await longest_lease_s(hr.store.settings, "t") == 7.0
    assert reader.routed("k") is not None
    await Topology(hr.log, hr.store.settings, "t", lease_s=2.0).route("k")
    assert await longest_lease_s(hr.store.settings, "t") == 7.0


async def test_a_layout_that_was_on_its_way_before_the_lease_is_not_written_by(hr: Headrace) -> None:
    """FJ7: a read asks for the layout, an append comes meanwhile: its lease is stored before a layout is trusted."""
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow:
        async def get(self, key: str) -> str | None:
            found = await hr.store.settings.get(key)
            if key == "topic/t" and not asked.is_set():
                asked.set()
                await answer.wait()
            return found

        async def put(self, key: str, value: str, *, expected: str | None) -> bool:
            return await hr.store.settings.put(key, value, expected=expected)

        async def all(self, prefix: str) -> Mapping[str, str]:
            return await hr.store.settings.all(prefix)

    topology = Topology(hr.log, Slow(), "t", lease_s=7.0)
    reading = asyncio.ensure_future(topology.layout())
    await asyncio.wait_for(asked.wait(), 10)
    writing = asyncio.ensure_future(topology.route("k"))
    await asyncio.sleep(0)
    answer.set()
    await reading
    assert topology.routed("k") is None or await longest_lease_s(hr.store.settings, "t") == 7.0
    await writing
    assert await longest_lease_s(hr.store.settings, "t") == 7.0
    assert topology.routed("k") is not None


class Emptied:
    """A store that was emptied: another folder beside the same log."""

    def __init__(self, hr: Headrace, folder: Path) -> None:
        self.hr = hr
        self.folder = folder

    async def __aenter__(self) -> Headrace:
        self.store = await open_store(f"embedded:{self.folder}")
        return Headrace(self.hr.log, self.store, self.hr.registry, self.hr.settings)

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()


async def grown_twice(hr: Headrace) -> list[str]:
    """Write journals before, between and after two growths."""
    accounts, ids = journal(hr, None), [f"k{n}" for n in range(24)]
    await write_all(accounts, ids, 1)
    await grow(hr, 6)
    await write_all(accounts, ids, 3)
    await grow(hr, 9)
    await write_all(accounts, ids, 5)
    return ids


async def test_an_empty_store_learns_the_layout_of_a_grown_topic_from_the_log(hr: Headrace, tmp_path: Path) -> None:
    """FJ3: reads beside an emptied store lacked events, and replication made that permanent."""
    ids = await grown_twice(hr)
    layout = await Topology(hr.log, hr.store.settings, "t").layout()
    async with Emptied(hr, tmp_path / "other") as other:
        assert await Topology(hr.log, other.store.settings, "t", is_reader=True).layout() == layout
        assert await other.store.settings.get("topic/t") is None
        accounts = journal(other, None)
        for id_ in ids:
            assert await numbers(accounts, id_) == [1, 2, 3, 4, 5, 6]
        assert await Topology(hr.log, other.store.settings, "t").layout() == layout
        for _ in range(4):
            await replicate(other)
        for id_ in ids:
            assert await numbers(accounts, id_) == [1, 2, 3, 4, 5, 6]
            meta = await other.store.reader.meta("t", id_)
            assert meta is not None
            assert (meta.seq_nr, meta.generation) == (6, 2)


async def test_a_store_from_before_a_growth_learns_of_it(hr: Headrace) -> None:
    """FJ3: a layout that was restored from a backup is brought up to what the log's marks say."""
    accounts = journal(hr, None)
    await accounts.append("a", [Event(1)])
    before = await hr.store.settings.get("topic/t")
    layout = await grow(hr, 6)
    now = await hr.store.settings.get("topic/t")
    assert await hr.store.settings.put("topic/t", before or "", expected=now)
    assert await Topology(hr.log, hr.store.settings, "t").layout() == layout
    assert await hr.store.settings.get("topic/t") == now


@pytest.mark.parametrize("point", ["grow.announced", "grow.added", "grow.marked"])
async def test_a_growth_that_an_emptied_store_forgot_is_finished(hr: Headrace, tmp_path: Path, point: str) -> None:
    """FJ3: the log tells that the topic is growing, or has grown; where it tells neither, keys give it away."""
    accounts, ids = journal(hr, None), [f"k{n}" for n in range(24)]
    await write_all(accounts, ids, 1)
    with pytest.raises(SimulatedCrash), crash_at(point):
        await grow(hr, 6)
    async with Emptied(hr, tmp_path / "other") as other:
        layout = await Topology(hr.log, other.store.settings, "t").layout()
        expected = {"grow.announced": (4, None), "grow.added": (4, 6), "grow.marked": (6, None)}[point]
        assert (layout.partitions, layout.growing_to) == expected
        if layout.partitions < 6:
            await grow(other, 6)
        await write_all(journal(other, None), ids, 3)
        for id_ in ids:
            assert await numbers(journal(other, None), id_) == [1, 2, 3, 4]


async def test_a_layout_that_nobody_can_tell_any_more_is_an_error(hr: Headrace, tmp_path: Path) -> None:
    """FJ3: marks that left the log, and partitions that were added without any, are told and not guessed at."""
    ids = await grown_twice(hr)
    await hr.log.retention.truncate(TopicPartition("t", 1), before=(await hr.log.bounds(TopicPartition("t", 1))).end)
    async with Emptied(hr, tmp_path / "other") as other:
        with pytest.raises(LayoutLost, match=r"generation 2 are gone from the log in 1;.* restore the setting"):
            await numbers(journal(other, None), ids[0])
    await hr.log.admin.create("u", partitions=4, config=JOURNAL_TOPIC)
    for id_ in ids:
        await Journal(hr.log, hr.store, "u", cache=None).append(id_, [Event(1)])
    await hr.log.admin.add_partitions("u", total=7)
    async with Emptied(hr, tmp_path / "third") as other:
        with pytest.raises(LayoutLost, match="keys are not where 7 partitions would put them"):
            await Topology(hr.log, other.store.settings, "u").layout()


async def test_what_replication_removes_leaves_the_layout_in_the_log(hr: Headrace, tmp_path: Path) -> None:
    """FJ3, FN1: marks are removed with the records around them; the layout is stated again before, and only then."""
    ids = await grown_twice(hr)
    layout = await Topology(hr.log, hr.store.settings, "t").layout()
    for _ in range(4):
        await replicate(hr)
    later = {"retention_ms": 1, "now_ms": 1 << 50}
    assert await remove_replicated(hr.log, hr.store, layout, **later) > 0
    async with Emptied(hr, tmp_path / "other") as other:
        assert await Topology(hr.log, other.store.settings, "t").layout() == layout
    assert await remove_replicated(hr.log, hr.store, layout, **later) == 0
    await replicate(hr, only=[0], start=(await hr.log.bounds(TopicPartition("t", 0))).start)
    assert await remove_replicated(hr.log, hr.store, layout, **later) > 0
    async with Emptied(hr, tmp_path / "third") as other:
        assert await Topology(hr.log, other.store.settings, "t").layout() == layout
    for id_ in ids:
        assert await numbers(journal(hr, None), id_) == [1, 2, 3, 4, 5, 6]


def test_marks_that_carry_no_layout_tell_it_by_where_they_are() -> None:
    """FJ3: marks of version 0.1 have a generation only; each partition of the time before a growth has one."""
    topic = Topic(name="t", topic_id="x", partitions=6, config=JOURNAL_TOPIC)
    found = [PartitionMarks(0, {1: 10 + p, 2: 20 + p} if p < 2 else {2: 30 + p} if p < 4 else {}) for p in range(6)]
    layout = rebuilt(topic, None, found)
    assert [generation.partitions for generation in layout.generations] == [2, 4, 6]
    assert layout.generations[1].boundaries == {0: 10, 1: 11}
    assert layout.generations[2].boundaries == {0: 20, 1: 21, 2: 32, 3: 33}
    del found[1].firsts[2]
    with pytest.raises(LayoutLost, match="generation 2 are gone from the log in 1"):
        rebuilt(topic, None, found)


async def test_a_timeline_goes_on_across_growth(hr: Headrace) -> None:
    """FJ11: of keys that moved, history forgot all that lay before the growth, and took their deletes for births."""
    ids = await grown_twice(hr)
    accounts = journal(hr, None)
    for id_ in ids:
        await accounts.delete(id_, to=1)
    layout = await Topology(hr.log, hr.store.settings, "t").layout()
    assert {len(layout.stays(id_)) for id_ in ids} == {1, 2, 3}
    written = ["append events 1 to 2", "append events 3 to 4", "append events 5 to 6", "delete events up to 1"]
    reader = Journal(hr.log, hr.store, "t", cache=None, read_only=True)
    for id_ in ids:
        moments = [moment async for moment in reader.history(id_)]
        assert [moment.what for moment in moments] == written
        assert [moment.effect for moment in moments] == ["appended"] * 3 + ["deleted"]
        homes = [stay.at.partition for stay in layout.stays(id_)]
        assert list(dict.fromkeys(moment.partition for moment in moments)) == homes
    for _ in range(4):
        await replicate(hr)
    await remove_replicated(hr.log, hr.store, layout, retention_ms=1, now_ms=1 << 50)
    for id_ in ids:
        moments = [moment async for moment in reader.history(id_)]
        assert [(moment.what, moment.effect) for moment in moments] == [("events 2 to 6, up to 6", "stored")]


class TestWithoutStore:
    """The store does not answer, and the layout's lease runs out."""

    async def test_appends_go_on_while_the_log_says_that_nothing_grew(self, hr: Headrace) -> None:
        """FM5: for as long as it lasts; and what was written is read when the store is back."""
        store = AbsentStore(hr.store)
        writer = Journal(hr.log, store, "t", cache=None, lease_s=0.05)  # type: ignore[arg-type]
        await writer.append("k", [Event(1, "x")])
        store.is_away = True
        for n in range(2, 8):
            await asyncio.sleep(0.06)
            await writer.append("k", [Event(n, "x")])
        assert store.refused >= 5
        store.is_away = False
        assert [event.seq_nr async for event in writer.read("k")] == list(range(1, 8))

    async def test_a_client_that_never_stored_its_lease_does_not_begin_to_write(self, hr: Headrace) -> None:
        """FM5, FJ7: growth waits for stored leases only, so who has just read so far waits for the store."""
        store = AbsentStore(hr.store)
        layouts = Topology(hr.log, store.settings, "t", lease_s=0.05)  # type: ignore[arg-type]
        known = await layouts.layout()
        store.is_away = True
        await asyncio.sleep(0.06)
        assert await layouts.layout() == known  # reading goes on
        with pytest.raises(Unavailable):
            await layouts.find_route("k")
        store.is_away = False
        await layouts.find_route("k")
        store.is_away = True
        await asyncio.sleep(0.06)
        assert (await layouts.find_route("k")).route.at == known.route("k")

    async def test_a_store_that_hangs_is_waited_for_once(self, hr: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
        """FM5: the question stays open; appends go on without it, and with its answer."""
        monkeypatch.setattr(topology, "_PATIENCE_S", 0.1)
        settings = HangingSettings(hr.store.settings)
        layouts = Topology(hr.log, settings, "t", lease_s=0.02)  # type: ignore[arg-type]
        known = await layouts.layout()
        settings.answers.clear()
        for _ in range(5):
            await asyncio.sleep(0.03)
            assert await layouts.layout() == known
        assert settings.asked == 2
        settings.answers.set()

        async def is_asked_again() -> bool:
            await layouts.layout()
            return settings.asked > 2

        await eventually(is_asked_again, within_s=5, every_s=0.01)

    async def test_a_topic_that_has_grown_is_not_written_to_by_an_old_layout(self, hr: Headrace) -> None:
        """FM5: the log has more partitions: the append fails, and works when the new layout can be read."""
        store = AbsentStore(hr.store)
        writer = Journal(hr.log, store, "t", cache=None, lease_s=0.05)  # type: ignore[arg-type]
        await writer.append("k", [Event(1, "x")])
        store.is_away = True
        await grow(hr, 6)
        with pytest.raises(Unavailable):
            await writer.append("k", [Event(2, "x")])
        store.is_away = False
        await writer.append("k", [Event(2, "x")])
        assert [event.seq_nr async for event in writer.read("k")] == [1, 2]

    async def test_nothing_is_written_behind_a_boundary_meanwhile(self, hr: Headrace) -> None:
        """FM5: a topic grows while a writer lives without its store: all that was acknowledged is there afterwards."""
        store = AbsentStore(hr.store)
        writer = Journal(hr.log, store, "t", cache=None, lease_s=LEASE_S)  # type: ignore[arg-type]
        written: dict[str, int] = dict.fromkeys((f"k{n}" for n in range(20)), 0)
        await writer.append("k0", [Event(1, "x")])
        written["k0"] = 1
        store.is_away = True
        growing = asyncio.create_task(grow(hr, 6))
        with pytest.raises(Unavailable):
            await self._append_on(writer, written)
        await growing
        reader = journal(hr, None)
        found = {id_: [event.seq_nr async for event in reader.read(id_)] for id_ in written}
        assert {id_: found[id_][:last] for id_, last in written.items()} == {
            id_: list(range(1, last + 1)) for id_, last in written.items()
        }
        more = sum(map(len, found.values())) - sum(written.values())
        assert more <= 1  # of the last append nobody knows

    @pytest.mark.parametrize("is_behind", [False, True], ids=["before the boundary, mostly", "behind the boundary"])
    async def test_an_append_that_lands_while_the_topic_grows_is_not_acknowledged(
        self, hr: Headrace, is_behind: bool
    ) -> None:
        """FM5: it was on its way for longer than the lease: nobody knows without the store whether it counts."""
        store, log = AbsentStore(hr.store), WatchedLog(hr.log)
        writer = Journal(log, store, "t", cache=None, lease_s=LEASE_S)  # type: ignore[arg-type]
        moved = next(f"k{n}" for n in range(99) if partition_of(b"k%d" % n, 4) != partition_of(b"k%d" % n, 6))
        await writer.append(moved, [Event(1, "x")])
        store.is_away = True
        growing = asyncio.create_task(grow(hr, 6))

        async def has_partitions() -> bool:
            return (await hr.log.admin.describe("t")).partitions == 6

        async def wait() -> None:
            log.before_append = None
            await (growing if is_behind else eventually(has_partitions, within_s=30, every_s=0.01))

        log.before_append = wait
        with pytest.raises(Unavailable) as unknown:
            await writer.append(moved, [Event(2, "x")])
        assert not unknown.value.outcome_known
        await growing
        found = [event.seq_nr async for event in journal(hr, None).read(moved)]
        assert found == [1] or (found == [1, 2] and not is_behind)

    async def _append_on(self, writer: Journal, written: dict[str, int]) -> None:
        """Append to all journals until that fails; `written` has what was acknowledged."""
        while True:
            for id_, last in written.items():
                await writer.append(id_, [Event(last + 1, "x")])
                written[id_] = last + 1
            await asyncio.sleep(0.005)


class HangingSettings:
    """Settings that are answered while `answers` is set."""

    def __init__(self, settings: SharedSettings) -> None:
        self._settings = settings
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0

    async def get(self, key: str) -> str | None:
        self.asked += 1
        await self.answers.wait()
        return await self._settings.get(key)

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        return await self._settings.put(key, value, expected=expected)


async def poison(hr: Headrace, id_: str, partition: int) -> int:
    """Write a record of a journal that nobody can decode; returns its offset."""
    headers = (("journal.action", b"nonsense"),)
    (position,) = await hr.log.append([NewRecord("t", id_.encode(), b"{}", headers, partition)])
    return position.offset


@pytest.mark.parametrize("is_replicated", [True, False])
async def test_a_held_journal_that_moved_is_whole_when_it_is_let_go(hr: Headrace, is_replicated: bool) -> None:
    """E9, R21: records that wait in the old partition and in the new one, at lower offsets, are all applied."""
    id_ = next(f"k{n}" for n in range(99) if partition_of(f"k{n}".encode(), 8) > 3)
    old, new = (partition_of(id_.encode(), count) for count in (4, 8))
    accounts = journal(hr, None)
    await accounts.append(id_, [Event(1)])
    first = await poison(hr, id_, old)
    await write_all(accounts, [id_], 2)
    for number in range(4, 8):
        await accounts.append(id_, [Event(number)])
    second = await poison(hr, id_, old)
    if is_replicated:
        await replicate(hr)
    await grow(hr, 8)
    for number in range(8, 12):
        await accounts.append(id_, [Event(number)])
    for _ in range(2):
        await replicate(hr)
    for offset, records in ((first, 11), (second, 5)):
        (held,) = [each async for each in held_journals(hr.store, "t")]
        assert (held.partition, held.offset, held.records) == (old, offset, records)
        assert "journal.action" in held.reason
        await pass_verdict(hr.log, hr.store, "t", id_, skip=True, offset=offset)
        await replicate(hr)
    assert await numbers(accounts, id_) == list(range(1, 12))
    assert [each async for each in held_journals(hr.store, "t")] == []
    meta = await hr.store.reader.meta("t", id_)
    assert meta is not None
    assert (meta.partition, meta.generation) == (new, 1)


async def made_anew(hr: Headrace, partitions: int) -> Journal:
    await hr.log.admin.delete("t")
    await hr.log.admin.create("t", partitions=partitions, config=JOURNAL_TOPIC)
    return journal(hr, None)


async def test_boundaries_of_a_topic_that_is_gone_hold_nothing_back(hr: Headrace) -> None:
    """E12: a topic that grew, was deleted and made again is replicated from its first record on."""
    ids = [f"k{n}" for n in range(24)]
    await write_all(journal(hr, None), ids, 1)
    await grow(hr, 8)
    for _ in range(2):
        await replicate(hr)
    accounts = await made_anew(hr, 8)
    for id_ in ids[:16]:
        await accounts.purge(id_)
    await replicate(hr)
    for partition in range(8):
        at = TopicPartition("t", partition)
        end, replicated = (await hr.log.bounds(at)).end, await hr.store.reader.replicated(at)
        assert end == 0 or (replicated is not None and (replicated.generation, replicated.offset) == (2, end - 1))


async def test_offsets_of_a_topic_that_is_gone_are_no_way_past_a_boundary(hr: Headrace) -> None:
    """R21: what was replicated of an earlier topic says nothing about the boundaries of the next one."""
    ids = [f"k{n}" for n in range(24)]
    for first in range(1, 12, 2):
        await write_all(journal(hr, None), ids, first)
    await replicate(hr)
    accounts = await made_anew(hr, 4)
    for id_ in ids:
        await accounts.purge(id_)
    await write_all(accounts, ids, 1)
    await grow(hr, 8)
    await write_all(accounts, ids, 3)
    await replicate(hr, range(7, -1, -1))
    for _ in range(2):
        await replicate(hr)
    for id_ in ids:
        meta = await hr.store.reader.meta("t", id_)
        assert meta is not None
        assert (meta.seq_nr, meta.delete_to) == (4, 0)
        assert await numbers(accounts, id_) == [1, 2, 3, 4]


async def test_a_layout_that_a_cancelled_call_asked_for_is_not_taken_for_a_new_one(hr: Headrace) -> None:
    """FJ7: what was read before the topic grew says nothing about an append that arrived after it."""
    gate = Gate(hr.log)
    accounts = Journal(gate, hr.store, "t", cache=None, lease_s=LEASE_S)
    id_ = next(f"k{n}" for n in range(99) if partition_of(f"k{n}".encode(), 8) > 3)
    await accounts.append(id_, [Event(1)])
    gate.is_open.clear()
    gate.is_reached.clear()
    writing = asyncio.ensure_future(accounts.append(id_, [Event(2)]))
    await asyncio.wait_for(gate.is_reached.wait(), 10)
    await asyncio.sleep(LEASE_S + 0.1)
    looking = asyncio.ensure_future(accounts.pointer(id_))
    await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    await grow(hr, 8)
    gate.is_open.set()
    await asyncio.wait_for(writing, 10)
    assert await numbers(journal(hr, None), id_) == [1, 2]


async def test_a_boundary_that_was_passed_in_an_earlier_topic_is_not_passed_in_the_next(hr: Headrace) -> None:
    """R21: a journal that was open all the time reads moved keys whole, though both topics grew at the same offsets."""
    accounts = journal(hr, None)
    ids = [f"k{n}" for n in range(24)]
    for topic in ("first", "second"):
        if topic == "second":
            await hr.log.admin.delete("t")
            await hr.log.admin.create("t", partitions=4, config=JOURNAL_TOPIC)
            await asyncio.sleep(LEASE_S)
            for id_ in ids:
                await hr.log.append([NewRecord("t", id_.encode(), None, encode_action(Purge()))])
        await write_all(journal(hr, None), ids, 1)
        if topic == "first":
            await write_all(journal(hr, None), ids, 3)
        layout = await grow(hr, 8)
        await write_all(journal(hr, None), ids, 5)
        if topic == "first":
            for _ in range(2):
                await replicate(hr)
        for id_ in ids:
            assert await numbers(accounts, id_) == ([1, 2, 3, 4, 5, 6] if topic == "first" else [1, 2, 5, 6])
    assert layout.generations[1].boundaries == layout.generations[3].boundaries


async def test_a_head_is_not_trimmed_by_what_was_replicated_of_an_earlier_topic(hr: Headrace, cache: HeadCache) -> None:
    """P11: beside offsets of a topic that is gone, a read of the new one is answered by the head at once."""
    await write_all(journal(hr, None), ["k"], 1)
    at = TopicPartition("t", partition_of(b"k", 4))
    for number in range(3, 30):
        await journal(hr, None).append("k", [Event(number)])
    await replicate(hr)
    await made_anew(hr, 4)
    accounts = journal(hr, cache)
    await accounts.purge("k")
    await accounts.append("k", [Event(1)])
    for _ in range(3):
        before = (await hr.log.bounds(at)).end
        assert await numbers(accounts, "k") == [1]
        assert (await hr.log.bounds(at)).end == before + 1  # one mark: the first look was enough
        await asyncio.sleep(0.2)
