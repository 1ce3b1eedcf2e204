"""Imports of another system's events: checked, continued where they stopped, and exactly once for each row."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tier import Tier
from tests.suites.journal_setting import replicate
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.config import HeadraceSettings
from headrace.errors import (
    BadArgument,
    JournalHeld,
    OperationFailed,
    TargetDiffers,
    TimedOut,
    TopicClaimed,
    TopicShared,
    UnknownTopic,
)
from headrace.journal import Journal, TopicTerms, Topology, change_terms, grow_topic
from headrace.log import Log, open_log
from headrace.model import Event, NewRecord, Position, StoredEvent, TopicPartition
from headrace.pipeline import Selection, import_journals, journal_frame
from headrace.pipeline.jobs.import_writer import ImportCounts, ImportedRow, PartitionImport
from headrace.store import Store, open_store
from headrace.testing.plugin import Size

TOPIC = "accounts"
LONG_AGO_MS = 1_400_000_000_000
LEASE_S = 0.02


def rows(id_: str, first: int, last: int, *, start: int = 1, text: str = "") -> list[ImportedRow]:
    """Return events of one journal, of which the import has those from `start` on."""
    return [
        ImportedRow(
            id_,
            n,
            start,
            "text",
            f"{text}{id_}-{n}".encode(),
            ("even",) if n % 2 == 0 else (),
            b'{"m":1}',
            LONG_AGO_MS + n,
        )
        for n in range(first, last + 1)
    ]


class Place:
    """An embedded log and store, and imports into them."""

    def __init__(self, log: Log, store: Store) -> None:
        self.log, self.store = log, store
        self.journal = Journal(log, store, TOPIC, cache=None, partitions=2, lease_s=LEASE_S)

    def importing(self, log: Log | None = None) -> PartitionImport:
        topology = Topology(log or self.log, self.store.settings, TOPIC, lease_s=LEASE_S)
        return PartitionImport(log or self.log, self.store, topology)

    async def take(self, *some: Sequence[ImportedRow], log: Log | None = None) -> list[ImportCounts]:
        importing = self.importing(log)
        try:
            return [await importing.take(each) for each in some]
        finally:
            await importing.close()

    async def events(self, id_: str) -> list[StoredEvent]:
        return [event async for event in self.journal.read(id_)]

    async def numbers(self, id_: str) -> list[int]:
        return [event.seq_nr for event in await self.events(id_)]


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Place]:
    settings = HeadraceSettings.model_validate(
        {"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}}
    )
    log = await open_log(f"embedded:{folder}", settings=settings.log)
    store = await open_store(f"embedded:{folder}", settings=settings.store)
    made = Place(log, store)
    await made.journal.append("other", [Event(1, "x")])
    yield made
    await store.close()
    await log.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(tmp_path) as made:
        yield made


async def test_rows_become_events_with_their_times(place: Place) -> None:
    """An imported event has the row's number, payload, tags, metadata and time; a journal may begin above 1."""
    mixed = [row for pair in zip(rows("a", 1, 3), rows("b", 5, 7, start=5), strict=True) for row in pair]
    assert await place.take(mixed) == [ImportCounts(imported=6)]
    events = await place.events("a")
    assert [(e.seq_nr, e.payload, e.tags, e.metadata, e.timestamp_ms) for e in events] == [
        (n, f"a-{n}", ("even",) if n % 2 == 0 else (), {"m": 1}, LONG_AGO_MS + n) for n in (1, 2, 3)
    ]
    assert await place.numbers("b") == [5, 6, 7]
    await place.journal.append("b", [Event(8, "live")], expected=7)


async def test_a_second_import_writes_nothing(place: Place) -> None:
    """An import that is run again compares what is there, from the log and from the store, and writes only the rest."""
    await place.take(rows("a", 1, 3))
    await replicate(place.log, place.store, TOPIC)
    await place.take(rows("a", 1, 4))
    ends = [await place.log.bounds(TopicPartition(TOPIC, n)) for n in range(2)]
    assert await place.take(rows("a", 1, 4)) == [ImportCounts(present=4)]
    assert [await place.log.bounds(TopicPartition(TOPIC, n)) for n in range(2)] == ends
    assert await place.take(rows("a", 1, 6)) == [ImportCounts(imported=2, present=4)]
    assert await place.numbers("a") == [1, 2, 3, 4, 5, 6]


