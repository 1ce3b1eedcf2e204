"""What the audit decides about one journal, without Spark: random histories, logs cut short, stores tampered with."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore
from tests.suites.journal_script import Script

from headrace.journal import replicate_batch
from headrace.log import Log
from headrace.model import Batch, Record, TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.journals import KeyLook, look_at_key
from headrace.pipeline.audits.judge import BY_HAND, pointer_findings
from headrace.pipeline.audits.repair import repair_journal
from headrace.pipeline.audits.windows import AuditWindow, MovingWindow, WindowStretch, entries_of, slices, survey
from headrace.protocol.actions import Append
from headrace.protocol.fold import exists
from headrace.protocol.headers import decode_action
from headrace.protocol.layout import Generation, Layout
from headrace.store import EventRow, JournalMeta, ReplicatedOffset, Store

TTL_S = 10.0**10  # the records of a script are years old


class ListedLog:
    """A partition's records, read as a log's are."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    async def read(self, at: object, start: int, end: int, *, headers_only: bool = False) -> AsyncIterator[Batch]:
        found = [record for record in self._records if start <= record.offset < end]
        if headers_only:
            found = [msgspec.structs.replace(record, value=None) for record in found]
        yield Batch(found, end)


class Scene:
    """A history that was replicated, and a log that begins at `start`."""

    def __init__(self, script: Script, store: MemoryStore, *, start: int = 0) -> None:
        self.script = script
        self.store: Store = store
        self.tables = store.tables
        replicated = store.tables.replicated[script.at]
        stretch = WindowStretch(script.at, start, replicated.offset, script.offset, 0, replicated)
        self.window = AuditWindow(_layout(script), script.at, {script.at.partition: stretch})
        self.log: Log = ListedLog(script.records)  # type: ignore[assignment]

    async def looks(self) -> dict[str, KeyLook]:
        by_id = await entries_of(self.log, self.window, IDS)
        return {
            id_: await look_at_key(self.store, self.window, id_, entries, marker_ttl_s=TTL_S)
            for id_, entries in by_id.items()
        }

    async def findings(self) -> list[Finding]:
        looks = await self.looks()
        return [finding for look in looks.values() if look.verdict is not None for finding in look.verdict.findings]

    async def repair_journal(self) -> None:
        for id_, look in (await self.looks()).items():
            assert look.stored is not None
            assert look.verdict is not None
            await repair_journal(self.store, self.window, id_, look.stored, look.verdict)

    def is_split_by_delete(self, id_: str, row: EventRow) -> bool:
        record = next(record for record in self.script.records if record.offset == row.offset)
        action = decode_action(record)
        assert isinstance(action, Append)
        return action.first <= self.tables.metas["t", id_].delete_to

    def rows(self) -> list[tuple[str, tuple[int, int, int], EventRow]]:
        return [(id_, key, row) for (_, id_), found in self.tables.rows.items() for key, row in found.items()]


def _layout(script: Script) -> Layout:
    return Layout(script.at.topic, "script", (Generation(1),))


async def scene(seed: int, *, actions: int = 40, start: int = 0) -> Scene:
    script = random_history(random.Random(seed), actions=actions)
    store = MemoryStore()
    await replicate_batch(store, _layout(script), script.at, script.records, up_to=script.offset - 1)
    return Scene(script, store, start=start)


@pytest.mark.parametrize("seed", [*range(20), 42, 137, 151, 193])
async def test_a_right_store_gives_no_findings_wherever_the_log_begins(seed: int) -> None:
    """K15: whatever of the log is gone, what is right is never reported."""
    whole = await scene(seed)
    assert await whole.findings() == []
    for start in range(1, whole.script.offset):
        cut = Scene(whole.script, MemoryStore(whole.tables), start=start)
        assert await cut.findings() == [], f"the log begins at {start}"


def _changed(row: EventRow, rng: random.Random) -> EventRow:
    column = rng.choice(("payload", "tags", "metadata", "origin", "version", "headers", "record_id"))
    other = {"tags": ("x",), "headers": {"x": "y"}, "payload": b"wrong", "record_id": uuid.UUID(int=5)}
    return msgspec.structs.replace(row, **{column: other.get(column, '{"wrong": 1}')})


