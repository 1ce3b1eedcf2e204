"""The import of another system's events: a frame becomes journals, checked first, and exactly once for each row.

Each partition of the topic has one task. It writes the rows in the order of their times, slice by slice, so that the
log's time rises as it did when the events happened, and events by tag have nearly that order: within a slice of two
thousand rows an event may come before one of another journal that happened earlier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import BadArgument, JournalTopicExpires, TopicClaimed, TopicShared, UnknownTopic
from headrace.journal import JOURNAL_TOPIC, Topology, read_terms, why_records_expire
from headrace.model import partition_of
from headrace.pipeline.jobs.import_writer import ImportCounts, ImportedRow, PartitionImport
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS, PartitionReport, report_batch, reports_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.pipeline.spark.session import provide_interpreter
from headrace.protocol import MAX_TIMESTAMP_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["ImportReport", "ImportSummary", "ImportTask", "import_journals"]

_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 4 * 1024 * 1024
_COLUMNS = ("id", "seq_nr", "payload", "payload_type", "tags", "metadata", "timestamp")
# Nothing of a payload is lost, and a repeat gives the same text in a session with another time zone.
_AS_JSON = (
    "CAST(to_json(payload, map('ignoreNullFields', 'false', 'timeZone', 'UTC', "
    "'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")) AS BINARY)"
)
_CHECKED = ("before", "has_no_json")
_SENT = ("id", "seq_nr", "first", "payload_type", "payload", "tags", "metadata", "time_ms", "partition")


class ImportReport(PartitionReport, frozen=True, kw_only=True):
    """The report of the import into one partition."""

    imported: int = 0
    present: int = 0


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The result of an import: the rows that became events now, and those that the journals had already."""

    imported: int
    present: int
    partitions: int


def import_journals(
    frame: DataFrame, endpoints: Endpoints, topic: str, *, partitions: int | None = None
) -> ImportSummary:
    """Make journals of the events of another system, each row exactly once; a missing topic gets `partitions`.

    Columns: `id` and `seq_nr`; `payload`, binary, text, or a struct, map or array, which becomes JSON; optionally
    `payload_type` (json, text or binary), `tags`, `metadata` (JSON as text) and `timestamp`. The numbers of a journal
    must follow one another without a gap; the first need not be 1. This is checked before anything is written.

    An import that failed is continued by running it again: what the journals have already is compared with the rows,
    and not written. Writers and readers may be at work meanwhile. Raises BadArgument, UnknownTopic, TopicShared,
    TopicClaimed, JournalTopicExpires; and OperationFailed for what happened in a task, as a journal that has another
    event under a row's number.
    """
    provide_interpreter(frame.sparkSession)
    rows = _numbered(_rows(frame))
    if partitions is None:
        run(_partitions(endpoints, topic, None))  # raises at once, and not after the rows were read
    _check_numbers(rows, run(_latest_ms(endpoints, topic)))
    count = run(_partitions(endpoints, topic, partitions))
    sent = rows.mapInArrow(ImportRouter(count), f"{rows.drop(*_CHECKED).schema.simpleString()[7:-1]},partition:int")
    tasks = sent.repartitionById(count, "partition").sortWithinPartitions("order_ms", "id", "seq_nr")
    reported = tasks.select(*_SENT).mapInArrow(ImportTask(endpoints.pack(), topic), REPORT_COLUMNS)
    reports = reports_of(reported, ImportReport, "importing into")
    return ImportSummary(
        imported=sum(report.imported for report in reports),
        present=sum(report.present for report in reports),
        partitions=len(reports),
    )


async def _partitions(endpoints: Endpoints, topic: str, partitions: int | None) -> int:
    """Return the number of the topic's partitions. Raises what makes the topic unfit for an import.

    Imported records have times long ago: a log that drops records by their age would drop them at once.
    """
    log, store = await log_of(endpoints), await store_of(endpoints)
    topology = Topology(log, store.settings, topic, partitions=partitions)
    layout = await topology.grown(creates=True)
    terms = await read_terms(store.settings, topic)
    if terms.engine:
        raise TopicClaimed(topic, terms.engine, "importing")
    if terms.is_shared:
        raise TopicShared(topic, "importing")
    reason = why_records_expire((await log.admin.describe(topic)).config)
    if reason is not None:
        raise JournalTopicExpires(topic, reason)
    return layout.partitions


