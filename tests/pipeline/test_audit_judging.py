"""What the audit decides about one journal, without Spark: random histories, logs cut short, stores tampered with."""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import msgspec
import pytest
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore
from tests.suites.journal_script import Script

from headrace.journal import replicate_batch
from headrace.model import Record, TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.journal_frames import LogScan
from headrace.pipeline.audits.journal_work import JournalRows, chunks
from headrace.pipeline.audits.journals import KeyLook, look_at_key
from headrace.pipeline.audits.judge import BY_HAND, pointer_findings
from headrace.pipeline.audits.second_look import repair_journal
from headrace.pipeline.audits.shuffle import FactsOfTopic, LogFact, MarkFact, RowKind, StretchFact, decode_fact
from headrace.pipeline.audits.windows import AuditWindow, RunningState, TopicWindow, WindowStretch
from headrace.pipeline.logs.records import LOG_COLUMNS, batch_of_records, records_of_batch
from headrace.protocol import ACTION_HEADER, Entry, Mark, batch_of, encode_action, entry_of
from headrace.protocol.actions import Append, Verdict
from headrace.protocol.fold import exists
from headrace.protocol.headers import decode_action
from headrace.protocol.layout import Generation, Layout
from headrace.store import EventRow, JournalMeta, ReplicatedOffset, Store

TTL_S = 10.0**10  # the records of a script are years old


Scanned = tuple[dict[int, list[LogFact]], list[tuple[Record, int, int]]]


def scan_in_stretches(records: Sequence[Record], *, size: int) -> Scanned:
    """Scan records in stretches, as tasks do; returns facts by partition, and each record with its stretch and time."""
    noted: dict[int, list[LogFact]] = {}
    rows: list[tuple[Record, int, int]] = []
    for start in range(0, len(records), size):
        for batch in LogScan(1)(iter([batch_of_records(records[start : start + size])])):
            found = records_of_batch(batch.select(LOG_COLUMNS))
            more = (batch.column(name).to_pylist() for name in ("kind", "stretch", "log_time_ms"))
            for record, kind, first, log_time_ms in zip(found, *more, strict=True):
                if kind == RowKind.FACT:
                    noted.setdefault(record.partition, []).append(decode_fact(record.value or b""))
                else:
                    rows.append((record, first, log_time_ms))
    return noted, rows


@cache
def scan_of(script: Script) -> Scanned:
    """Scan a whole script."""
    return scan_in_stretches(script.records, size=5)


class Scene:
    """A history that was replicated, and a log that begins at `start`."""

    def __init__(self, script: Script, store: MemoryStore, *, start: int = 0) -> None:
        self.script = script
        self.store: Store = store
        self.tables = store.tables
        replicated = store.tables.replicated[script.at]
        stretch = WindowStretch(script.at, start, replicated.offset, script.offset, 0, replicated)
        self.topic_window = TopicWindow(_layout(script), {script.at.partition: stretch})
        self.window = self.topic_window.of_partition(script.at.partition)

    def entries_of(self, ids: Collection[str]) -> dict[str, list[Entry]]:
        noted, rows = scan_of(self.script)
        facts = FactsOfTopic(self.topic_window, noted).of(self.script.at.partition)
        found: dict[str, list[Entry]] = {id_: [] for id_ in ids}
        for record, first, log_time_ms in rows:
            entry = facts.entry(record, first=first, log_time_ms=log_time_ms)
            if entry is not None and entry.id in found:
                found[entry.id].append(entry)
        return found

    async def looks(self) -> dict[str, KeyLook]:
        by_id = self.entries_of(IDS)
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
    by_id = scene.entries_of(["a"])
    old = await look_at_key(scene.store, scene.window, "a", by_id["a"], marker_ttl_s=60)
    young = await look_at_key(scene.store, scene.window, "a", by_id["a"], marker_ttl_s=TTL_S)
    assert old.is_clean
    assert young.verdict is not None
    assert named(young.verdict.findings) == {("a", FindingKind.META_MISSING, None)}


