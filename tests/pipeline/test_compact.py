"""Topics as tables: the newest of each key, windows, appends of a frame, states; on both tiers."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy
import pyarrow as pa
import pytest
from tests.pipeline.tier import Tier, append_all
from tests.suites.journal_setting import replicate

from headrace.errors import BadArgument, UnknownTopic
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, StoredEvent, TopicConfig, TopicPartition, partition_of
from headrace.pipeline import Selection, append_frame, compact, state_as_of, topic_frame
from headrace.pipeline.tables.frames import _before, rows_in_utc
from headrace.store import Store

pytestmark = pytest.mark.timeout(300)

NOON = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)


def create(tier: Tier, topic: str, partitions: int) -> None:
    tier.on(lambda log, _: log.admin.create(topic, partitions=partitions, config=TopicConfig()))


def record(topic: str, key: str | None, value: str | None, at: datetime = NOON, **fields: Any) -> NewRecord:
    return NewRecord(
        topic,
        None if key is None else key.encode(),
        None if value is None else value.encode(),
        timestamp_ms=int(at.timestamp() * 1000),
        **fields,
    )


def values_of(frame: Any) -> dict[str, str]:
    rows = frame.collect()
    found = {row.key.decode(): row.value.decode() for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_newest_of_each_key_is_left(tier: Tier, topic: str) -> None:
    """K3: 10 partitions, 100 keys with 3 values each: 100 rows, the newest by offset; tombstones are dropped."""
    create(tier, topic, 10)
    rng = random.Random(3)
    numbers = [(n, f"key{n}") for n in range(100)]
    for nth in range(3):  # times run backwards: offsets decide
        rng.shuffle(numbers)
        batch = [record(topic, key, f"{n}-{nth}", NOON - timedelta(minutes=nth)) for n, key in numbers]
        tier.on(lambda log, _, batch=batch: log.append(batch))
    frame = topic_frame(tier.spark, tier.endpoints, topic)
    assert values_of(compact(frame)) == {f"key{n}": f"{n}-2" for n in range(100)}
    assert {row.partition for row in compact(frame).collect()} == set(range(10))
    gone = [record(topic, f"key{n}", None) for n in range(40)]
    tier.on(lambda log, _: log.append([*gone, record(topic, "key0", "again"), record(topic, None, "nobody's")]))
    frame = topic_frame(tier.spark, tier.endpoints, topic)
    assert values_of(compact(frame)) == {"key0": "again", **{f"key{n}": f"{n}-2" for n in range(40, 100)}}


def test_time_decides_on_request(tier: Tier, topic: str) -> None:
    """K3: by event time the latest is left, and of two at the same time the one with the higher offset."""
    create(tier, topic, 2)
    second = timedelta(seconds=1)
    records = [
        record(topic, "late first", "new", NOON + second),
        record(topic, "late first", "old", NOON),
        record(topic, "tie", "lower", NOON),
        record(topic, "tie", "higher", NOON),
        record(topic, "gone", "back", NOON),
        record(topic, "gone", None, NOON + second),
        record(topic, "gone", "before", NOON),
    ]
    tier.on(lambda log, _: log.append(records))
    frame = topic_frame(tier.spark, tier.endpoints, topic)
    assert values_of(compact(frame, by="time")) == {"late first": "new", "tie": "higher"}
    assert values_of(compact(frame)) == {"late first": "old", "tie": "higher", "gone": "before"}
    with pytest.raises(BadArgument, match="'offset' or 'time'"):
        compact(frame, by="value")  # type: ignore[arg-type]


def test_a_window_begins_inclusive_and_ends_exclusive(tier: Tier, topic: str) -> None:
    """K4: a window of time limits topic and compact view to [start, end), and so do offsets."""
    create(tier, topic, 1)
    minute = timedelta(minutes=1)
    tier.on(lambda log, _: log.append([record(topic, f"k{n % 2}", str(n), NOON + n * minute) for n in range(6)]))
    frame = topic_frame(tier.spark, tier.endpoints, topic)
    window: dict[str, Any] = {"start": NOON + minute, "end": NOON + 4 * minute}
    assert values_of(compact(frame, **window)) == {"k1": "3", "k0": "2"}
    assert values_of(compact(frame, by="time", end=NOON)) == {}
    assert values_of(compact(frame, start=1, end=4)) == {"k1": "3", "k0": "2"}
    for edges in (window, {"start": 1, "end": 4}, {"start": {TopicPartition(topic, 0): 1}, "end": 4}):
        rows = topic_frame(tier.spark, tier.endpoints, [topic], **edges).collect()
        assert sorted(row.offset for row in rows) == [1, 2, 3]
    rows = topic_frame(tier.spark, tier.endpoints, topic, start=NOON + 10 * minute).collect()
    assert rows == []
    before_1970 = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    assert topic_frame(tier.spark, tier.endpoints, topic, start=before_1970).count() == 6
    assert topic_frame(tier.spark, tier.endpoints, topic, end=datetime.max.replace(tzinfo=UTC)).count() == 6
    assert [row.timestamp for row in frame.where("offset = 2").collect()] == [(NOON + 2 * minute).replace(tzinfo=None)]
    with pytest.raises(UnknownTopic):
        topic_frame(tier.spark, tier.endpoints, f"{topic}-x")


def test_a_frame_is_appended_by_its_keys(tier: Tier, topic: str) -> None:
    """K7: each row goes to the partition of its key, with headers and time; the counts say how many went where."""
    create(tier, topic, 5)
    spark = tier.spark
    frame = spark.range(500).selectExpr(
        "concat('key', id) AS key",
        "CASE WHEN id > 0 THEN concat('value', id) END AS value",
        "map('h', CAST(id AS STRING)) AS headers",
        f"timestamp_seconds({int(NOON.timestamp())} + id) AS timestamp",
    )
    done = append_frame(frame, tier.endpoints, topic)
    rows = topic_frame(spark, tier.endpoints, topic).collect()
    assert done.records == len(rows) == 500
    assert all(row.partition == partition_of(row.key, 5) for row in rows)
    counted = {n: sum(row.partition == n for row in rows) for n in range(5)}
    assert dict(done.by_partition) == counted
    by_key = {row.key.decode(): row for row in rows}
    seven = by_key["key7"]
    assert (seven.value, [(h.key, bytes(h.value)) for h in seven.headers]) == (b"value7", [("h", b"7")])
    assert seven.timestamp == (NOON + timedelta(seconds=7)).replace(tzinfo=None)
    assert by_key["key0"].value is None
    again = append_frame(spark.sql("SELECT 'k' AS key, X'00FF' AS value"), tier.endpoints, topic)
    assert again.records == 1
    with pytest.raises(BadArgument, match="column value"):
        append_frame(spark.sql("SELECT 'k' AS key, 1 AS value"), tier.endpoints, topic)
    with pytest.raises(BadArgument, match=r"column timestamp is 'timestamp_ntz', but it must be timestamp"):
        append_frame(frame.withColumn("timestamp", frame.timestamp.cast("timestamp_ntz")), tier.endpoints, topic)
    with pytest.raises(BadArgument, match="select those"):
        append_frame(spark.sql("SELECT 'k' AS key, 'v' AS value, 1 AS n"), tier.endpoints, topic)
    with pytest.raises(UnknownTopic):
        append_frame(spark.sql("SELECT 'k' AS key, 'v' AS value"), tier.endpoints, f"{topic}-x")


@pytest.mark.parametrize("zone", ["GMT+3", "+05:30", "Asia/Tokyo", "UTC"])
def test_events_have_their_times_in_a_session_of_any_zone(zone: str) -> None:
    """K8: Spark takes names of zones that Python does not know."""
    at = pa.array([1_700_000_000_123_000]).cast(pa.timestamp("us", zone))
    (row,) = rows_in_utc(pa.RecordBatch.from_arrays([at, pa.array(["k"])], ["timestamp", "key"]))
    assert row == {"timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC), "key": "k"}


def add(state: dict[str, int], event: StoredEvent) -> dict[str, int]:
    state["sum"] += event.payload["n"]
    return state


def test_states_are_as_of_an_offset_or_a_time(tier: Tier, topic: str) -> None:
    """K8: the state of one aggregate, or of all, as of an offset, offsets by partition, a time, or now."""
    tier.with_journal(topic, lambda journal: append_all(journal, 6, 3), partitions=2)
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: append_all(journal, 6, 2, first=4))
    spark, selection = tier.spark, Selection((topic,))

    def states(**as_of: Any) -> dict[str, tuple[int, int]]:
        frame = state_as_of(spark, tier.endpoints, selection, add, {"sum": 0}, schema="sum bigint", **as_of)
        return {row.key: (row.seq_nr, row.state.sum) for row in frame.collect()}

    assert states() == {f"k{n}": (5, 15) for n in range(6)}
    assert states(key="k2") == {"k2": (5, 15)}

    async def third(journal: Journal) -> dict[int, StoredEvent]:
        ids = [f"k{n}" for n in range(6)]
        events = [event for id_ in ids async for event in journal.read(id_) if event.seq_nr == 3]
        return {n: max((e for e in events if e.partition == n), key=lambda e: e.offset) for n in (0, 1)}

    last = tier.with_journal(topic, third)
    by_partition = {partition: event.offset for partition, event in last.items()}
    assert states(offset=by_partition) == {f"k{n}": (3, 6) for n in range(6)}
    of_key = tier.with_journal(topic, lambda journal: second_of(journal, "k4"))
    assert states(offset=of_key.offset, key="k4") == {"k4": (2, 3)}
    at = datetime.fromtimestamp(of_key.timestamp_ms / 1000, UTC)
    assert states(at=at, key="k4")["k4"] in {(2, 3), (3, 6)}  # a millisecond may hold two
    assert states(at=at - timedelta(hours=1)) == {}
    with pytest.raises(BadArgument, match="not both"):
        states(at=at, offset=1)


async def second_of(journal: Journal, id_: str) -> StoredEvent:
    return [event async for event in journal.read(id_)][1]


@pytest.mark.parametrize("offset", [True, 1.0, "7", {0: None}, {"0": 3}])
def test_an_offset_that_is_none_is_refused(offset: Any) -> None:
    """K8: anything but a whole number is no offset. A number that is 0, but of another type, was taken for "all"."""
    with pytest.raises(BadArgument, match="whole number"):
        _before(offset, None)


def test_offsets_of_numpy_are_offsets_and_no_offsets_are_no_events() -> None:
    """K8: columns of pandas have integers of numpy. A vector of offsets that names no partition covers no event."""
    assert _before(numpy.int64(0), None) == _before(0, None) == "offset <= 0"
    assert _before({numpy.int64(1): numpy.int64(7)}, None) == _before({1: 7}, None)
    assert _before({}, None) == "false"
    assert _before(None, None) == "true"
    with pytest.raises(BadArgument, match="datetime"):
        _before(None, "2026-01-01")  # type: ignore[arg-type]


def test_a_state_says_what_is_missing_and_what_failed(tier: Tier, topic: str) -> None:
    """K8: a journal whose first events were deleted is told from a whole one; a fold that fails names the event."""

    async def fill(log: Log, store: Store) -> None:
        journal = Journal(log, store, topic, cache=None, partitions=1)
        await append_all(journal, 2, 3)
        await journal.delete("k1", to=1)
        await journal.append("k1", [Event(4, {"n": 4})])

    tier.on(fill)
    selection = Selection((topic,))
    rows = state_as_of(tier.spark, tier.endpoints, selection, add, {"sum": 0}).collect()
    found = {row.key: (row.seq_nr, row.events, row.is_complete, row.state) for row in rows}
    assert found == {"k0": (3, 3, True, '{"sum":6}'), "k1": (4, 3, False, '{"sum":9}')}
    failing = state_as_of(tier.spark, tier.endpoints, selection, lambda state, event: state[event.seq_nr], 0, key="k0")
    with pytest.raises(Exception, match="folding event 1 of 'k0' failed: TypeError"):
        failing.collect()
