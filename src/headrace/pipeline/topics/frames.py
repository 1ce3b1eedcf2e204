"""Topics as DataFrames: records between two offsets or times, the newest record of each key, and typed columns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.errors import BadArgument, UnknownSubject
from headrace.log import Log
from headrace.model import Bounds, TopicPartition
from headrace.pipeline.logs.frames import log_table
from headrace.pipeline.logs.records import LOG_SCHEMA
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, side_by_side
from headrace.pipeline.spark.session import provide_avro
from headrace.pipeline.topics.avro_read import SchemaReading, decoded, reading_of_topic, spark_limit, unframed
from headrace.serde import BlockingRegistry, KeyCodec, Part, Schema, schema_of, subject_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Edge", "compact", "place", "topic_frame", "typed"]

# One offset for all partitions, an offset for each, or a time.
Edge: TypeAlias = int | Mapping[TopicPartition, int] | datetime

_AN_HOUR = timedelta(hours=1)


def topic_frame(
    spark: SparkSession,
    endpoints: Endpoints,
    topics: Sequence[str] | str,
    *,
    start: Edge | None = None,
    end: Edge | None = None,
    clock_skew: timedelta = _AN_HOUR,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return the committed records of topics from `start` (inclusive) to `end` (exclusive), as far as the log has them.

    Columns: topic, partition, offset, timestamp, key, value, headers. The table ends where the log ends now. If
    `end` is a time, records that were written more than `clock_skew` after it are not read: that is the greatest
    difference between the clocks of producers. With a `registry`, key and value of one topic are typed, as `typed`
    does it; the registry is read after the log, so it has the schema of every record. Raises UnknownTopic,
    UnknownSubject.
    """
    _check_edges((start, end), (int, datetime, Mapping))
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or (registry is not None and len(names) > 1):
        raise BadArgument("topics", topics, "name at least one" if not names else "one topic has one type; name one")

    async def look() -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        log = await log_of(endpoints)
        return await _ranges(log, names, start, end, clock_skew)

    starts, ends = run(look())
    has_any = any(ends[at] > starts[at] for at in ends)
    records = log_table(spark, endpoints, starts, ends) if has_any else spark.createDataFrame([], LOG_SCHEMA)
    frame = records.selectExpr(
        "topic", "partition", "offset", "timestamp_millis(timestamp_ms) AS timestamp", "key", "value", "headers"
    )
    frame = _window(frame, _time(start), _time(end))
    return frame if registry is None else typed(frame, names[0], registry)


def compact(
    frame: DataFrame,
    *,
    by: Literal["offset", "time"] = "offset",
    start: int | datetime | None = None,
    end: int | datetime | None = None,
) -> DataFrame:
    """Return the newest record of each key of a topic's frame, without keys whose newest record has no value.

    The newest is by offset, or by time and then by offset. `start` (inclusive) and `end` (exclusive) limit the
    records, by offset or by time. Records without a key are left out. If keys of the topic changed partition, use
    time: offsets of two partitions can't be compared. Typed keys are compared by value, so the version of their
    schema does not matter. `typed(compact(frame), …, parts=["value"])` decodes only the remaining values.
    """
    from pyspark.sql import functions as f

    if by not in ("offset", "time"):
        raise BadArgument("by", by, "it must be 'offset' or 'time'")
    _check_edges((start, end), (int, datetime))
    others = [column for column in frame.columns if column not in ("topic", "key")]
    order = f.col("offset") if by == "offset" else f.struct("timestamp", "offset")
    newest = f.max_by(f.struct(*others), order).alias("newest")
    found = _window(frame, start, end).where("key IS NOT NULL").groupBy("topic", "key").agg(newest)
    return found.where("newest.value IS NOT NULL").select("topic", "key", "newest.*")


def _check_edges(edges: Sequence[object], kinds: tuple[type, ...]) -> None:
    for name, edge in zip(("start", "end"), edges, strict=True):
        if edge is not None and (isinstance(edge, bool) or not isinstance(edge, kinds)):
            raise BadArgument(name, edge, "it must be an offset or a time (a datetime)")


def _window(frame: DataFrame, start: int | datetime | None, end: int | datetime | None) -> DataFrame:
    if start is not None:
        frame = frame.where(_column(start) >= _literal(start))
    if end is not None:
        frame = frame.where(_column(end) < _literal(end))
    return frame


def _column(edge: int | datetime) -> Column:
    from pyspark.sql import functions as f

    return f.col("timestamp" if isinstance(edge, datetime) else "offset")


def _literal(edge: int | datetime) -> Column:
    from pyspark.sql import functions as f

    return f.timestamp_millis(f.lit(_millis(edge))) if isinstance(edge, datetime) else f.lit(edge)


def _time(edge: Edge | None) -> datetime | None:
    return edge if isinstance(edge, datetime) else None


