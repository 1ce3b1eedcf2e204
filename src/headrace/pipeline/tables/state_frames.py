"""States by key as DataFrames: the newest value of each key in a changelog topic, without what has expired.

Records of the machinery, under reserved keys, are skipped. A value's time to live is in its record, or is the state's.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument, NotReadable
from headrace.model import TopicConfig
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run
from headrace.pipeline.topics.avro_read import decoded, reading_of_topic
from headrace.pipeline.topics.frames import compact, place, topic_frame, typed
from headrace.serde import BlockingRegistry
from headrace.state import RESERVED_PREFIX, OrderedKeys, StateSpec, decode_parts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ShownKeys", "StateKeys", "is_codec", "is_json", "key_type", "shown_key", "state_frame"]

_COLUMNS = ("key", "value", "timestamp", "expires", "partition", "offset", "key_bytes", "value_bytes")
_TTL = "try_cast(CAST(get(filter(headers, h -> h.key = 'headrace.ttl'), 0).value AS STRING) AS BIGINT)"
# The types of keys that a state can have, as Spark's columns.
_KEY_TYPES: dict[type, str] = {
    str: "string",
    bytes: "binary",
    int: "bigint",
    bool: "boolean",
    uuid.UUID: "string",
    date: "date",
    datetime: "timestamp_ltz",
}


def state_frame(
    spark: SparkSession,
    endpoints: Endpoints,
    state: StateSpec[Any, Any] | str,
    *,
    now: datetime | None = None,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return the newest value of each key of a state that has not expired `now`.

    `state` is the declaration, or the name of the changelog topic. Columns: key, value, timestamp, expires, partition,
    offset, key_bytes, value_bytes. With the declaration, keys and values have its types: a compound key is a struct of
    `_1`, `_2` …, a class is a struct (which needs a `registry`), dicts and lists are JSON. With only a topic, keys are
    text, or JSON of their parts if they are not text; values are typed if the registry has their schema, else text.
    Values without a time to live of their own then have that of the topic's settings, the longest of the state.
    """
    topic = state if isinstance(state, str) else state.topic
    now_ms = time.time_ns() // 1_000_000 if now is None else round(now.timestamp() * 1000)
    ttl_ms = _topic_ttl_ms(endpoints, topic) if isinstance(state, str) else state.ttl_ms
    records = topic_frame(spark, endpoints, topic).where(f"substring(key, 1, 3) != X'{RESERVED_PREFIX.hex()}'")
    own = f"coalesce({_TTL}, {'CAST(NULL AS BIGINT)' if ttl_ms is None else ttl_ms})"
    newest = compact(records).selectExpr("*", f"timestamp_millis(unix_millis(timestamp) + {own}) AS expires")
    alive = newest.where(f"expires IS NULL OR unix_millis(expires) > {now_ms}")
    bytes_kept = alive.selectExpr("*", "key AS key_bytes", "value AS value_bytes")
    shown = _shown(bytes_kept, topic, registry) if isinstance(state, str) else _typed(bytes_kept, state, registry)
    return shown.select(*_COLUMNS)


def _topic_ttl_ms(endpoints: Endpoints, topic: str) -> int | None:
    async def config() -> TopicConfig:
        return (await (await log_of(endpoints)).admin.describe(topic)).config

    found = run(config())
    is_all_due = found.cleanup.compacts and found.retention_ms is not None
    return max(0, (found.retention_ms or 0) - found.tombstone_retention_ms) if is_all_due else None


def _typed(frame: DataFrame, state: StateSpec[Any, Any], registry: BlockingRegistry | None) -> DataFrame:
    from pyspark.sql import functions as f

    key = (
        f.col("key") if state.key is bytes else f.udf(StateKeys(state.key), key_type(state.key), useArrow=False)("key")
    )
    frame = frame.withColumn("key", key)
    if state.value in (str, bytes, int):
        return frame.withColumn("value", _plain_value(state.value))
    if is_json(state.value):
        return frame.withColumn("value", f.col("value").cast("string"))
    if is_codec(state.value):
        return frame  # only the application can decode these bytes
    if registry is None:
        raise BadArgument(
            "registry", None, f"the values of {state.name!r} are Avro; give the registry with their schema"
        )
    return typed(frame, state.topic, registry, parts=["value"])


def is_json(kind: Any) -> bool:  # noqa: ANN401
    """Return True if a state writes values of this type as JSON."""
    return kind is Any or getattr(kind, "__origin__", kind) in (dict, list)


def is_codec(kind: Any) -> bool:  # noqa: ANN401
    """Return True if a state has a codec of the application's own for its values, and not a type."""
    return hasattr(kind, "encode") and hasattr(kind, "prepare") and not isinstance(kind, type)


def _plain_value(kind: type) -> Column:
    from pyspark.sql import functions as f

    if kind is bytes:
        return f.col("value")
    return f.col("value").cast("string") if kind is str else f.conv(f.hex("value"), 16, -10).cast("bigint")


def _shown(frame: DataFrame, topic: str, registry: BlockingRegistry | None) -> DataFrame:
    from pyspark.sql import functions as f

    reading = None if registry is None else reading_of_topic(registry, topic)
    value = f.col("value").cast("string") if reading is None else decoded(f.col("value"), reading, place())
    return frame.withColumns({"key": f.udf(ShownKeys(), "string", useArrow=False)("key"), "value": value})


def key_type(kind: Any) -> str:  # noqa: ANN401
    """Return the type of a column with keys of this type. Raises BadArgument for what can't be a key."""
    if OrderedKeys(kind).is_compound:
        parts = [f"_{nth}: {_KEY_TYPES[part]}" for nth, part in enumerate(kind.__args__, 1)]
        return f"struct<{', '.join(parts)}>"
    return _KEY_TYPES[kind]


class StateKeys:
    """Decodes keys of one type. It is a class of this module, so that it is pickled by name."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401
        self._kind = kind

    def __call__(self, data: bytes) -> Any:  # noqa: ANN401
        """Return the key as Spark takes it. Raises NotReadable."""
        key = OrderedKeys(self._kind).decode(bytes(data))
        return tuple(map(_column_value, key)) if isinstance(key, tuple) else _column_value(key)


class ShownKeys:
    """Shows keys of unknown types as text."""

    def __call__(self, data: bytes) -> str | None:
        """Return the text; None if the bytes are no key of a state."""
        return shown_key(bytes(data))


def shown_key(data: bytes) -> str | None:
    """Return a key as text if it is printable text, else as the JSON of its parts; None if it is neither."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return text
    try:
        parts = decode_parts(data)
    except NotReadable:
        return None
    shown: Callable[[Any], Any] = lambda part: part.hex() if isinstance(part, bytes) else str(part)  # noqa: E731
    return json.dumps(parts[0] if len(parts) == 1 else parts, default=shown, ensure_ascii=False)


def _column_value(value: Any) -> Any:  # noqa: ANN401
    return str(value) if isinstance(value, uuid.UUID) else value
