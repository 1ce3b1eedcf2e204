"""Journals as a table, on both tiers, beside what a journal's own read gives."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pipeline.tier import Tier, append_all
from tests.suites.journal_setting import replicate

from headrace.journal import Journal, grow_topic
from headrace.log import Log
from headrace.model import Event, NewRecord, StoredEvent, TopicConfig, TopicPartition
from headrace.pipeline import Selection, journal_frame, meta_frame, pointer_frame
from headrace.pipeline.tables.scans import Counts, counted, total
from headrace.store import Store

pytestmark = pytest.mark.timeout(300)

IDS = [f"k{n}" for n in range(8)]


def rows_of(tier: Tier, *topics: str, where: str = "true", **options: Any) -> list[Any]:
    return journal_frame(tier.spark, tier.endpoints, Selection(topics), **options).where(where).collect()


def numbers_of(rows: Sequence[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.seq_nr)
    return {key: sorted(numbers) for key, numbers in found.items()}


def read_all(tier: Tier, topic: str, ids: Sequence[str] = IDS) -> dict[str, list[StoredEvent]]:
    async def read(journal: Journal) -> dict[str, list[StoredEvent]]:
        found = {id_: [event async for event in journal.read(id_)] for id_ in ids}
        return {id_: events for id_, events in found.items() if events}

    return tier.with_journal(topic, read)


def as_read(row: Any) -> StoredEvent:
    """Return a row of the table as a journal's read would give it."""
    payload = row.payload
    if row.payload_type == "text":
        payload = row.payload_text
    elif row.payload_type == "json":
        payload = msgspec.json.decode(row.payload_text)
    metadata = msgspec.json.decode(row.metadata) if row.metadata else {}
    of_payload = metadata.get("payload", {})
    return StoredEvent(
        row.seq_nr,
        None if payload is None else bytes(payload) if row.payload_type == "binary" else payload,
        tuple(row.tags),
        row.partition,
        row.offset,
        round(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000),
        metadata.get("header", {}).get("data"),
        of_payload.get("data"),
        of_payload.get("expireAfter"),
        row.headers,
        row.origin,
        row.version,
    )


async def live(journal: Journal, rng: random.Random, actions: int) -> None:
    """Do this and that to journals: appends of all kinds, deletes, purges."""
    for _ in range(actions):
        id_ = rng.choice(IDS)
        pointer = await journal.pointer(id_) or 0
        match rng.choice("aaaaadp"):
            case "a":
                count = rng.randint(1, 3)
                events = [
                    Event(pointer + n, payload(rng), ("x", "y")[: rng.randint(0, 2)]) for n in range(1, count + 1)
                ]
                extra: dict[str, Any] = {}
                if rng.random() < 0.3:
                    extra = {"metadata": {"a": 1}, "payload_metadata": [2], "headers": {"h": "v"}, "origin": "test"}
                await journal.append(id_, events, **extra)
            case "d" if pointer:
                await journal.delete(id_, to=rng.randint(1, pointer + 2))
            case "p" if rng.random() < 0.3:
                await journal.purge(id_)


def payload(rng: random.Random) -> Any:
    return rng.choice([None, b"\x00\xff", "täxt", {"n": rng.random()}, [1, "two"]])


@pytest.mark.parametrize("stored", ["half", "half, offsets behind"])
def test_the_table_has_what_reads_have(tier: Tier, topic: str, stored: str) -> None:
    """K5: whatever part of a history of appends, deletes and purges is replicated, the table has the living events."""
    rng = random.Random(f"{stored} {tier.is_embedded}")
    tier.with_journal(topic, lambda journal: live(journal, rng, 60), partitions=3)
    move_to = 3 if "behind" in stored else None
    tier.on(lambda log, store: replicate(log, store, topic, move_to=move_to))
    tier.with_journal(topic, lambda journal: live(journal, rng, 60), partitions=3)
    rows = rows_of(tier, topic)
    found: dict[str, list[StoredEvent]] = {}
    for row in sorted(rows, key=lambda row: row.seq_nr):
        found.setdefault(row.key, []).append(as_read(row))
    assert found == read_all(tier, topic)
    assert {row.topic for row in rows} == {topic}