async def test_an_engine_that_claims_the_topic_meanwhile_is_its_only_writer(place: Place) -> None:
    """N38: an import that began before stops at its next rows."""
    importing = place.importing()
    try:
        await importing.take(rows("a", 1, 2))
        await change_terms(place.store.settings, TOPIC, lambda terms: TopicTerms(engine="bank"))
        await asyncio.sleep(2 * LEASE_S)
        with pytest.raises(TopicClaimed, match="bank"):
            await importing.take(rows("a", 3, 4))
    finally:
        await importing.close()
    assert await place.numbers("a") == [1, 2]


class Rival:
    """A log that lets another writer append first, at the moment when an import writes."""

    def __init__(self, log: Log, before: Any) -> None:
        self._log = log
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        before, self._before = self._before, None
        if before is not None:
            await before()
        return await self._log.append(records)


async def test_two_imports_at_once_write_each_row_once(place: Place) -> None:
    """A task that Spark gave up and that still runs writes the same rows: each counts once, and both imports finish."""

    async def other_attempt() -> None:
        await place.take(rows("a", 1, 3))

    late: Any = Rival(place.log, other_attempt)
    assert await place.take(rows("a", 1, 5), log=late) == [ImportCounts(imported=2, present=3)]
    assert [e.payload for e in await place.events("a")] == [f"a-{n}" for n in range(1, 6)]
    done = await asyncio.gather(*(place.take(rows("b", 1, 40), rows("b", 41, 60)) for _ in range(3)))
    assert sum(each.imported for counts in done for each in counts) == 60
    assert await place.numbers("b") == list(range(1, 61))


async def test_an_import_that_died_after_a_write_goes_on(place: Place) -> None:
    """A write whose answer is lost is in the log: the next run finds it, and every row is there once."""

    class Lost(Rival):
        async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
            await self._log.append(records)
            raise TimedOut("append", 1.0, outcome_known=False)

    some = [row for id_ in "abc" for row in rows(id_, 1, 3)]
    for _ in range(2):
        lost: Any = Lost(place.log, None)
        with pytest.raises(TimedOut):
            await place.take(some, log=lost)
    assert await place.take(some) == [ImportCounts(imported=3, present=6)]
    for id_ in "abc":
        assert [e.payload for e in await place.events(id_)] == [f"{id_}-{n}" for n in (1, 2, 3)]


async def test_rows_of_one_moment_make_one_append(place: Place) -> None:
    """Rows of a journal with the same time and metadata are one record, as one append; others are one each."""
    alike = [row._replace(timestamp_ms=LONG_AGO_MS) for row in rows("a", 1, 4)]
    await place.take([*alike, *rows("a", 5, 6)])
    events = await place.events("a")
    assert len({event.offset for event in events[:4]}) == 1
    assert len({event.offset for event in events}) == 3
    assert [event.payload for event in events] == [f"a-{n}" for n in range(1, 7)]


async def test_an_event_that_differs_stops_the_import(place: Place) -> None:
    """Nothing is imported behind an event that the row's system does not have, also if it came a moment before."""
    await place.journal.append("a", [Event(1, "mine")])
    with pytest.raises(TargetDiffers, match="another event there"):
        await place.take(rows("a", 1, 3))
    with pytest.raises(TargetDiffers, match="go on with 5"):
        await place.take(rows("a", 5, 6, start=5))

    async def client() -> None:
        await place.journal.append("b", [Event(1, "mine")])

    late: Any = Rival(place.log, client)
    with pytest.raises(TargetDiffers):
        await place.take(rows("b", 1, 3), log=late)
    assert [e.payload for e in await place.events("b")] == ["mine"]


async def test_a_number_that_the_journal_skipped_is_named(place: Place) -> None:
    """A row under a number that a client left out differs from the journal: reading again would not help."""
    await place.journal.append("a", [Event(1, "x"), Event(4, "y")])
    same = [ImportedRow("a", 1, 1, "text", b"x"), ImportedRow("a", 2, 1, "text", b"z")]
    with pytest.raises(TargetDiffers, match="has event 4, and not event 2 of the rows to import"):
        await place.take(same)
    await replicate(place.log, place.store, TOPIC)
    with pytest.raises(TargetDiffers, match="not event 2"):
        await place.take(same)


