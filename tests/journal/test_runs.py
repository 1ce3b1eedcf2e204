"""Runs of plain appends: whatever the history, the short way gives exactly what the general fold gives."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.suites.journal_plain_histories import plain_history
from tests.suites.journal_script import Script

from headrace.config import EmbeddedStoreSettings, StoreSettings, TagSettings
from headrace.journal import JOURNAL_TOPIC, KeptHeads, Topology, replicate_batch
from headrace.log import Log, open_log
from headrace.model import Event, Headers, Record, RecordColumns, TopicPartition
from headrace.protocol import KeyFold, KeyWrites, PartitionBatch, batch_of, column_batch, fold_key, fold_run
from headrace.protocol.payloads import encode_binary_events
from headrace.store import MAX_PAYLOAD_BYTES, JournalMeta, open_store
from headrace.tags import TagWriter
from headrace.testing.plugin import Size

AT = TopicPartition("t", 0)


class Folded:
    """What a batch makes of its keys."""

    def __init__(self, batch: PartitionBatch, folds: dict[str, KeyFold]) -> None:
        self.state = (batch.generation, batch.log_time_ms, batch.segment_size, batch.skipped)
        self.folds = folds

    def writes(self) -> dict[str, object]:
        """Return everything that is written, by key."""
        return {
            id_: [(list(piece.rows), piece.gaps, piece.meta, piece.deletions, piece.purged_at) for piece in fold.pieces]
            for id_, fold in self.folds.items()
        }


def general(records: Sequence[Record], metas: dict[str, JournalMeta | None], before: PartitionBatch) -> Folded:
    options = {"log_time_ms": before.log_time_ms, "segment_size": before.segment_size}
    batch = batch_of(records, before.generation, **options)
    return Folded(batch, {id_: fold_key(metas.get(id_), entries) for id_, entries in batch.by_id.items()})


def short(
    records: Sequence[Record], metas: dict[str, JournalMeta | None], before: PartitionBatch, seen: Counter[str]
) -> Folded:
    """Fold runs where there are some, and count them."""
    options = {"log_time_ms": before.log_time_ms, "segment_size": before.segment_size}
    batch = column_batch(RecordColumns.of(AT, records), before.generation, **options)
    folds: dict[str, KeyFold] = {}
    for id_, run in list(batch.runs.items()):
        found = fold_run(metas.get(id_), run, id_, batch)
        seen["left to the general fold" if found is None else "runs"] += 1
        if found is None:
            batch.make_general(id_)
        else:
            folds[id_] = KeyFold(found.meta, pieces=[KeyWrites(rows=list(found.rows), meta=found.meta)])
    seen["general"] += len(batch.general.by_id)
    folds |= {id_: fold_key(metas.get(id_), entries) for id_, entries in batch.general.by_id.items()}
    return Folded(batch.general, folds)


@given(st.integers(0, 1 << 32), st.sampled_from([0.0, 0.05, 0.2, 0.6]))
@settings(max_examples=300, deadline=None)
def test_a_run_gives_the_rows_and_the_state_of_the_general_fold(seed: int, unusual: float) -> None:
    """Rows, gaps, deletions, states, log time, segment size and what is skipped are equal, batch after batch."""
    rng = random.Random(seed)
    records = plain_history(rng, actions=40, unusual=unusual).records
    metas: dict[str, JournalMeta | None] = {}
    state = PartitionBatch(0, 0)
    while records:
        size = rng.randint(1, 20)
        some, records = records[:size], records[size:]
        if rng.random() < 0.2:
            records = [*some[rng.randrange(len(some)) :], *records]  # a part of the batch comes again
        expected = general(some, metas, state)
        found = short(some, metas, state, Counter())
        assert found.state == expected.state
        assert found.writes() == expected.writes()
        assert {i: f.meta for i, f in found.folds.items()} == {i: f.meta for i, f in expected.folds.items()}
        metas |= {id_: fold.meta for id_, fold in expected.folds.items()}
        state = PartitionBatch(*expected.state[:3])


def check_equal(records: Sequence[Record], metas: dict[str, JournalMeta | None] | None = None) -> Counter[str]:
    """Compare the two ways for one batch; returns how its keys were folded."""
    seen: Counter[str] = Counter()
    expected = general(records, metas or {}, PartitionBatch(0, 0))
    found = short(records, metas or {}, PartitionBatch(0, 0), seen)
    assert found.state == expected.state
    assert found.writes() == expected.writes()
    return seen


def changed(record: Record, *, value: bytes | None = None, headers: Headers | None = None) -> Record:
    return msgspec.structs.replace(record, value=value or record.value, headers=headers or record.headers)


def binary(first: int = 1, last: int = 2) -> list[Record]:
    """Write appends of one binary event each to one journal."""
    script = Script()
    for number in range(first, last + 1):
        script.append("k", number, given=[Event(number, b"payload")])
    return script.records


def test_a_value_that_differs_in_any_byte_is_decoded() -> None:
    """The short way knows exactly one form of a value; every other one is decoded or refused as always."""
    before, plain = binary()
    value = plain.value or b""
    assert check_equal([before, plain]) == {"runs": 1, "general": 0}
    for at in range(len(value)):
        for byte in {0, 1, 2, 255, value[at] ^ 1}:
            check_equal([before, changed(plain, value=value[:at] + bytes((byte,)) + value[at + 1 :])])
        check_equal([before, changed(plain, value=value[:at] or b"x")])
        check_equal([before, changed(plain, value=value[:at] + b"\x00" + value[at:])])


def test_a_header_that_differs_in_any_byte_is_decoded() -> None:
    """So does the header, its name included."""
    before, plain = binary()
    name, header = plain.headers[0]
    for at in range(len(header or b"")):
        for byte in (b"0", b"1", b"2", b"}", b" ", b"\xff"):
            check_equal(
                [before, changed(plain, headers=((name, (header or b"")[:at] + byte + (header or b"")[at + 1 :]),))]
            )
    for lone in (("other", header), (f"{name}s", header), (name, None), (name, b"")):
        check_equal([before, changed(plain, headers=(lone,))])


@pytest.mark.parametrize("seq_nr", [-1, 0, 10**18 - 1, 10**18, 2**63 - 1])
def test_numbers_at_the_ends_of_their_range_are_checked(seq_nr: int) -> None:
    """Numbers below 1 hold the journal, and the largest ones count, as in the general fold."""
    before, plain = binary(1, 2)
    before = msgspec.structs.replace(before, key=b"other")
    event = Event(1, b"payload")
    value = (encode_binary_events([event]) or b"").replace(struct.pack(">q", 1), struct.pack(">q", seq_nr), 1)
    header = (before.headers[0][1] or b"").replace(b":1,", b":%d," % seq_nr).replace(b":1}", b":%d}" % seq_nr)
    check_equal([before, changed(plain, value=value, headers=((plain.headers[0][0], header),))])


def test_a_payload_that_no_store_takes_holds_the_journal() -> None:
    """The short way has the same limit."""
    before, plain = binary()
    too_large = encode_binary_events([Event(2, bytes(MAX_PAYLOAD_BYTES + 1))])
    assert check_equal([before, changed(plain, value=too_large)])["runs"] == 0


def test_binary_events_behind_a_header_that_says_json_hold_their_journal() -> None:
    """The short way looks at the format in the header, too, also if the record before has the same header."""
    script = Script()
    script.append("other", 1, given=[Event(1, "text")])
    script.append("k", 1, given=[Event(1, "text")])
    as_json, value = script.records[-1], encode_binary_events([Event(1, b"payload")])
    assert check_equal([script.records[0], changed(as_json, value=value)]) == {"runs": 1, "general": 1}


def test_appends_that_overlap_are_void() -> None:
    """Each record must begin above the last number of the one before, not only above its first."""
    script = Script()
    script.append("k", 1, given=[Event(1, b"1"), Event(2, b"2"), Event(3, b"3")])
    script.append("k", 2, given=[Event(2, b"again")])
    assert check_equal(script.records)["runs"] == 0


def test_records_that_come_out_of_order_are_dropped() -> None:
    """An append below one that was applied counts for nothing, though its number is higher."""
    first, second = binary()
    moved = [msgspec.structs.replace(first, offset=second.offset), msgspec.structs.replace(second, offset=first.offset)]
    assert check_equal(moved)["runs"] == 0


def test_a_replay_of_what_was_purged_brings_nothing_back() -> None:
    """The append lies below the purge marker, which has no number that could make it void."""
    script = Script()
    script.append("k", 1, given=[Event(1, b"1")])
    script.purge("k")
    metas = {id_: fold.meta for id_, fold in general(script.records, {}, PartitionBatch(0, 0)).folds.items()}
    assert check_equal(script.records[:1], metas)["runs"] == 0


def test_the_histories_have_runs_and_everything_else() -> None:
    """The comparison above means something: most keys are runs, some runs are refused, some keys are general."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        records = plain_history(random.Random(seed), actions=40).records
        metas: dict[str, JournalMeta | None] = {}
        for start in range(0, len(records), 10):
            some = records[start : start + 10]
            short(some, metas, PartitionBatch(0, 0), seen)
            metas |= {id_: fold.meta for id_, fold in general(some, metas, PartitionBatch(0, 0)).folds.items()}
    assert seen["runs"] > 100
    assert seen["general"] > 50
    assert seen["left to the general fold"] > 20


