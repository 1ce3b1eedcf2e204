"""Exports of journals to Parquet: incremental, whole or not at all, and without what was deleted since."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.pipeline.tier import Tier, append_all
from tests.suites.journal_setting import replicate
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import BadArgument, OperationFailed
from headrace.journal import Journal
from headrace.model import Event
from headrace.pipeline import Selection, export_journals, exported_frame, journal_frame
from headrace.pipeline.jobs.export_manifest import (
    ExportedFile,
    ExportFolder,
    ExportManifest,
    delta_commit,
    topics_with_lost_markers,
)
from headrace.protocol import Generation, Layout
from headrace.store import Place

pytestmark = pytest.mark.timeout(300)


def manifest(version: int, *files: ExportedFile) -> ExportManifest:
    return ExportManifest(
        version=version,
        created_ms=1_700_000_000_000,
        offsets={"t": {0: Place(0, 7)}},
        whole_heads=["t"],
        schemas={"journal": '{"type":"struct","fields":[]}'},
        files={"journal": files},
    )


def test_one_of_two_exports_at_once_counts(tmp_path: Path) -> None:
    """Of two exports with the same number the second is refused; what an earlier one left behind is removed."""
    folder = ExportFolder(tmp_path)
    folder.commit(manifest(0))
    with pytest.raises(OperationFailed, match="another export"):
        folder.commit(manifest(0))
    assert [each.version for each in folder.manifests()] == [0]
    for number in ("00000000-dead", "00000001-alive"):
        (folder.data("journal", number) / "topic=t").mkdir(parents=True)
    folder.remove_leftovers()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["export=00000001-alive"]
    (tmp_path / "_headrace" / f"{1:020}.json").write_text("{")
    with pytest.raises(OperationFailed, match="reading the manifest"):
        folder.manifests()


@pytest.mark.parametrize(
    ("last", "layout", "is_good"),
    [
        (Place(0, 7), Layout("t", "one", (Generation(2),)), True),
        (Place(0, 7), Layout("t", "two", (Generation(2),)), False),  # another log
        (Place(0, 7), Layout("t", "two", (Generation(2), Generation(3, {0: 5, 1: 5}))), False),  # another one that grew
        (Place(0, 7), Layout("t", "two", (Generation(2), Generation(2))), True),  # deleted and made again
        (Place(0, 7), Layout("t", "two", (Generation(2), Generation(2), Generation(3, {0: 1, 1: 1}))), True),
        (Place(1, 7), Layout("t", "one", (Generation(2),)), False),  # another store, which counts generations anew
        (Place(1, 7), Layout("new", "two", (Generation(2),)), True),
    ],
)
def test_a_folder_of_another_log_is_refused(last: Place, layout: Layout, is_good: bool) -> None:
    """Offsets of another log can't be compared with the folder's: its events would be left out without a word."""
    before = msgspec.structs.replace(manifest(0), offsets={"t": {0: last}}, topic_ids={"t": "one"})
    with contextlib.nullcontext() if is_good else pytest.raises(BadArgument, match="'t' of another log or store"):
        before.check_follows(layout, Path("lake"))
    if layout.topic_id == "two":
        manifest(0).check_follows(layout, Path("lake"))  # older manifests don't say it


def test_a_manifest_that_is_missing_is_named_and_nothing_is_removed(tmp_path: Path) -> None:
    """Without the manifest of a run its events would be left out in silence, and its files removed as leftovers."""
    folder = ExportFolder(tmp_path)
    for number in range(3):
        folder.commit(manifest(number, ExportedFile(f"export={number:08}-a/part-0.parquet", {}, 1, 9)))
        (folder.data("journal", f"{number:08}-a")).mkdir(parents=True)
    (tmp_path / "_headrace" / f"{1:020}.json").unlink()
    for work in (folder.manifests, folder.remove_leftovers, folder.write_delta_logs):
        with pytest.raises(OperationFailed, match=f"{1:020}.json is missing; restore it"):
            work()
    assert len(list((tmp_path / "journal").glob("export=*"))) == 3


def test_purge_markers_that_expire_while_other_topics_are_exported_are_not_relied_on() -> None:
    """The heads of a topic are exported all if its markers may have expired since its own last export."""
    place, day = {0: Place(0, 7)}, 86_400_000
    both = {"a": place, "b": place}
    known = [msgspec.structs.replace(manifest(0), created_ms=0, offsets=both, whole_heads=["a", "b"])]
    for number in range(1, 30):
        only_a = {**both, "a": {0: Place(0, 7 + number)}}
        run = msgspec.structs.replace(manifest(number), created_ms=number * day, offsets=only_a, whole_heads=[])
        known.append(run)

    def lost(*topics: str, on: int) -> list[str]:
        return topics_with_lost_markers(known, topics, created_ms=on * day, marker_ttl_ms=30 * day)

    assert lost("a", "b", on=29) == []
    assert lost("a", "b", on=30) == ["b"]
    assert lost("a", "b", on=59) == ["a", "b"]
    assert lost("new", on=29) == ["new"]
    known.append(
        msgspec.structs.replace(manifest(30), created_ms=30 * day, offsets=known[-1].offsets, whole_heads=["b"])
    )
    assert lost("a", "b", on=31) == []


def test_commits_have_the_form_of_deltas_protocol() -> None:
    """The first commit has the protocol and the schema, every commit its files with their partition values."""
    file = ExportedFile("export=0/topic=t/date=2024-05-01/part-0.parquet", {"topic": "t", "date": "2024-05-01"}, 3, 99)
    first = [json.loads(line) for line in delta_commit(manifest(0, file), "journal").splitlines()]
    assert [next(iter(action)) for action in first] == ["commitInfo", "protocol", "metaData", "add"]
    assert first[1]["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert first[2]["metaData"]["partitionColumns"] == ["topic", "date"]
    added = first[3]["add"]
    assert (added["path"], added["partitionValues"], added["size"]) == (file.path, dict(file.values), 99)
    assert json.loads(added["stats"]) == {"numRecords": 3}
    later = [json.loads(line) for line in delta_commit(manifest(1), "journal").splitlines()]
    assert [next(iter(action)) for action in later] == ["commitInfo"]


EVENT_COLUMNS = ("topic", "key", "seq_nr", "payload_text", "partition", "offset", "timestamp", "record_id")


def events_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*EVENT_COLUMNS).collect())


def rows_of_delta(folder: Path, version: int) -> list[tuple[Any, ...]]:
    """Return the rows that Delta's own reader finds in a table of events, deleted ones included."""
    query = QueryBuilder().register("events", DeltaTable(folder, version=version))
    rows = pa.table(query.execute("SELECT * FROM events").read_all()).to_pylist()
    for row in rows:
        row["timestamp"] = row["timestamp"].astimezone().replace(tzinfo=None)  # as Spark returns it
    return sorted(tuple(row[name] for name in EVENT_COLUMNS) for row in rows)