async def _latest_ms(endpoints: Endpoints, topic: str) -> int:
    """Return the latest time that the topic takes now, or would take if it were made."""
    try:
        config = (await (await log_of(endpoints)).admin.describe(topic)).config
    except UnknownTopic:
        config = JOURNAL_TOPIC
    return min(time.time_ns() // 1_000_000 + config.timestamp_ahead_ms, MAX_TIMESTAMP_MS)


def _rows(frame: DataFrame) -> DataFrame:
    """Return the frame with the columns of an import. Raises BadArgument for others."""
    types = dict(frame.dtypes)
    unknown = [name for name in frame.columns if name not in _COLUMNS]
    if unknown:
        raise BadArgument("frame", unknown[0], f"its columns are {', '.join(_COLUMNS)}; select those")
    for name, allowed in (("id", ("string",)), ("seq_nr", ("bigint", "int", "smallint", "tinyint"))):
        if types.get(name) not in allowed:
            raise BadArgument(f"column {name}", types.get(name), f"it must be there, as {allowed[0]}")
    payload, kind = _payload(types.get("payload", "void"))
    kind = "payload_type" if "payload_type" in types else kind
    return frame.selectExpr(
        "id",
        "CAST(seq_nr AS BIGINT) AS seq_nr",
        f"CASE WHEN payload IS NOT NULL THEN {kind} END AS payload_type"
        if payload
        else "CAST(NULL AS STRING) AS payload_type",
        f"{payload or 'CAST(NULL AS BINARY)'} AS payload",
        _optional(types, "tags", "array<string>", "coalesce(tags, array())", "CAST(array() AS ARRAY<STRING>)"),
        _optional(types, "metadata", "string", "CAST(metadata AS BINARY)", "CAST(NULL AS BINARY)"),
        _time(types.get("timestamp")),
        f"{_non_finite('payload', frame.schema['payload'].dataType) if payload else 'false'} AS has_no_json",
    )


def _non_finite(value: str, kind: DataType, depth: int = 0) -> str:
    """Return the expression that is true if there is a NaN or an infinity in a value: Spark would make text of it."""
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    match kind:
        case DoubleType() | FloatType():
            found = [f"(isnan({value}) OR abs({value}) = double('Infinity'))"]
        case StructType():
            names = ((f"{value}.`{each.name.replace('`', '``')}`", each.dataType) for each in kind.fields)
            found = [_non_finite(name, each, depth) for name, each in names]
        case ArrayType():
            found = [_any_of(value, _non_finite(f"item{depth}", kind.elementType, depth + 1), depth)]
        case MapType():
            found = [_any_of(f"map_values({value})", _non_finite(f"item{depth}", kind.valueType, depth + 1), depth)]
        case _:
            found = []
    wanted = [each for each in found if each != "false"]
    return f"coalesce({' OR '.join(wanted)}, false)" if wanted else "false"


def _any_of(items: str, condition: str, depth: int) -> str:
    return condition if condition == "false" else f"exists({items}, item{depth} -> {condition})"


def _payload(kind: str) -> tuple[str | None, str]:
    """Return the expressions of a payload's bytes and of its type."""
    if kind == "void":
        return None, "NULL"
    if kind in ("binary", "string"):
        return "CAST(payload AS BINARY)", "'binary'" if kind == "binary" else "'text'"
    if kind.startswith(("struct", "map", "array")):
        return _AS_JSON, "'json'"
    raise BadArgument("column payload", kind, "it must be binary, string, or a struct, map or array")


def _optional(types: dict[str, str], name: str, kind: str, expression: str, otherwise: str) -> str:
    if name in types and types[name] != kind:
        raise BadArgument(f"column {name}", types[name], f"it must be {kind}")
    return f"{expression if name in types else otherwise} AS {name}"


def _time(kind: str | None) -> str:
    if kind not in (None, "timestamp", "timestamp_ntz"):
        raise BadArgument("column timestamp", kind, "it must be timestamp")
    return f"{'CAST(NULL AS BIGINT)' if kind is None else 'unix_millis(CAST(timestamp AS TIMESTAMP_LTZ))'} AS time_ms"


def _numbered(rows: DataFrame) -> DataFrame:
    """Return the rows with their journal's first number, the number before, and a time that rises with the numbers."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    journal = Window.partitionBy("id").orderBy("seq_nr")
    return rows.withColumns(
        {
            "before": f.lag("seq_nr").over(journal),
            "first": f.first("seq_nr").over(journal),
            "order_ms": f.max("time_ms").over(journal),
        }
    )


def _check_numbers(rows: DataFrame, latest_ms: int) -> None:
    """Raise BadArgument for a row without id or number, a number that comes twice, a gap, a time of no log, no JSON."""
    wrong = "id IS NULL OR id = '' OR seq_nr IS NULL OR seq_nr < 1 OR seq_nr != before + 1 OR has_no_json"
    no_time = f"time_ms < 1 OR time_ms > {latest_ms}"
    odd = rows.where(f"{wrong} OR {no_time}").select("id", "seq_nr", "time_ms", *_CHECKED).limit(1).collect()
    if not odd:
        return
    row = odd[0]
    if not row.id or row.seq_nr is None or row.seq_nr < 1:
        raise BadArgument("frame", (row.id, row.seq_nr), "every row has an id and a seq_nr from 1 on")
    if row.time_ms is not None and not 1 <= row.time_ms <= MAX_TIMESTAMP_MS:
        rule = "in milliseconds, a log's times begin 1 ms after 1970 and end with the year 9999"
        raise BadArgument(f"timestamp of event {row.seq_nr} of {row.id!r}", row.time_ms, rule)
    if row.time_ms is not None and row.time_ms > latest_ms:
        rule = (
            f"in milliseconds, the topic takes times up to {latest_ms} now; correct the time, or this machine's clock"
        )
        raise BadArgument(f"timestamp of event {row.seq_nr} of {row.id!r}", row.time_ms, rule)
    if row.has_no_json:
        rule = "JSON has no such number; replace it by null or text, or give the payload as binary"
        raise BadArgument(f"payload of event {row.seq_nr} of {row.id!r}", "NaN or infinity", rule)
    rule = (
        "there is more than one row with this number" if row.seq_nr == row.before else "numbers in between are missing"
    )
    raise BadArgument(f"row of {row.id!r} after {row.before}", row.seq_nr, rule)


class ImportRouter:
    """Adds the partition of each row's journal. It is a class of this module, so that it is pickled by name."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their partition, and without the columns that only the check needs."""
        import pyarrow as pa

        for batch in batches:
            ids = batch.column("id").to_pylist()
            partitions = pa.array([partition_of(id_.encode(), self._partitions) for id_ in ids], pa.int32())
            yield batch.drop_columns(list(_CHECKED)).append_column("partition", partitions)


class ImportTask:
    """Imports the rows of one partition, and reports. It is a class of this module, so that it is pickled by name."""

    def __init__(self, endpoints: str, topic: str) -> None:
        self._endpoints = endpoints
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one report if there are rows. An error is part of the report, so that other tasks can finish."""
        started_s = time.perf_counter()
        report: ImportReport | None = None
        try:
            for done in self._import(batches):
                report = done
        except Exception as error:
            report = report or ImportReport(topic=self._topic, partition=-1)
            report = msgspec.structs.replace(report, error=one_line(error))
        if report is not None:
            yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))

    def _import(self, batches: Iterator[pa.RecordBatch]) -> Iterator[ImportReport]:
        """Yield what was done so far, after each slice of rows."""
        importing: PartitionImport | None = None
        report: ImportReport | None = None
        try:
            for batch in batches:
                for rows in _slices(batch):
                    report = report or ImportReport(topic=self._topic, partition=rows[0]["partition"])
                    yield report  # so that an error has the partition
                    importing = importing or run(_open(Endpoints.unpack(self._endpoints), self._topic))
                    done: ImportCounts = run(importing.take([_row(row) for row in rows]))
                    imported, present = report.imported + done.imported, report.present + done.present
                    report = msgspec.structs.replace(report, imported=imported, present=present)
                    yield report
        finally:
            if importing is not None:
                run(importing.close())


async def _open(endpoints: Endpoints, topic: str) -> PartitionImport:
    log, store = await log_of(endpoints), await store_of(endpoints)
    return PartitionImport(log, store, Topology(log, store.settings, topic))


def _slices(batch: pa.RecordBatch) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield the rows in slices that are small enough to be written at once."""
    some: list[dict[str, Any]] = []
    size_bytes = 0
    for row in batch.to_pylist():
        some.append(row)
        size_bytes += len(row["payload"] or b"")
        if len(some) >= _ROWS_AT_ONCE or size_bytes >= _BYTES_AT_ONCE:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _row(row: dict[str, Any]) -> ImportedRow:
    return ImportedRow(
        id=row["id"],
        seq_nr=row["seq_nr"],
        first=row["first"],
        payload_type=row["payload_type"],
        payload=row["payload"],
        tags=tuple(row["tags"]),
        metadata=row["metadata"],
        timestamp_ms=row["time_ms"],
    )