def _millis(time: datetime) -> int:
    """Return a time in milliseconds, rounded up, because records have no finer times. Without a zone it is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return -((datetime.fromtimestamp(0, UTC) - aware) // timedelta(milliseconds=1))


async def _ranges(
    log: Log, topics: Sequence[str], start: Edge | None, end: Edge | None, skew: timedelta
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    described = await side_by_side(log.admin.describe(topic) for topic in topics)
    partitions = [TopicPartition(each.name, number) for each in described for number in range(each.partitions)]
    latest = _later(end, skew) if isinstance(end, datetime) else end
    ranges = await side_by_side(_range(log, at, start, latest) for at in partitions)
    starts = {at: first for at, (first, _) in zip(partitions, ranges, strict=True)}
    return starts, {at: last for at, (_, last) in zip(partitions, ranges, strict=True)}


def _later(time: datetime, skew: timedelta) -> datetime | None:
    """Return a later time; None if there is none, as after datetime.max."""
    try:
        return time + skew
    except OverflowError:
        return None


async def _range(log: Log, at: TopicPartition, start: Edge | None, end: Edge | None) -> tuple[int, int]:
    """Return the first offset and the end (exclusive) of one partition, within the bounds of the log."""
    bounds = await log.bounds(at)
    low = bounds.start if start is None else await _offset(log, at, bounds, start, bounds.start)
    high = bounds.end if end is None else await _offset(log, at, bounds, end, bounds.end)
    last = min(max(high, bounds.start), bounds.end)
    return min(max(low, bounds.start), last), last


async def _offset(log: Log, at: TopicPartition, bounds: Bounds, edge: Edge, otherwise: int) -> int:
    if isinstance(edge, datetime):
        found = await log.offset_at(at, timestamp_ms=_millis(edge))
        return bounds.end if found is None else found
    return edge if isinstance(edge, int) else edge.get(at, otherwise)


_INT_BYTES = 8


def typed(
    frame: DataFrame,
    topic: str,
    registry: BlockingRegistry,
    *,
    parts: Sequence[Part] = ("key", "value"),
    key: Any = None,  # noqa: ANN401
    subject: str | None = None,
) -> DataFrame:
    """Return the frame, or stream, of a topic with keys and values of their Avro types.

    Each record is decoded in the JVM with the schema it was written with, and read as the newest version of its
    subject. A topic with one subject, `<topic>-value` or the given `subject`, has values of that type. A topic with a
    subject for each type of record has a struct with a member for each type, all null but one. Keys are typed if
    `<topic>-key` is registered; `key` is the type of keys that are not framed, as `KeyCodec` writes them.

    The schemas are those registered now: the query fails on a later schema id, and names it. Raises UnknownSubject,
    and BadArgument for a type that Spark can't represent, such as a recursive record; among several types it stays
    bytes.
    """
    provide_avro(frame.sparkSession)
    columns = {}
    if "value" in parts:
        columns["value"] = _values(topic, registry, subject)
    if "key" in parts:
        columns["key"] = _keys(topic, registry, key)
    return frame.withColumns({name: column for name, column in columns.items() if column is not None})


def _values(topic: str, registry: BlockingRegistry, subject: str | None) -> Column:
    from pyspark.sql import functions as f

    reading = reading_of_topic(registry, topic, subject=subject)
    if reading is None:
        raise UnknownSubject(subject or subject_of(topic), "the registry")
    return decoded(f.col("value"), _checked(reading), place())


def _keys(topic: str, registry: BlockingRegistry, kind: Any) -> Column | None:  # noqa: ANN401
    from pyspark.sql import functions as f

    if kind is not None:
        return _canonical(f.col("key"), topic, kind)
    reading = reading_of_topic(registry, topic, "key")
    return None if reading is None else decoded(f.col("key"), _checked(reading), place())


def _checked(reading: SchemaReading) -> SchemaReading:
    limit = reading.members[0].limit if reading.is_single else None
    if limit is not None:
        raise BadArgument(reading.what, reading.members[0].reader.name, limit)
    return reading


def _canonical(data: Column, topic: str, kind: Any) -> Column:  # noqa: ANN401
    """Return keys as `KeyCodec` writes them."""
    from pyspark.sql import functions as f

    if kind is bytes:
        return data
    if kind in (str, uuid.UUID):
        return data.cast("string")
    if kind is int:
        number = f.conv(f.hex(data), 16, -10).cast("bigint")
        text = f.lit(f"the keys of topic {topic!r} are not all of {_INT_BYTES} bytes: not that at ")
        is_one = f.length(data) == _INT_BYTES
        return f.when(is_one, number).when(data.isNotNull(), f.raise_error(f.concat(text, place())))
    if not isinstance(kind, Schema):
        KeyCodec(kind)  # refuses what has no canonical form
        kind = schema_of(kind)
    if (limit := spark_limit(kind)) is not None:
        raise BadArgument("key", kind.name, limit)
    return unframed(data, kind, kind)


def place() -> Column:
    """Return a text column that says where a record is in its topic."""
    from pyspark.sql import functions as f

    return f.concat(f.lit("partition "), f.col("partition"), f.lit(", offset "), f.col("offset"))