@pytest.mark.parametrize(
    ("live", "row"), [({"a": 1}, b'{"a":true}'), ({"a": 1}, b'{"a":1.0}'), ([0], b"[false]"), (1, b"true")]
)
async def test_numbers_and_truth_values_are_different_payloads(place: Place, live: Any, row: bytes) -> None:
    """Python takes 1, 1.0 and True for equal, and JSON does not."""
    await place.journal.append("a", [Event(1, live)])
    with pytest.raises(TargetDiffers, match="another event there"):
        await place.take([ImportedRow("a", 1, 1, "json", row)])
    again = json.dumps(live).encode()
    assert await place.take([ImportedRow("a", 1, 1, "json", again)]) == [ImportCounts(present=1)]


async def test_a_purge_meanwhile_leaves_no_journal_without_its_beginning(place: Place) -> None:
    """If a journal is purged between two slices, its later rows are refused; another run imports it from the start."""
    await place.take(rows("a", 1, 2))

    async def purge() -> None:
        await place.journal.purge("a")

    late: Any = Rival(place.log, purge)
    with pytest.raises(OperationFailed, match="purged meanwhile"):
        await place.take(rows("a", 3, 4), log=late)
    assert await place.numbers("a") == []
    await place.take(rows("a", 1, 4))
    assert await place.numbers("a") == [1, 2, 3, 4]
    late = Rival(place.log, lambda: place.journal.purge("d"))
    assert await place.take(rows("d", 1, 2), log=late) == [ImportCounts(imported=2)]
    assert await place.numbers("d") == [1, 2]


async def test_deleted_events_stay_deleted(place: Place) -> None:
    """A row whose event was imported and then deleted counts as present."""
    await place.take(rows("a", 1, 3))
    await place.journal.delete("a", to=2)
    assert await place.take(rows("a", 1, 4)) == [ImportCounts(imported=1, present=3)]
    assert await place.numbers("a") == [3, 4]


async def test_a_topic_that_grows_meanwhile(place: Place) -> None:
    """Rows go on where their journals are after the topic grew, in the middle of an import."""
    ids = [f"j{n}" for n in range(8)]
    importing = place.importing()
    await importing.take([row for id_ in ids for row in rows(id_, 1, 2)])
    await grow_topic(place.log, place.store.settings, TOPIC, partitions=5, lease_s=LEASE_S)
    assert await importing.take([row for id_ in ids for row in rows(id_, 3, 4)]) == ImportCounts(imported=16)
    await importing.close()
    journal = Journal(place.log, place.store, TOPIC, cache=None)
    for id_ in ids:
        assert [event.seq_nr async for event in journal.read(id_)] == [1, 2, 3, 4]


async def test_rows_that_no_journal_can_hold_are_named(place: Place) -> None:
    """A row is checked before its slice is written, and the error says which row it is."""
    good = rows("a", 1, 1)
    for bad, match in (
        (ImportedRow("a", 2, 1, "json", b"{"), "payload of event 2 of 'a'"),
        (ImportedRow("a", 2, 1, "text", b"\xff"), "payload of event 2 of 'a'"),
        (ImportedRow("a", 2, 1, "avro", b"x"), "not json, text or binary"),
        (ImportedRow("a", 2, 1, None, b"x"), "not json, text or binary"),
        (ImportedRow("a", 2, 1, tags=("",)), "^tag of event 2 of 'a'"),
        (ImportedRow("a", 2, 1, timestamp_ms=-5), "timestamp of event 2 of 'a'"),
        (ImportedRow("a", 2, 1, timestamp_ms=0), "timestamp of event 2 of 'a'"),
        (ImportedRow("a", 2, 1, "text", b"x", metadata=b"{"), "metadata of event 2 of 'a' is 'json'"),
        (ImportedRow("b" * 70_000, 1, 1), "^id of event 1 of 'b{20,90} is .{20,200}$"),
    ):
        with pytest.raises(BadArgument, match=match):
            await place.take([*good, bad])
    assert await place.numbers("a") == []
    await place.take([ImportedRow("b", 1, 1, "binary"), ImportedRow("b", 2, 1, "json", b'"null"')])
    assert [event.payload for event in await place.events("b")] == [None, "null"]
    poison = NewRecord(TOPIC, b"a", b"?", (("journal.action", b"?"),))
    await place.log.append([poison])
    with pytest.raises(JournalHeld):
        await place.take(good)