@pytest.mark.parametrize("seed", range(15))
async def test_what_was_done_by_hand_is_found_and_repaired(seed: int) -> None:
    """K15, R23: a row removed, changed or added, a head changed: each named, nothing else; then all as before."""
    rng = random.Random(seed)
    tampered = await scene(seed)
    before = tampered.tables.state()
    todo = tampered.rows()
    rng.shuffle(todo)
    expected = set()
    for kind, (id_, key, row) in zip((FindingKind.ROW_MISSING, FindingKind.ROW_CHANGED), todo, strict=False):
        expected.add((id_, kind, row.seq_nr))
        if kind is FindingKind.ROW_MISSING:
            del tampered.tables.rows["t", id_][key]
        else:
            tampered.tables.rows["t", id_][key] = _changed(row, rng)
    for id_, key, row in todo[2:3]:
        added = msgspec.structs.replace(row, generation=BY_HAND.generation, offset=BY_HAND.offset, timestamp_ms=5)
        tampered.tables.rows["t", id_][key[0], key[1], 5] = added
        expected.add((id_, FindingKind.ROW_ADDED, row.seq_nr))
    for (_, id_), meta in list(tampered.tables.metas.items())[:1]:
        tampered.tables.metas["t", id_] = msgspec.structs.replace(meta, seq_nr=meta.seq_nr + 1)
        expected.add((id_, FindingKind.META_CHANGED, None))
    assert {(found.id, found.kind, found.seq_nr) for found in await tampered.findings()} == expected
    await tampered.repair_journal()
    assert tampered.tables.state() == before
    assert await tampered.findings() == []


@pytest.mark.parametrize("seed", [*range(15), 38])
async def test_what_was_done_within_a_log_that_was_cut_is_found(seed: int) -> None:
    """K15: a row of the window removed, changed or added is named although what was before the window is unknown."""
    whole = await scene(seed)
    start = whole.script.offset // 2
    rows = [each for each in whole.rows() if each[2].offset >= start]
    for id_, key, row in rows:
        cut = Scene(whole.script, MemoryStore(whole.tables), start=start)
        stored = whole.tables.rows["t", id_]
        stored[key] = msgspec.structs.replace(row, payload=b"wrong", payload_type=None)
        assert named(await cut.findings()) == {(id_, FindingKind.ROW_CHANGED, row.seq_nr)}
        stored[key] = row
        stored[key[0], key[1], 5] = msgspec.structs.replace(row, timestamp_ms=5)
        assert named(await cut.findings()) == {(id_, FindingKind.ROW_ADDED, row.seq_nr)}
        del stored[key[0], key[1], 5]
        if whole.is_split_by_delete(id_, row):
            continue  # its append may as well have been void: nothing that is left tells
        del stored[key]
        assert (id_, row.seq_nr) in {(found.id, found.seq_nr) for found in await cut.findings()}
        await cut.repair_journal()
        assert await cut.findings() == []
        assert stored[key] == row


def named(findings: Sequence[Finding]) -> set[tuple[str, FindingKind, int | None]]:
    return {(found.id, found.kind, found.seq_nr) for found in findings}


async def test_a_head_that_nobody_made_is_found_and_taken_away() -> None:
    """K15: a journal that no record began is named, with its rows; after the repair clients see none."""
    made = await scene(4)
    id_, row = "a", made.rows()[0][2]
    del made.tables.metas["t", id_]
    script = Script()
    script.mark("x")
    store = MemoryStore()
    await replicate_batch(store, _layout(script), script.at, script.records, up_to=0)
    empty = Scene(script, store)
    invented = JournalMeta(topic="t", id="a", generation=0, partition=0, offset=-1, seq_nr=1, segment_size=10_000)
    store.tables.metas["t", "a"] = invented
    typed_in = msgspec.structs.replace(row, seq_nr=1, segment=0, generation=0, offset=-1)
    store.tables.rows["t", "a"][0, 1, row.timestamp_ms] = typed_in
    assert named(await empty.findings()) == {("a", FindingKind.META_ADDED, None), ("a", FindingKind.ROW_ADDED, 1)}
    await empty.repair_journal()
    assert await empty.findings() == []
    assert not exists(await store.meta("t", "a"))


