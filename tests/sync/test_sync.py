"""The blocking twins do what the asynchronous calls do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import headrace.sync
from headrace.errors import Closed, IncompatibleSchema, WrongSeqNr
from headrace.model import Event, NewRecord, TopicConfig, TopicPartition
from headrace.serde import schema_of


def test_a_script_can_use_a_journal(tmp_path: Path) -> None:
    """Append, read, pointer, delete, purge, mark, snapshots, without a line of asyncio."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("accounts", partitions=2, config=TopicConfig())
        accounts = hr.journal("accounts")
        accounts.append("a", [Event(1, {"opened": 100}), Event(2, "text")], headers={"h": "v"})
        assert [event.payload for event in accounts.read("a")] == [{"opened": 100}, "text"]
        with pytest.raises(WrongSeqNr):
            accounts.append("a", [Event(3)], expected=7)
        accounts.snapshots.save("a", 2, {"balance": 100}, timestamp_ms=1)
        snapshot = accounts.snapshots.load("a")
        assert snapshot is not None
        assert snapshot.payload == {"balance": 100}
        assert accounts.snapshots.delete("a") == 1
        accounts.mark("a", "m")
        accounts.delete("a", to=1)
        assert [event.seq_nr for event in accounts.read("a", 1)] == [2]
        assert accounts.pointer("a") == 2
        assert [event.seq_nr for event in accounts.read("a", to_seq_nr=1)] == []
        assert [moment.effect for moment in accounts.history("a")][-1] == "deleted"
        assert sum(partition.end for partition in accounts.stats()) > 0
        assert [event.seq_nr for event in accounts.append_next("a", ["x", "y"], tags=("t",))] == [3, 4]
        accounts.purge("a")
        assert accounts.pointer("a") is None
        assert list(accounts.ids()) == []


def test_the_log_can_be_used_from_threads(tmp_path: Path) -> None:
    """Several threads share one connection."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("t", partitions=1, config=TopicConfig())
        threads = [
            threading.Thread(target=lambda n=n: hr.log.append([NewRecord("t", b"k", b"%d" % n)])) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        at = TopicPartition("t", 0)
        assert hr.log.bounds(at).end == 8
        found = [record.value for batch in hr.log.read(at, 0, 8) for record in batch.records]
        assert sorted(found) == [b"%d" % n for n in range(8)]


def test_a_read_that_is_not_finished_is_closed(tmp_path: Path) -> None:
    """Leaving a loop early lets go of the reader, and the connection can be closed."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        hr.log.create("t", partitions=1, config=TopicConfig())
        hr.log.append([NewRecord("t", b"k", b"v")])
        for batch in hr.log.read(TopicPartition("t", 0), 0):
            assert batch.records
            break
    with pytest.raises(Closed):
        hr.log.bounds(TopicPartition("t", 0))


def test_schemas_are_registered_and_found(tmp_path: Path) -> None:
    """V5: the registry is there for blocking code, too, and refuses what would break somebody."""
    with headrace.sync.connect(f"embedded:{tmp_path}") as hr:
        assert hr.registry.subjects() == []
        first = hr.registry.register("t-value", schema_of(int))
        assert hr.registry.subjects() == ["t-value"]
        assert hr.registry.schema(first.schema_id) == schema_of(int)
        assert [version.version for version in hr.registry.versions("t-value")] == [1]
        with pytest.raises(IncompatibleSchema):
            hr.registry.register("t-value", schema_of(str))