def test_rows_ahead_of_their_head_count_once(tier: Tier, topic: str) -> None:
    """K5: events whose rows were written when a replicator died, but not yet their head, come from the log alone."""
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 2))
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 2, first=3))
    _, ahead = tier.expected(topic)

    async def write(_: Log, store: Store) -> None:
        for id_, rows in ahead.items():
            await store.writer.write_rows(topic, id_, rows)

    tier.on(write)
    assert numbers_of(rows_of(tier, topic)) == {f"k{n}": [1, 2, 3, 4] for n in range(3)}


def test_rows_are_the_same_before_and_after_replication(tier: Tier, topic: str) -> None:
    """K5: an event's row does not change when replication carries it from the log to the store."""
    tier.with_journal(topic, lambda journal: live(journal, random.Random(7), 50))
    before = rows_of(tier, topic)
    tier.replicate(topic)
    after = rows_of(tier, topic)
    assert sorted(before, key=str) == sorted(after, key=str)
    assert len(after) > 10


def test_a_running_replication_neither_doubles_nor_loses(tier: Tier, topic: str) -> None:
    """K5: while writers append and delete and the job runs, each query sees every event once and none too few."""
    keys = [f"k{n}" for n in range(10)]
    acknowledged = dict.fromkeys(keys, 0)
    deleted = dict.fromkeys(keys, 0)

    async def write(journal: Journal) -> None:
        for last in range(2, 102, 2):
            for key in keys:
                await journal.append(key, [Event(last - 1, 1), Event(last, 2)])
                acknowledged[key] = last
            if last % 30 == 0:
                deleted[keys[0]] = last - 10
                await journal.delete(keys[0], to=last - 10)
            await asyncio.sleep(0.05)

    tier.with_journal(topic, lambda journal: journal.mark("k", "the topic is there"))
    writer = threading.Thread(target=lambda: tier.with_journal(topic, write))
    looks = 0
    with tier.replicating(topic, max_records=100):
        writer.start()
        while looks == 0 or (writer.is_alive() and looks < 6):
            had, looks = dict(acknowledged), looks + 1
            found = numbers_of(rows_of(tier, topic))
            for key in keys:
                mine = found.get(key, [])
                assert not mine or mine == list(range(mine[0], mine[-1] + 1))
                assert (mine[-1] if mine else 0) >= had[key]
                assert not mine or mine[0] <= deleted[key] + 1
        writer.join(120)
    assert not writer.is_alive()
    assert min(acknowledged.values()) == 100


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    folder = tmp_path / "counts"
    folder.mkdir()
    return folder


def read_with(tier: Tier, topic: str, counts: Path, where: str) -> tuple[list[Any], Counts, int]:
    """Return the rows, what was read for them, and by how many tasks."""
    for path in counts.iterdir():
        path.unlink()
    rows = rows_of(tier, topic, where=where, counts=counts)
    counts_of_tasks = counted(counts)
    return rows, total(counts_of_tasks), len(counts_of_tasks)


def test_filters_decide_what_is_read(tier: Tier, topic: str, counts: Path) -> None:
    """K5: filters on key, topic, offset, seq_nr and time are pushed down, as the counts of what was read show."""
    other = f"{topic}-other"
    tier.with_journal(topic, lambda journal: append_all(journal, 40, 5))
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: append_all(journal, 40, 2, first=6))
    tier.with_journal(other, lambda journal: append_all(journal, 3, 1))

    rows, read, tasks = read_with(tier, topic, counts, "true")
    assert (len(rows), tasks) == (280, 4)
    assert (read.metas, read.rows, read.headers, read.values, read.given) == (40, 200, 80, 80, 280)
    place = next(row for row in rows if row.key == "k7")
    of_partition = [row for row in rows if row.partition == place.partition]
    head = [row for row in of_partition if row.seq_nr > 5]

    rows, read, tasks = read_with(tier, topic, counts, "key = 'k7'")
    assert (len(rows), tasks) == (7, 1)
    assert (read.metas, read.rows, read.headers) == (1, 5, len(head))
    assert read.values <= len(head)
    rows, read, tasks = read_with(tier, topic, counts, "key IN ('k7', 'nobody') AND topic = 'elsewhere'")
    assert (rows, tasks) == ([], 0)
    rows, read, tasks = read_with(tier, topic, counts, "key IN ('k7', 'k8')")
    assert (len(rows), read.metas, read.rows, read.given) == (14, 2, 10, 14)
    assert tasks <= 2

    rows, read, tasks = read_with(tier, topic, counts, f"partition = {place.partition}")
    assert (len(rows), tasks) == (len(of_partition), 1)
    stored = max(row.offset for row in of_partition if row.seq_nr <= 5)
    where = f"partition = {place.partition} AND offset > {stored}"
    rows, read, tasks = read_with(tier, topic, counts, where)
    assert (len(rows), tasks, read.rows) == (len(head), 1, 0)
    where = f"partition = {place.partition} AND offset <= {stored}"
    rows, read, tasks = read_with(tier, topic, counts, where)
    assert (len(rows), read.values) == (len(of_partition) - len(head), 0)

    rows, read, tasks = read_with(tier, topic, counts, "seq_nr = 3")
    assert (len(rows), read.rows, read.values) == (40, 40, 0)
    rows, read, tasks = read_with(tier, topic, counts, "seq_nr >= 6")
    assert (len(rows), read.rows) == (80, 0)

    rows = rows_of(tier, topic, other, where=f"topic = '{other}'", counts=counts)
    assert len(rows) == 3
    assert {each.topic for each in counted(counts)} == {topic, other}  # those of before, and the other alone


