"""The export of journals to Parquet files: each run adds what was replicated since the last one.

Events are written once and never changed. What was deleted since is in the heads of the journals, which each export has
for those that changed; `exported_frame` leaves the deleted events out.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.errors import BadArgument, OperationFailed
from headrace.model import TopicPartition
from headrace.pipeline.jobs.export_manifest import (
    EXPORT_TABLES,
    ExportFolder,
    ExportManifest,
    remove_folder,
    topics_with_lost_markers,
)
from headrace.pipeline.jobs.job_reports import layout_of
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.tables.frames import journal_frame, meta_frame
from headrace.protocol import Layout
from headrace.store import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ExportSummary", "ExportTable", "export_journals", "exported_frame"]

ExportTable: TypeAlias = Literal["journal", "tags", "heads"]
Vector: TypeAlias = Mapping[str, Mapping[int, Place]]

_NOTHING = ExportManifest(version=-1, created_ms=0, offsets={}, whole_heads=(), schemas={}, files={})
# Not to_date(timestamp): that depends on the session's time zone, and the next export may be run elsewhere.
_UTC_DATE = "date_from_unix_date(CAST(floor(unix_millis(timestamp) / 86400000) AS INT))"
_TAG_COLUMNS = ("key", "seq_nr", "timestamp", "log_time", "partition", "offset", "generation", "record_id")


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """The result of an export: the number of its manifest, and the rows that it added. Without rows it added none."""

    version: int
    events: int
    tags: int
    heads: int


def export_journals(
    spark: SparkSession, endpoints: Endpoints, folder: Path | str, selection: Selection | None = None
) -> ExportSummary:
    """Add what was replicated since the last export to the Parquet files in a folder.

    Tables: `journal` (the columns of `journal_frame`, in folders by topic and date), `tags` (a row for each tag of an
    event) and `heads` (the columns of `meta_frame`). The folder must be on a disk that driver and workers share. An
    export that dies leaves files that no manifest names, and the next one writes them again. Raises OperationFailed if
    another export into the folder finished meanwhile, or if Spark's files are not found in the folder; BadArgument if
    it holds a topic of this name of another log; a held journal fails the export.
    """
    target = ExportFolder(Path(folder))
    target.write_delta_logs()
    target.remove_leftovers()
    known = target.manifests()
    last = known[-1] if known else _NOTHING
    layouts, now = run(_replicated(endpoints, selection or Selection()))
    for layout in layouts:
        last.check_follows(layout, target.folder)
    if not _has_more(last, now):
        return ExportSummary(last.version, 0, 0, 0)
    return _Export(spark, endpoints, target, known, now, {each.topic: each.topic_id for each in layouts}).run()


def exported_frame(spark: SparkSession, folder: Path | str, table: ExportTable = "journal") -> DataFrame:
    """Return a table of an export as of its last run: events that are not deleted, their tags, or the heads.

    Raises BadArgument if nothing was exported to the folder.
    """
    target = ExportFolder(Path(folder))
    known = target.manifests()
    if table not in EXPORT_TABLES:
        raise BadArgument("table", table, f"there are {', '.join(EXPORT_TABLES)}")
    if not known:
        raise BadArgument("folder", str(folder), "nothing was exported to it")
    heads = _heads(spark, target, known)
    if table == "heads":
        return heads
    events = _files(spark, target, known, table)
    alive = heads.where("NOT is_purged").select("topic", "key", "record_id", "delete_to")
    return events.join(alive, ["topic", "key", "record_id"]).where("seq_nr > delete_to").select(*events.columns)


async def _replicated(endpoints: Endpoints, selection: Selection) -> tuple[list[Layout], dict[str, dict[int, Place]]]:
    """Return the topics' layouts, and the last places that the store has, by topic and partition."""
    log, store = await log_of(endpoints), await store_of(endpoints)
    found: dict[str, dict[int, Place]] = {}
    layouts: list[Layout] = []
    for topic in await topics_of(log, store, selection):
        layout = await layout_of(log, store, topic)
        layouts.append(layout)
        for partition in range(layout.partitions):
            replicated = layout.of_topic(await store.reader.replicated(TopicPartition(topic, partition)))
            if replicated is not None:
                found.setdefault(topic, {})[partition] = Place(replicated.generation, replicated.offset)
    return layouts, found


def _has_more(last: ExportManifest, now: Vector) -> bool:
    return any(place > last.place(topic, number) for topic, places in now.items() for number, place in places.items())


