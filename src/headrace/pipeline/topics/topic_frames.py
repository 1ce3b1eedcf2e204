"""Any topic as a DataFrame, all of it or between two places or times, and its newest record of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import Bounds, TopicPartition
from headrace.pipeline.logs.log_columns import LOG_SCHEMA
from headrace.pipeline.logs.log_frames import log_table
from headrace.pipeline.spark.opened import log_of, run
from headrace.pipeline.spark.places import Places
from headrace.pipeline.topics.typed_frames import typed
from headrace.serde import BlockingRegistry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Edge", "compact", "topic_frame"]

# An offset in every partition, one for each, or a time.
Edge: TypeAlias = int | Mapping[TopicPartition, int] | datetime

_AN_HOUR = timedelta(hours=1)


def topic_frame(
    spark: SparkSession,
    places: Places,
    topics: Sequence[str] | str,
    *,
    start: Edge | None = None,
    end: Edge | None = None,
    clock_skew: timedelta = _AN_HOUR,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return the committed records of topics from `start` (inclusive) to `end` (exclusive), as far as the log has them.

    Columns: topic, partition, offset, timestamp, key, value, headers. The table ends where the log ends now. Where
    `end` is a time, what lies further behind it than `clock_skew`, how far clocks of producers may be apart, is not
    read. With a `registry` key and value of one topic are typed, as `typed` does it; whatever schema a record of the
    table was written with is known, because the registry is asked after the log. Raises UnknownTopic, UnknownSubject.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or (registry is not None and len(names) > 1):
        raise BadArgument("topics", topics, "name at least one" if not names else "one topic has one type; name one")

    async def look() -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        log = await log_of(places)
        return await _ranges(log, names, start, end, clock_skew)

    starts, ends = run(look())
    has_any = any(ends[at] > starts[at] for at in ends)
    records = log_table(spark, places, starts, ends) if has_any else spark.createDataFrame([], LOG_SCHEMA)
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
    """Return the newest record of each key of a topic's frame; keys whose newest has no value are dropped.

    Newest by offset, or by time, ties to the higher offset. `start` (inclusive) and `end` (exclusive) limit what is
    looked at, to offsets or to times. A record without a key has no newer one and is left out. Of a topic whose keys
    changed partition, ask by time: offsets of two partitions can't be compared. Typed keys are compared as what they
    say, whatever version of their schema they were written with; `typed(compact(frame), …, parts=["value"])` decodes
    no more values than are left.
    """
    from pyspark.sql import functions as f

    if by not in ("offset", "time"):
        raise BadArgument("by", by, "it is 'offset' or 'time'")
    others = [column for column in frame.columns if column not in ("topic", "key")]
    order = f.col("offset") if by == "offset" else f.struct("timestamp", "offset")
    newest = f.max_by(f.struct(*others), order).alias("newest")
    found = _window(frame, start, end).where("key IS NOT NULL").groupBy("topic", "key").agg(newest)
    return found.where("newest.value IS NOT NULL").select("topic", "key", "newest.*")


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
    """Return a time in milliseconds, rounded up: records have no finer ones; without a zone it is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return -((datetime.fromtimestamp(0, UTC) - aware) // timedelta(milliseconds=1))


async def _ranges(
    log: Log, topics: Sequence[str], start: Edge | None, end: Edge | None, skew: timedelta
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts, ends = {}, {}
    for topic in topics:
        for partition in range((await log.admin.describe(topic)).partitions):
            at = TopicPartition(topic, partition)
            bounds = await log.bounds(at)
            low = bounds.start if start is None else await _offset(log, at, bounds, start, bounds.start)
            latest = end + skew if isinstance(end, datetime) else end
            high = bounds.end if latest is None else await _offset(log, at, bounds, latest, bounds.end)
            ends[at] = min(max(high, bounds.start), bounds.end)
            starts[at] = min(max(low, bounds.start), ends[at])
    return starts, ends


async def _offset(log: Log, at: TopicPartition, bounds: Bounds, edge: Edge, otherwise: int) -> int:
    if isinstance(edge, datetime):
        found = await log.offset_at(at, timestamp_ms=_millis(edge))
        return bounds.end if found is None else found
    return edge if isinstance(edge, int) else edge.get(at, otherwise)