TABLES = (
    "SELECT id, events.* FROM events JOIN journals ON number = journal ORDER BY id, segment, seq_nr, timestamp_ms",
    "SELECT id, heads.* FROM heads JOIN journals ON number = journal ORDER BY id",
    "SELECT id, event_deletions.* FROM event_deletions JOIN journals ON number = journal ORDER BY id, segment, up_to",
    "SELECT * FROM replicated",
    "SELECT * FROM tag_views WHERE tag NOT LIKE char(0) || '%' ORDER BY tag, bucket_ms, place_in_order, pid, number",
    "SELECT * FROM tag_views_progress WHERE epoch IS NULL ORDER BY topic, pid, tag",
)
OF_ONE_FILE = {"journal", "made_ms", "expires_ms"}  # a journal's number, and times of the clock


def dump(folder: Path) -> list[list[dict[str, object]]]:
    """Return what the tables of a store hold, byte for byte, without what differs between two files."""
    with sqlite3.connect(folder / "store.db") as db:
        db.row_factory = sqlite3.Row
        found = [[dict(row) for row in db.execute(query)] for query in TABLES]
    return [[{name: row[name] for name in row if name not in OF_ONE_FILE} for row in rows] for rows in found]


NO_FSYNC = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))


async def replicate(
    log: Log, folder: Path, records: Sequence[Record], cuts: Sequence[int], *, is_general: bool
) -> None:
    """Replicate in batches that end at the cuts; a batch that holds an offset twice has no runs."""
    store = await open_store(f"embedded:{folder}", settings=NO_FSYNC)
    layout = await Topology(log, store.settings, "t").layout()
    views, heads = TagWriter(store, TagSettings(), log=log), KeptHeads(most=3)
    await views.open_topic(layout)
    start = 0
    for end in cuts:
        some, start = records[start:end], end
        given = [_without_key(some[0]), *some] if is_general else some
        kept = None if is_general else heads
        await replicate_batch(store, layout, AT, given, up_to=some[-1].offset, views=views, heads=kept)
    await store.close()


def _without_key(record: Record) -> Record:
    """Return a record at the same place that is skipped."""
    return Record(record.topic, record.partition, record.offset, record.timestamp_ms)


async def test_the_tables_are_equal_byte_for_byte(tmp_path: Path, size: Size) -> None:
    """Events, heads, deletions, replicated offset, views by tag and their numbers: by runs and by the general fold."""
    log = await open_log(f"embedded:{tmp_path / 'log'}")
    await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
    for seed in range(size(6, 300)):
        rng = random.Random(seed)
        records = plain_history(rng, actions=60, unusual=rng.choice((0.05, 0.2))).records
        cuts = sorted({*rng.sample(range(1, 60), 6), len(records)})
        folders = [tmp_path / f"{seed}-{way}" for way in ("runs", "general")]
        for folder, is_general in zip(folders, (False, True), strict=True):
            await replicate(log, folder, records, cuts, is_general=is_general)
        by_runs, by_fold = map(dump, folders)
        assert by_runs == by_fold, f"seed {seed}"
        assert all(by_runs[table] for table in (0, 1, 3)), f"seed {seed}"
    await log.close()
