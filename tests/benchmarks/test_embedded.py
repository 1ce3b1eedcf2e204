"""The benches that need no server run through, at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.bounds.sqlite import RecordTable
from benchmarks.harness.command import main
from benchmarks.workloads import events
from benchmarks.workloads.engines import EnginePlace, WrittenBatches, counter_engine, send_all

from headrace.cluster import batch_of


@pytest.mark.parametrize(
    "name",
    [
        "append-embedded",
        "append-log-embedded-batches",
        "console-load",
        "engine-embedded",
        "raw-sqlite",
        "subscriptions",
        "transport",
        "websocket",
    ],
)
def test_a_bench_without_servers_runs_through(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure it promises comes out, above nothing."""
    code = main([name, "--scale", "0.002", "--rounds", "1", "--scratch", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    figures = [json.loads(line) for line in lines if line.startswith("{")]
    assert code == 0, lines
    assert figures
    assert all(figure["bench"] == name and figure["value"] > 0 and figure["bound"] > 0 for figure in figures)


def test_the_raw_table_holds_every_event_in_its_partition_in_order(tmp_path: Path) -> None:
    """A bound that lost or misplaced rows would be no bound."""
    table = RecordTable(tmp_path / "raw.db", partitions=4)
    written = events(250, keys=20)
    try:
        table.insert(table.rows(written), group_size=100)
        pages = [page for partition in range(4) for page in table.pages(partition, page_size=30)]
    finally:
        table.close()
    assert all(len(page) <= 30 for page in pages)
    rows = [row for page in pages for row in page]
    assert sorted((row[2], row[3]) for row in rows) == sorted(written)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


async def test_a_bound_gets_the_batches_that_an_engine_has_written(tmp_path: Path) -> None:
    """Every record once, by its transaction, and after another look only what is new; ownership is left out."""
    engine, place = counter_engine(partitions=2), EnginePlace(f"embedded:{tmp_path}", "", str(tmp_path / "state"))
    async with place.node("n", engine) as hr:
        written = WrittenBatches(hr.log, engine)
        await send_all(hr.engine(engine), 50, in_flight=10)
        first = await written.take()
        await send_all(hr.engine(engine), 5, in_flight=1)
        second = await written.take()
    for batches, count in ((first, 50), (second, 5)):
        records = [record for batch in batches for record in batch]
        assert sum(record.topic == "counters" for record in records) == count
        assert {record.topic for record in records} == {"counters", "counters-state"}
        assert len({batch_of(record) for batch in batches for record in batch[:1]}) <= len(batches)
        assert all(len({(batch_of(record), record.partition) for record in batch}) == 1 for batch in batches)
    assert len(second) == 5


def test_events_are_the_same_in_every_run() -> None:
    """200 bytes under 1000 keys, unless said; equal from run to run, so that runs can be compared."""
    first, again = events(1500), events(1500)
    assert first == again
    assert len({event.key for event in first}) == 1000
    assert {len(event.value) for event in first} == {200}