async def append_at(log: Log, topic: str, id_: str, seq_nr: int, at: datetime) -> None:
    """Append an event as if it had been then."""
    from headrace.protocol.actions import Append
    from headrace.protocol.headers import encode_action
    from headrace.protocol.payloads import AppendValue, encode_events, encode_value

    form, value = encode_value(AppendValue(encode_events([Event(seq_nr, {"n": seq_nr})])))
    headers = encode_action(Append(first=seq_nr, last=seq_nr, payload_format=form))
    await log.append(
        [NewRecord(topic, id_.encode(), value, headers, partition=0, timestamp_ms=int(at.timestamp() * 1000))]
    )


def test_filters_on_time_decide_what_is_read(tier: Tier, topic: str, counts: Path) -> None:
    """K5: journals outside of the wanted times are not read; one with a clock that is a little off is."""
    day = timedelta(days=1)
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)

    async def fill(log: Log, store: Store) -> None:
        await log.admin.create(topic, partitions=1, config=TopicConfig())
        for n in range(5):
            await append_at(log, topic, f"old{n}", 1, now - 3 * day)
        await append_at(log, topic, "skewed", 1, now - 2 * day)
        await append_at(log, topic, "skewed", 2, now - 2 * day - timedelta(minutes=30))
        await append_at(log, topic, "new", 1, now)
        await replicate(log, store, topic)
        await append_at(log, topic, "head", 1, now + timedelta(seconds=1))

    tier.on(fill)
    since = f"timestamp >= timestamp'{(now - day):%Y-%m-%d %H:%M:%S}'"
    rows, read, _ = read_with(tier, topic, counts, since)
    assert {row.key for row in rows} == {"new", "head"}
    assert (read.metas, read.rows) == (7, 1)
    exactly = f"timestamp >= timestamp'{(now - 2 * day):%Y-%m-%d %H:%M:%S}'"
    rows, read, _ = read_with(tier, topic, counts, f"{exactly} AND timestamp < timestamp'{(now - day):%Y-%m-%d}'")
    assert [(row.key, row.seq_nr) for row in rows] == [("skewed", 1)]
    assert (read.rows, read.values) == (2, 0)
    rows, read, _ = read_with(tier, topic, counts, f"timestamp > timestamp'{now:%Y-%m-%d %H:%M:%S}'")
    assert {row.key for row in rows} == {"head"}
    assert (read.metas, read.rows, read.values) == (0, 0, 1)  # the log time of what is stored says that it is older


