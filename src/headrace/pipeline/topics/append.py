"""Appends of a DataFrame to a topic, through the Log port in Spark's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import NewRecord
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run
from headrace.pipeline.spark.session import provide_interpreter
from headrace.pipeline.topics.avro_write import ColumnEncoding, encoded
from headrace.serde import BlockingRegistry, framed_key_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Appended", "append_frame"]

_RECORDS_AT_ONCE = 2000
_HEADERS = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class Appended:
    """The number of records that were written, in total and by partition."""

    records: int
    by_partition: Mapping[int, int]


def append_frame(
    frame: DataFrame,
    endpoints: Endpoints,
    topic: str,
    *,
    registry: BlockingRegistry | None = None,
    schema: Any = None,  # noqa: ANN401
    key: Any = None,  # noqa: ANN401
) -> Appended:
    """Append a frame to a topic, each row to the partition of its key. Raises UnknownTopic, BadArgument.

    Columns: `key` and `value`, text or binary; optionally `headers` (a map of texts, or as `topic_frame` has them)
    and `timestamp`. Other columns are refused. Delivery is at least once: a task that Spark runs again appends its
    rows again. The rows of one task keep their order, so rows sorted by key within partitions arrive sorted.

    With a `registry`, values are written as framed Avro: by `schema` (a class or a Schema), else by the newest version
    of `<topic>-value`, else by a schema inferred from the columns. A schema that breaks the subject's compatibility
    level raises IncompatibleSchema before anything is written. Text and binary keys are written unchanged; `key` is
    the type of keys that `KeyCodec` writes; other keys are framed Avro too, and their body decides their partition.
    """

    async def partitions() -> int:
        return (await (await log_of(endpoints)).admin.describe(topic)).partitions

    provide_interpreter(frame.sparkSession)
    count, is_framed = run(partitions()), False
    _check_names(frame)
    if registry is not None:
        frame, is_framed = encoded(frame, topic, ColumnEncoding(registry, schema, key))
    elif schema is not None or key is not None:
        raise BadArgument("registry", None, "schema and key are for Avro; give a registry with them")
    writer = TopicWriter(endpoints.pack(), topic, count if is_framed else None)
    written = frame.selectExpr(*_columns(frame)).mapInArrow(writer, "partition int, n bigint")
    by_partition: Counter[int] = Counter()
    for row in written.groupBy("partition").sum("n").collect():
        by_partition[row[0]] += row[1]
    return Appended(by_partition.total(), dict(sorted(by_partition.items())))


def _check_names(frame: DataFrame) -> None:
    for name in frame.columns:
        if name not in ("key", "value", "headers", "timestamp"):
            raise BadArgument(
                "frame", name, "its columns are key, value, and maybe headers and timestamp; select those"
            )


def _columns(frame: DataFrame) -> list[str]:
    """Return the expressions that convert the frame's columns to the log's."""
    types = dict(frame.dtypes)
    for name in ("key", "value"):
        if types.get(name) not in ("string", "binary"):
            raise BadArgument(f"column {name}", types.get(name), "it must be there, as string or binary")
    if types.get("timestamp", "timestamp") != "timestamp":
        rule = "it must be timestamp, as CAST(… AS TIMESTAMP) makes it"
        raise BadArgument("column timestamp", types["timestamp"], rule)
    headers = f"CAST(NULL AS {_HEADERS})"
    if types.get("headers", "").startswith("map"):
        pairs = "transform(map_entries(headers), e -> named_struct('key', e.key, 'value', CAST(e.value AS BINARY)))"
        headers = f"CAST({pairs} AS {_HEADERS})"
    elif "headers" in types:
        headers = f"CAST(headers AS {_HEADERS})"
    time = "unix_millis(timestamp)" if "timestamp" in types else "CAST(NULL AS BIGINT)"
    return ["CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value", f"{headers} AS headers", f"{time} AS time"]


class TopicWriter:
    """Appends a task's rows. It is a class of this module, so that it is pickled by name.

    `framed_over` is the number of partitions if keys are framed: the body of a key decides, never its schema's id.
    """

    def __init__(self, endpoints: str, topic: str, framed_over: int | None) -> None:
        self._endpoints = endpoints
        self._topic = topic
        self._framed_over = framed_over

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Append the rows, and yield how many went to each partition."""
        import pyarrow as pa

        endpoints = Endpoints.unpack(self._endpoints)
        counts: Counter[int] = Counter()
        for batch in batches:
            for start in range(0, batch.num_rows, _RECORDS_AT_ONCE):
                records = _records(self._topic, batch.slice(start, _RECORDS_AT_ONCE), self._framed_over)
                counts.update(run(_append(endpoints, records)))
        partitions = pa.array(list(counts), pa.int32())
        yield pa.RecordBatch.from_arrays([partitions, pa.array(list(counts.values()), pa.int64())], ["partition", "n"])


def _records(topic: str, batch: pa.RecordBatch, framed_over: int | None) -> list[NewRecord]:
    keys, values, headers, times = (column.to_pylist() for column in batch.columns)
    return [
        NewRecord(topic, key, value, _headers(pairs), _partition(key, framed_over), time)
        for key, value, pairs, time in zip(keys, values, headers, times, strict=True)
    ]


def _partition(key: bytes | None, framed_over: int | None) -> int | None:
    return None if key is None or framed_over is None else framed_key_partition(key, framed_over)


def _headers(pairs: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"], pair["value"]) for pair in pairs or ())


async def _append(endpoints: Endpoints, records: list[NewRecord]) -> list[int]:
    log: Log = await log_of(endpoints)
    return [position.partition for position in await log.append(records)]