def elsewhere(spark: Any) -> Any:
    """Return a session in a place where it is another day now."""
    far = spark.newSession()
    far.conf.set("spark.sql.session.timeZone", ["Pacific/Pago_Pago", "Pacific/Kiritimati"][datetime.now(UTC).hour > 10])
    return far


def test_an_export_adds_what_is_new_and_hides_what_is_gone(tier: Tier, topic: str, tmp_path: Path) -> None:
    """After every export its folder has the events of the journals, whatever was appended, deleted and purged since.

    Delta's own reader finds the events of each export, those deleted later included. The folder's name may look like a
    pattern, and dates are those of UTC wherever an export is run.
    """
    spark, endpoints, selection = tier.spark, tier.endpoints, Selection((topic,))
    tmp_path = tmp_path / "lake [v2] {a,b} 50% *?"
    with pytest.raises(BadArgument, match="nothing was exported"):
        exported_frame(spark, tmp_path)
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 2), partitions=2)
    tier.on(lambda log, store: replicate(log, store, topic))
    first = export_journals(elsewhere(spark), endpoints, tmp_path, selection)
    assert (first.version, first.events, first.heads) == (0, 6, 3)
    assert export_journals(spark, endpoints, tmp_path, selection).events == 0
    before = events_of(exported_frame(spark, tmp_path))

    async def change(journal: Journal) -> None:
        await journal.append("k0", [Event(3, {"n": 3}, ("t1", "t2"))])
        await journal.delete("k0", to=1)
        await journal.purge("k1")
        await journal.append("k1", [Event(1, {"n": 10}), Event(2, {"n": 20})])
        await journal.purge("k2")

    if tier.is_embedded:
        other = tier.apart(tmp_path.parent / "other")
        other.with_journal(topic, lambda journal: append_all(journal, 1, 1))
        other.apply(topic)
        with pytest.raises(BadArgument, match="another log"):
            export_journals(spark, other.endpoints, tmp_path, selection)
    tier.with_journal(topic, change)
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, lambda journal: journal.append("late", [Event(1)]))  # not replicated, so not exported
    options = ["--topics", topic, "--json", "--log", endpoints.log]
    options += [] if tier.is_embedded else ["--store", endpoints.store]
    second = CliRunner().invoke(app, ["export", "journals", str(tmp_path), *options], catch_exceptions=False)
    assert json.loads(second.stdout) == {"version": 1, "events": 3, "tags": 2, "heads": 3}
    expected = events_of(journal_frame(spark, endpoints, selection).where("key != 'late'"))
    assert events_of(exported_frame(spark, tmp_path)) == expected
    for row in exported_frame(spark, tmp_path).selectExpr("date", "unix_millis(timestamp) AS ms").distinct().collect():
        assert row.date == datetime.fromtimestamp(row.ms / 1000, UTC).date()
    assert sorted((row.tag, row.key, row.seq_nr) for row in exported_frame(spark, tmp_path, "tags").collect()) == [
        ("t1", "k0", 3),
        ("t2", "k0", 3),
    ]
    heads = exported_frame(spark, tmp_path, "heads").collect()
    assert {row.key: (row.seq_nr, row.delete_to, row.is_purged) for row in heads} == {
        "k0": (3, 1, False),
        "k1": (2, 0, False),
        "k2": (2, 0, True),
    }
    assert rows_of_delta(tmp_path / "journal", version=0) == before
    assert set(rows_of_delta(tmp_path / "journal", version=1)) == {*before, *expected}
    assert DeltaTable(tmp_path / "heads").version() == 1


def test_an_export_whose_files_are_on_another_machine_does_not_count(
    tier: Tier, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of Spark Connect, or a cluster, that does not share the folder's disk: no event is passed over."""
    selection = Selection((topic,))
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2))
    tier.apply(topic)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.pipeline.jobs.exports._uri", lambda path: f"file://{tmp_path}/far{path}")
        with pytest.raises(OperationFailed, match="Spark wrote 4 rows of the table journal, and this machine finds 0"):
            export_journals(tier.spark, tier.endpoints, tmp_path / "lake", selection)
    assert export_journals(tier.spark, tier.endpoints, tmp_path / "lake", selection).events == 4
    tier.with_journal(topic, lambda journal: journal.delete("k0", to=1))
    tier.apply(topic)
    assert export_journals(tier.spark, tier.endpoints, tmp_path / "lake", selection).events == 0
    assert exported_frame(tier.spark, tmp_path / "lake").count() == 3