class _Export:
    """One run: the files of its tables, and then the manifest that makes them count."""

    def __init__(
        self,
        spark: SparkSession,
        endpoints: Endpoints,
        target: ExportFolder,
        known: Sequence[ExportManifest],
        now: Vector,
        topic_ids: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._target = target
        self._last = last = known[-1] if known else _NOTHING
        self._now = now
        self._topic_ids = {**last.topic_ids, **{topic: topic_ids[topic] for topic in now}}
        self._created_ms = time.time_ns() // 1_000_000
        ttl_ms = round(endpoints.settings_of_store().marker_ttl_s * 1000)
        self._whole_heads = topics_with_lost_markers(known, now, created_ms=self._created_ms, marker_ttl_ms=ttl_ms)
        self._export = f"{last.version + 1:08}-{uuid.uuid4().hex[:8]}"
        self._selection = Selection(tuple(now))

    def run(self) -> ExportSummary:
        schemas = dict(self._last.schemas)
        try:
            events = journal_frame(self._spark, self._endpoints, self._selection)
            new = events.where(f"offset > {self._lowest()}").where(self._since_last("<="))
            dated = new.selectExpr("*", f"{_UTC_DATE} AS date")
            schemas["journal"] = self._write("journal", dated)
            written = _read(self._spark, self._target, "journal", self._export, schemas["journal"])
            schemas["tags"] = self._write("tags", _tags(written))
            heads = meta_frame(self._spark, self._endpoints, self._selection)
            schemas["heads"] = self._write("heads", heads.where(self._changed_heads()))
            manifest = self._manifest(schemas)
            self._target.commit(manifest)
        except BaseException:
            for table in EXPORT_TABLES:
                remove_folder(self._target.data(table, self._export))
            raise
        self._target.write_delta_logs()
        return ExportSummary(manifest.version, *(manifest.rows(table) for table in EXPORT_TABLES))

    def _lowest(self) -> int:
        """Return an offset that all new events lie behind: a plain filter on it limits what is read."""
        lasts = [
            (self._last.place(topic, partition), place.generation)
            for topic, places in self._now.items()
            for partition, place in places.items()
        ]
        return min(last.offset if last.generation == generation else -1 for last, generation in lasts)

    def _write(self, table: str, frame: DataFrame) -> str:
        """Write the files of a table; return its schema as JSON. Raises OperationFailed if they are not found here."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        observed = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
        observed.write.partitionBy(*EXPORT_TABLES[table]).parquet(_uri(self._target.data(table, self._export)))
        self._check_found(table, seen.get.get("rows", 0))
        return str(frame.schema.json())

    def _check_found(self, table: str, written: int) -> None:
        """Raise OperationFailed if rows are missing in the files that this machine sees: no later run adds them."""
        found = sum(file.rows for file in self._target.files(table, self._export))
        if found < written:
            reason = (
                f"Spark wrote {written} rows of the table {table}, and this machine finds {found}; the folder must be "
                "on a disk that this program shares with Spark's driver and workers"
            )
            raise OperationFailed(f"exporting into {self._target.folder}", reason)

    def _manifest(self, schemas: Mapping[str, str]) -> ExportManifest:
        offsets = {topic: {**self._last.offsets.get(topic, {}), **places} for topic, places in self._now.items()}
        return ExportManifest(
            version=self._last.version + 1,
            created_ms=self._created_ms,
            offsets={**self._last.offsets, **offsets},
            whole_heads=self._whole_heads,
            schemas=schemas,
            files={table: list(self._target.files(table, self._export)) for table in EXPORT_TABLES},
            topic_ids=self._topic_ids,
        )

    def _changed_heads(self) -> str:
        parts = [f"topic = {_text(topic)}" for topic in self._whole_heads]
        return " OR ".join([*parts, f"({self._since_last(None)})"])

    def _since_last(self, up_to: Literal["<="] | None) -> str:
        """Return the condition for rows behind the last export, and, if asked, not behind what this one began with."""
        parts = []
        for topic, places in self._now.items():
            for partition, place in places.items():
                rows = [f"topic = {_text(topic)}", f"partition = {partition}"]
                rows.append(_compared(">", self._last.place(topic, partition)))
                if up_to is not None:
                    rows.append(_compared(up_to, place))
                parts.append(f"({' AND '.join(rows)})")
        return " OR ".join(parts)


def _uri(path: Path) -> str:
    """Return the address of a local path as Spark takes it: unlike in a URI, nothing is escaped."""
    return f"file://{path}"


def _pattern(path: Path) -> str:
    """Return the address of a local path to read: Spark takes it for a pattern."""
    return re.sub(r"([\\[\]{}*?])", r"\\\1", _uri(path))


def _compared(how: str, place: Place) -> str:
    return f"struct(generation, offset) {how} struct({place.generation}, {place.offset}L)"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _tags(events: DataFrame) -> DataFrame:
    return events.selectExpr("explode(tags) AS tag", "topic", *_TAG_COLUMNS, "date")


def _read(spark: SparkSession, target: ExportFolder, table: str, export: str, schema: str) -> DataFrame:
    """Return what one export has written to a table; an empty frame if that is nothing."""
    paths = [_pattern(target.folder / table / file.path) for file in target.files(table, export)]
    return _parquet(spark, target, table, paths, schema)


def _files(spark: SparkSession, target: ExportFolder, known: Sequence[ExportManifest], table: str) -> DataFrame:
    paths = [_pattern(target.folder / table / file.path) for each in known for file in each.files.get(table, ())]
    return _parquet(spark, target, table, paths, known[-1].schemas[table])


def _parquet(spark: SparkSession, target: ExportFolder, table: str, paths: Sequence[str], schema: str) -> DataFrame:
    import json

    from pyspark.sql.types import StructType

    typed = StructType.fromJson(json.loads(schema))
    if not paths:
        return spark.createDataFrame([], typed)
    base = _uri(target.folder / table)
    return spark.read.schema(typed).option("basePath", base).parquet(*paths).select(*typed.names)


def _heads(spark: SparkSession, target: ExportFolder, known: Sequence[ExportManifest]) -> DataFrame:
    """Return the newest head of each journal, of the last export that has all heads of its topic, and since."""
    from pyspark.sql import functions as f

    since = {topic: manifest.version for manifest in known for topic in manifest.whole_heads}
    paths = [
        _pattern(target.folder / "heads" / file.path)
        for manifest in known
        for file in manifest.files.get("heads", ())
        if manifest.version >= since.get(file.values["topic"], 0)
    ]
    heads = _parquet(spark, target, "heads", paths, known[-1].schemas["heads"])
    newest = f.max_by(f.struct(*heads.columns), f.struct("generation", "offset")).alias("newest")
    return heads.groupBy("topic", "key").agg(newest).select("newest.*")