class Meanwhile:
    """A log on which anything may happen before an import's write."""

    def __init__(self, place: Place, rng: random.Random) -> None:
        self._log, self._place, self._rng = place.log, place, rng
        self._partitions = 2
        self.lasts = {id_: rng.randint(1, 6) for id_ in "abcd"}
        self.deleted = dict.fromkeys(self.lasts, 0)
        every = [row for id_, last in self.lasts.items() for row in rows(id_, 1, last)]
        timed = [row._replace(timestamp_ms=LONG_AGO_MS + row.seq_nr // 2) for row in every]
        self.rows = sorted(timed, key=lambda row: (row.timestamp_ms, row.id, row.seq_nr))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        for _ in range(self._rng.randint(0, 2)):
            await self._rng.choice([self._other_import, self._delete, self._grow, self._fail, self._replicate])()
        return await self._log.append(records)

    async def _other_import(self) -> None:
        await self._place.take(self.rows[: self._rng.randint(1, len(self.rows))])

    async def _delete(self) -> None:
        id_ = self._rng.choice(list(self.lasts))
        if (at := await self._place.journal.pointer(id_)) is not None:
            self.deleted[id_] = max(self.deleted[id_], self._rng.randint(1, at))
            await self._place.journal.delete(id_, to=self.deleted[id_])

    async def _grow(self) -> None:
        if self._partitions == 4:
            return
        self._partitions += 1
        settings = self._place.store.settings
        await grow_topic(self._log, settings, TOPIC, partitions=self._partitions, lease_s=LEASE_S)

    async def _fail(self) -> None:
        raise TimedOut("append", 1.0)

    async def _replicate(self) -> None:
        await replicate(self._log, self._place.store, TOPIC)


async def test_whatever_happens_meanwhile_each_row_is_an_event_once(tmp_path: Path, size: Size) -> None:
    """Between an import's looks and writes come other imports, failures, deletes, growth and replication."""
    for seed in range(size(4, 300)):
        async with opened(tmp_path / str(seed)) as place:
            busy: Any = Meanwhile(place, random.Random(seed))
            for _ in range(3):
                with contextlib.suppress(TimedOut):
                    await place.take(busy.rows, log=busy)
            await place.take(busy.rows)
            for id_, last in busy.lasts.items():
                expected = [f"{id_}-{n}" for n in range(busy.deleted[id_] + 1, last + 1)]
                assert [event.payload for event in await place.events(id_)] == expected, seed


@pytest.mark.timeout(300)
def test_a_frame_is_imported_once(tier: Tier, topic: str, tmp_path: Path) -> None:
    """A frame becomes journals, also if a worker is killed and the import run again; rows are in the order of time."""
    frame = tier.spark.range(40).selectExpr(
        "concat('k', id % 4) AS id",
        "CAST(id DIV 4 + 1 AS INT) AS seq_nr",
        "named_struct('n', id) AS payload",
        "array('all') AS tags",
        f"timestamp_millis({LONG_AGO_MS} + id) AS timestamp",
    )
    tier.arm("import.written")
    with pytest.raises(Exception, match="exited unexpectedly"):
        import_journals(frame, tier.endpoints, topic, partitions=2)
    assert tier.disarm()
    frame.coalesce(1).write.json(f"file://{tmp_path / 'rows.json'}")
    options = ["--topic", topic, "--json", "--log", tier.endpoints.log]
    options += [] if tier.is_embedded else ["--store", tier.endpoints.store]
    again = CliRunner().invoke(
        app, ["import", "journals", str(tmp_path / "rows.json"), *options], catch_exceptions=False
    )
    done = json.loads(again.stdout)
    assert done["present"] > 0
    assert done["imported"] + done["present"] == 40
    found = journal_frame(tier.spark, tier.endpoints, Selection((topic,))).collect()
    assert sorted((row.key, row.seq_nr, row.payload_text) for row in found) == sorted(
        (f"k{n % 4}", n // 4 + 1, f'{{"n":{n}}}') for n in range(40)
    )
    assert {tuple(row.tags) for row in found} == {("all",)}
    for partition in range(2):
        times = [row.timestamp for row in sorted(found, key=lambda row: row.offset) if row.partition == partition]
        assert times == sorted(times)


@pytest.mark.timeout(300)
def test_a_struct_becomes_json_without_loss(tier: Tier, topic: str) -> None:
    """Nulls stay, times keep their microseconds, and another time zone changes nothing: a repeat finds the same."""
    payload = """named_struct(
        'at', timestamp'2020-01-02T03:04:05.678901Z', 'local', timestamp_ntz'2020-01-02T03:04:05.000001',
        'none', CAST(NULL AS INT), 'some', array(1.5D, NULL), 'by', map('k', CAST(NULL AS STRING)),
        'day', date'2020-01-02'
    )"""
    zone = tier.spark.conf.get("spark.sql.session.timeZone")
    try:
        for name, expected in (("America/New_York", (1, 0)), ("Asia/Tokyo", (0, 1))):
            tier.spark.conf.set("spark.sql.session.timeZone", name)
            frame = tier.spark.sql(f"SELECT 'a' AS id, 1 AS seq_nr, {payload} AS payload")
            done = import_journals(frame, tier.endpoints, topic, partitions=1)
            assert (done.imported, done.present) == expected
    finally:
        tier.spark.conf.set("spark.sql.session.timeZone", str(zone))

    async def read(journal: Journal) -> list[Any]:
        return [event.payload async for event in journal.read("a")]

    (found,) = tier.with_journal(topic, read, partitions=1)
    assert found == {
        "at": "2020-01-02T03:04:05.678901Z",
        "local": "2020-01-02T03:04:05.000001",
        "none": None,
        "some": [1.5, None],
        "by": {"k": None},
        "day": "2020-01-02",
    }


@pytest.mark.timeout(300)
def test_a_frame_with_a_mistake_writes_nothing(tier: Tier, topic: str) -> None:
    """Columns, types, gaps and doubles are refused before anything is written; a shared topic is refused too."""
    spark = tier.spark

    def refused(query: str, match: str) -> None:
        with pytest.raises(BadArgument, match=match):
            import_journals(spark.sql(query), tier.endpoints, topic, partitions=1)

    refused("SELECT 'a' AS id, 1 AS seq_nr, 1 AS x", "select those")
    refused("SELECT 'a' AS id, '1' AS seq_nr", "column seq_nr")
    refused("SELECT 'a' AS id, 1 AS seq_nr, 1 AS payload", "column payload")
    refused("SELECT 'a' AS id, explode(array(1, 3)) AS seq_nr", "in between are missing")
    refused("SELECT 'a' AS id, explode(array(2, 2)) AS seq_nr", "more than one row")
    refused("SELECT CAST(NULL AS STRING) AS id, 1 AS seq_nr", "every row has an id")
    refused("SELECT '' AS id, 1 AS seq_nr", "every row has an id")
    for seconds in (-1, 0, 253_402_300_800):
        timed = f"SELECT 'a' AS id, 1 AS seq_nr, timestamp_seconds({seconds}) AS timestamp"
        refused(timed, f"timestamp of event 1 of 'a' is {seconds * 1000},")
    time = "timestamp_seconds(unix_seconds(current_timestamp()) + 600 * (n - 1)) AS timestamp"
    ahead = f"SELECT 'a' AS id, n AS seq_nr, {time} FROM (SELECT explode(array(1, 2)) AS n)"
    refused(ahead, r"timestamp of event 2 of 'a' is \d+, .* the topic takes times up to")
    for number in ("double('NaN')", "float('-Infinity')"):
        for payload in (
            "named_struct('x', NUMBER)",
            "map('x', 1.5D, 'y', NUMBER)",
            "array(named_struct('a', array(NULL, 1D)), named_struct('a', array(NULL, NUMBER)))",
        ):
            refused(f"SELECT 'a' AS id, 1 AS seq_nr, {payload.replace('NUMBER', number)} AS payload", "event 1 of 'a'")
    with pytest.raises(UnknownTopic):  # nothing was written, so the topic was not made
        import_journals(spark.sql("SELECT 'a' AS id, 1 AS seq_nr"), tier.endpoints, topic)
    bad = spark.sql("SELECT 'a' AS id, 1 AS seq_nr, '{' AS payload, 'json' AS payload_type")
    with pytest.raises(OperationFailed, match=r"importing into .*\[0\] failed: payload of event 1 of 'a'"):
        import_journals(bad, tier.endpoints, topic, partitions=1)

    async def share(_: Log, store: Store) -> None:
        await change_terms(store.settings, topic, lambda terms: TopicTerms(is_shared=True))

    assert journal_frame(spark, tier.endpoints, Selection((topic,))).count() == 0
    tier.on(share)
    with pytest.raises(TopicShared):
        import_journals(spark.sql("SELECT 'a' AS id, 1 AS seq_nr"), tier.endpoints, topic)

    async def give_to_an_engine(_: Log, store: Store) -> None:
        await change_terms(store.settings, topic, lambda terms: TopicTerms(engine="bank"))

    tier.on(give_to_an_engine)
    with pytest.raises(TopicClaimed, match="bank"):
        import_journals(spark.sql("SELECT 'a' AS id, 1 AS seq_nr"), tier.endpoints, topic)