def test_a_key_that_moved_is_whole(tier: Tier, topic: str) -> None:
    """K5: when a topic grew, events of a key from its old and its new partition are all there, replicated or not."""

    async def grow(log: Log, store: Store) -> None:
        await grow_topic(log, store.settings, topic, partitions=5, lease_s=0.01)

    tier.with_journal(topic, lambda journal: append_all(journal, 20, 2), partitions=2)
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: append_all(journal, 20, 2, first=3))
    tier.on(grow)
    tier.with_journal(topic, lambda journal: append_all(journal, 10, 2, first=5))
    expected = {f"k{n}": list(range(1, 7 if n < 10 else 5)) for n in range(20)}
    assert numbers_of(rows_of(tier, topic)) == expected
    (two,) = {row.partition for row in rows_of(tier, topic, where="key = 'k12'")}
    assert two < 2
    tier.replicate(topic)
    assert numbers_of(rows_of(tier, topic)) == expected
    assert numbers_of(rows_of(tier, topic, where="key = 'k3'")) == {"k3": expected["k3"]}
    keys = [row.key for row in meta_frame(tier.spark, tier.endpoints, Selection((topic,))).collect()]
    assert sorted(keys) == sorted(expected)


def test_a_quarantined_journal_is_not_left_out_in_silence(tier: Tier, topic: str) -> None:
    """K5: a record that can't be decoded fails the query, naming key and offset; on request the rest is given."""

    async def poison(log: Log, store: Store) -> None:
        journal = Journal(log, store, topic, cache=None, partitions=1)
        await append_all(journal, 2, 3)
        await log.append([NewRecord(topic, b"k0", b"?", (("journal.action", b"?"),), partition=0)])

    tier.on(poison)
    for is_stored in (False, True):
        if is_stored:
            tier.on(lambda log, store: replicate(log, store, topic))
        with pytest.raises(Exception, match="journal 'k0' is held from offset 6"):
            rows_of(tier, topic)
        assert numbers_of(rows_of(tier, topic, held="skip")) == {"k1": [1, 2, 3]}
        assert numbers_of(rows_of(tier, topic, where="key = 'k1'")) == {"k1": [1, 2, 3]}


def test_a_long_journal_is_streamed(tier: Tier, topic: str) -> None:
    """K5: a journal of many pages, half of it in the store, is whole; so is one with gaps in its numbers."""

    async def fill(journal: Journal, first: int) -> None:
        await asyncio.gather(
            *(
                journal.append("long", [Event(n, n) for n in range(start, start + 100)])
                for start in range(first, first + 3000, 100)
            )
        )
        for n in range(first, first + 40, 4):
            await journal.append("gaps", [Event(n, n)])

    tier.with_journal(topic, lambda journal: fill(journal, 1))
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: fill(journal, 3001))
    found = numbers_of(rows_of(tier, topic))
    assert found["long"] == list(range(1, 6001))
    assert found["gaps"] == [*range(1, 41, 4), *range(3001, 3041, 4)]


def test_heads_and_pointers_are_tables(tier: Tier, topic: str) -> None:
    """K5: heads of journals, with markers, and the replicated offsets beside the log's bounds can be queried."""

    async def fill(journal: Journal) -> None:
        await append_all(journal, 4, 3)
        await journal.delete("k0", to=2)
        await journal.purge("k1")
        await journal.append("k2", [Event(4, 1)], expire_after="1 day", origin="me")

    selection = Selection((topic,))
    tier.with_journal(topic, fill)
    pointers = pointer_frame(tier.spark, tier.endpoints, selection).collect()
    assert [(row.partition, row.offset) for row in sorted(pointers)] == [(n, None) for n in range(4)]
    assert all(row.lag == row.log_end - row.log_start for row in pointers)
    assert sum(row.lag for row in pointers) >= 15
    tier.on(lambda log, store: replicate(log, store, topic))
    metas = {row.key: row for row in meta_frame(tier.spark, tier.endpoints, selection).collect()}
    assert {key: (row.seq_nr, row.delete_to, row.is_purged) for key, row in metas.items()} == {
        "k0": (3, 2, False),
        "k1": (3, 0, True),
        "k2": (4, 0, False),
        "k3": (3, 0, False),
    }
    assert (metas["k2"].expire_after, metas["k2"].origin) == ("1 day", "me")
    assert metas["k2"].expire_on - metas["k2"].updated == timedelta(days=1)
    one = meta_frame(tier.spark, tier.endpoints, selection).where("key = 'k2'").collect()
    assert one == [metas["k2"]]
    pointers = pointer_frame(tier.spark, tier.endpoints, selection).collect()
    bounds = tier.on(lambda log, _: log.bounds(TopicPartition(topic, 0)))
    assert {row.lag for row in pointers} == {0}
    assert next(row for row in pointers if row.partition == 0).log_end == bounds.end