async def test_rows_and_heads_that_replication_is_writing_are_left_alone() -> None:
    """K15: what lies above the replicated offset and is in the log is no finding; what no record made is one."""
    script = random_history(random.Random(9), actions=40)
    store = MemoryStore()
    await replicate_batch(store, _layout(script), script.at, script.records, up_to=20)
    await replicate_batch(store, _layout(script), script.at, script.records, up_to=script.offset - 1)
    at = script.at
    whole = store.tables.replicated[at]
    store.tables.replicated[at] = msgspec.structs.replace(whole, offset=20)
    behind = Scene(script, store)
    looks = await behind.looks()
    assert any(look.verdict is None for look in looks.values()), "the head of some key is above the offset"
    assert await behind.findings() == []
    id_, key, row = next(each for each in behind.rows())
    store.tables.rows["t", id_][key[0], key[1], 5] = msgspec.structs.replace(row, offset=5000, timestamp_ms=5)
    store.tables.replicated[at] = whole
    found = await Scene(script, store).findings()
    assert named(found) == {(id_, FindingKind.ROW_ADDED, row.seq_nr)}


async def test_a_purge_marker_whose_time_is_up_is_not_missed() -> None:
    """K15: markers go by themselves; a log that is kept longer than they are makes no finding of that."""
    script = Script()
    script.append("a", 1, 2)
    script.purge("a")
    store = MemoryStore()
    await replicate_batch(store, _layout(script), script.at, script.records, up_to=1)
    del store.tables.metas["t", "a"]
    scene = Scene(script, store)
    by_id = await entries_of(scene.log, scene.window, ["a"])
    old = await look_at_key(scene.store, scene.window, "a", by_id["a"], marker_ttl_s=60)
    young = await look_at_key(scene.store, scene.window, "a", by_id["a"], marker_ttl_s=TTL_S)
    assert old.is_clean
    assert young.verdict is not None
    assert named(young.verdict.findings) == {("a", FindingKind.META_MISSING, None)}


async def test_slices_hold_every_journal_once_and_whole() -> None:
    """K16: however small the slices are, together they are the window, and no journal is in two of them."""
    made = await scene(11, actions=60)
    found = await survey(made.log, made.window)
    assert all(id_ in found for id_ in IDS)
    assert "nobody" not in found
    moving = MovingWindow(made.window, lambda: asyncio.sleep(0, made.window))
    by_slice = [each async for each in slices(made.log, moving, found, events_at_once=5)]
    assert len(by_slice) > 5
    ids = [id_ for each in by_slice for id_ in each]
    assert sorted(ids) == sorted(set(ids))
    assert sum(len(entries) for each in by_slice for entries in each.values()) == found.records


def test_a_replicated_offset_that_no_replication_stored_is_named() -> None:
    """FP7: an offset beyond the log's end, of a wrong generation, or of a time to come is a finding of the audit."""
    at, now_ms = TopicPartition("accounts", 0), 1_000_000
    grown = Layout(
        topic="accounts",
        topic_id="1",
        generations=(Generation(partitions=1, boundaries={}), Generation(partitions=2, boundaries={0: 4})),
    )

    def details(offset: int, *, generation: int, log_time_ms: int = now_ms) -> list[str]:
        stored = ReplicatedOffset(
            at=at, generation=generation, offset=offset, log_time_ms=log_time_ms, created_ms=0, updated_ms=0
        )
        stretch = WindowStretch(at, 0, min(offset, 9), 10, 0, stored, stored)
        return [str(each) for each in pointer_findings(AuditWindow(grown, at, {0: stretch}), now_ms)]

    assert [
        details(3, generation=0),
        details(4, generation=0),
        details(4, generation=1),
        details(9, generation=1),
    ] == [[]] * 4
    (beyond,) = details(10, generation=1)
    assert beyond.startswith("accounts[0]: replicated offset changed (it is at or beyond the log's end, 10")
    assert "its generation is 0, and records there are of generation 1" in details(7, generation=0)[0]
    assert "its generation is 1, and records there are of generation 0" in details(2, generation=1)[0]
    assert "and the topic's is 1" in details(7, generation=5)[-1]
    assert "300 s in the future" in details(7, generation=1, log_time_ms=now_ms + 300_000)[0]