async def test_chunks_hold_every_journal_once_and_whole() -> None:
    """K16: however small the chunks are, together they are the window, and no journal is in two of them."""
    made = await scene(11, actions=60)
    facts = FactsOfTopic(made.topic_window, {})
    by_id = made.entries_of(IDS)
    journals = [JournalRows(facts, id_, entries=entries) for id_, entries in by_id.items()]
    found = list(chunks(journals, events_at_once=5))
    assert len(found) > 1
    assert [journal.id for chunk in found for journal in chunk] == list(by_id)
    assert [journal.entries for chunk in found for journal in chunk] == list(by_id.values())
    assert [len(chunk) for chunk in chunks(journals, events_at_once=10**6)] == [len(by_id)]


@pytest.mark.parametrize("seed", range(5))
def test_stretches_give_each_record_what_one_reader_gives_it(seed: int) -> None:
    """FP2: log time, generation and segment size are those of a reader of the whole partition, wherever it is cut."""
    rng = random.Random(seed)
    script = random_history(rng, actions=40)
    marks = {rng.randrange(script.offset): Mark(id="m", generation=n % 3 or None, segment_size=n) for n in range(1, 5)}
    records = [
        msgspec.structs.replace(
            record,
            timestamp_ms=rng.randrange(1000),
            headers=encode_action(marks[record.offset]) if record.offset in marks else record.headers,
        )
        for record in script.records
    ]
    floors_ms = {0: 100, 1: 700, 2: 900}
    whole = batch_of(records, 0, log_time_ms=floors_ms[0])
    stretch = WindowStretch(script.at, 0, script.offset - 1, script.offset, 0, None)
    window = TopicWindow(_layout(script), {script.at.partition: stretch}, floors_ms)
    expected = _one_reader(records, floors_ms)
    for size in (1, 3, 7, len(records)):
        noted, rows = scan_in_stretches(records, size=size)
        facts = FactsOfTopic(window, noted)
        of = facts.of(script.at.partition)
        entries = [of.entry(record, first=first, log_time_ms=time_ms) for record, first, time_ms in rows]
        assert [entry for entry in entries if entry is not None] == expected
        assert (of.after.generation, of.after.segment_size) == (whole.generation, whole.segment_size)
        assert facts.records == {script.at.partition: len(records)}


def test_the_scan_leaves_out_what_no_fold_needs() -> None:
    """FP2: Marks, which may be many under one key, and records without a key; poison and verdicts hold and release."""
    at = TopicPartition("t", 0)
    poison = ((ACTION_HEADER, b'{"mark":{}}'),)
    headers = [
        encode_action(Mark(id="m")),
        encode_action(Append(first=1, last=1, payload_format="json")),
        encode_action(Verdict(id="v", held_from=1, is_skip=True)),
        encode_action(Mark(id="s", segment_size=7)),
        (),
        poison,
        encode_action(Append(first=1, last=1, payload_format="json")),
    ]
    keys = [*[b"k"] * 6, None]
    records = [Record(*at, n, 5, keys[n], None, each) for n, each in enumerate(headers)]
    batches = list(LogScan(2)(iter([batch_of_records(records), batch_of_records([])])))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows if row["kind"] == RowKind.RECORD] == [1, 2, 4, 5]
    facts = [(row["task"], decode_fact(row["value"])) for row in rows if row["kind"] == RowKind.FACT]
    mark = MarkFact(3, None, 7)
    assert facts == [(0, StretchFact(0, 5, 7)), (0, mark), (1, StretchFact(0, 5)), (1, mark)]


def _one_reader(records: Sequence[Record], floors_ms: Mapping[int, int]) -> list[Entry]:
    found, state = [], RunningState(0, floors_ms[0], 10_000)
    for record in records:
        state = state._replace(log_time_ms=max(state.log_time_ms, record.timestamp_ms))
        entry = entry_of(record, state.generation, log_time_ms=state.log_time_ms, segment_size=state.segment_size)
        if entry is not None and isinstance(entry.action, Mark):
            generation = max(state.generation, entry.action.generation or 0)
            floor_ms = max(state.log_time_ms, floors_ms.get(generation, 0))
            state = RunningState(generation, floor_ms, entry.action.segment_size or state.segment_size)
        elif entry is not None:
            found.append(entry)
    return found


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
