"""The examples that read other systems' tables: their rows become journals."""

from __future__ import annotations

import importlib
import itertools
import json
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.cql import cql_cluster
from tests.pipeline.tier import Tier

from headrace.journal import Journal
from headrace.model import StoredEvent
from headrace.pipeline import import_journals
from headrace.services import RunningService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]


class Readers(NamedTuple):
    eventsourcing: Any
    pekko: Any


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    """Return the examples' modules, found as from the project's root."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("examples.imports.eventsourcing_tables", "examples.imports.pekko_tables")
    yield Readers(*map(importlib.import_module, names))
    for name in [name for name in sys.modules if name == "examples" or name.startswith("examples.")]:
        del sys.modules[name]


# As the library's own recorder makes it.
STORED_EVENTS = (
    "CREATE TABLE stored_events (originator_id TEXT, originator_version INTEGER, topic TEXT, state BLOB, "
    "PRIMARY KEY (originator_id, originator_version))"
)
OPENED = b'{"timestamp": {"_type_": "datetime_iso", "_data_": "2021-03-01T10:00:00.5+00:00"}, "owner": "ann"}'


def test_events_of_eventsourcing_become_journals(readers: Readers, tier: Tier, topic: str, tmp_path: Path) -> None:
    """Rows of `stored_events` become events with their state as JSON, their class as tag, and their time."""
    file, id_ = tmp_path / "bank.db", uuid.uuid4().hex
    database = sqlite3.connect(file)
    database.execute(STORED_EVENTS)
    rows = [(id_, 1, "bank:Account.Opened", OPENED), (id_, 2, "bank:Account.Closed", b'{"timestamp": null}')]
    database.executemany("INSERT INTO stored_events VALUES (?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    done = import_journals(
        readers.eventsourcing.eventsourcing_frame(tier.spark, file), tier.endpoints, topic, partitions=1
    )
    assert done.imported == 2

    async def read(journal: Journal) -> list[StoredEvent]:
        return [event async for event in journal.read(id_)]

    opened, closed = tier.with_journal(topic, read)
    assert (opened.payload["owner"], opened.tags, opened.metadata, opened.timestamp_ms) == (
        "ann",
        ("Account.Opened",),
        {"topic": "bank:Account.Opened"},
        1_614_592_800_500,
    )
    assert (closed.seq_nr, closed.payload, closed.tags) == (2, {"timestamp": None}, ("Account.Closed",))


def test_a_state_that_is_not_json_stays_binary(readers: Readers) -> None:
    """Applications may compress or encrypt states; these are imported as they are, at the time of the import."""
    row = readers.eventsourcing.imported_event("a", 1, "bank:Opened", b"\x78\x9c")
    assert (row["payload_type"], row["payload"], row["timestamp"]) == ("binary", b"\x78\x9c", None)


def test_ranges_cover_every_token_once(readers: Readers) -> None:
    """The parts of the ring follow one another, from the first token to the last."""
    ranges = readers.pekko.token_ranges(7)
    assert (ranges[0][0], ranges[-1][1]) == (-(1 << 63), (1 << 63) - 1)
    assert all(last + 1 == first for (_, last), (first, _) in itertools.pairwise(ranges))


# Those of the journal's documentation, without their settings.
MESSAGES = (
    "CREATE TABLE {}.messages (persistence_id text, partition_nr bigint, sequence_nr bigint, timestamp timeuuid, "
    "timebucket text, writer_uuid text, ser_id int, ser_manifest text, event_manifest text, event blob, "
    "meta_ser_id int, meta_ser_manifest text, meta blob, tags set<text>, "
    "PRIMARY KEY ((persistence_id, partition_nr), sequence_nr, timestamp))"
)
METADATA = "CREATE TABLE {}.metadata (persistence_id text PRIMARY KEY, deleted_to bigint, properties map<text, text>)"


@pytest.mark.servers
def test_events_of_pekko_are_read(readers: Readers, spark: SparkSession, cassandra: RunningService) -> None:
    """Rows of `messages` that are not deleted become rows to import, with tags, time and what serializers need."""
    keyspace = f"pekko_{uuid.uuid4().hex[:8]}"
    host, _, port = cassandra.address.rpartition(":")
    cluster = cql_cluster(host, int(port))
    session = cluster.connect()
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    for table in (MESSAGES, METADATA):
        session.execute(table.format(keyspace))
    insert = (
        f"INSERT INTO {keyspace}.messages (persistence_id, partition_nr, sequence_nr, timestamp, writer_uuid, ser_id, "
        "ser_manifest, event, tags) VALUES (%s, %s, %s, %s, 'w', 7, 'M', %s, {'b', 'a'})"
    )
    for n in range(1, 7):
        session.execute(insert, ("acc-1", (n - 1) // 4, n, uuid.uuid1(), f"e{n}".encode()))
    session.execute(f"INSERT INTO {keyspace}.metadata (persistence_id, deleted_to) VALUES ('acc-1', 2)")
    frame = readers.pekko.pekko_frame(spark, [host], keyspace=keyspace, port=int(port), parts=2)
    found: list[Any] = frame.orderBy("seq_nr").collect()
    assert [(row.id, row.seq_nr, bytes(row.payload), list(row.tags)) for row in found] == [
        ("acc-1", n, f"e{n}".encode(), ["a", "b"]) for n in range(3, 7)
    ]
    assert json.loads(found[0].metadata) == {
        "ser_id": 7,
        "ser_manifest": "M",
        "event_manifest": None,
        "writer_uuid": "w",
    }
    assert found[0].timestamp.year >= 2024
    session.execute(f"DROP KEYSPACE {keyspace}")
    cluster.shutdown()
