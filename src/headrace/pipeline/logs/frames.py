"""Streams and tables of a log's records, with the same columns for every log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.pipeline.logs.offsets import Offsets, assigned, encode_offsets
from headrace.pipeline.logs.records import LOG_COLUMNS
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.kafka_properties import java_properties
from headrace.pipeline.spark.session import provide_kafka, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["log_stream", "log_table"]


def log_stream(spark: SparkSession, endpoints: Endpoints, starts: Offsets, *, max_records: int) -> DataFrame:
    """Return the committed records from `starts` on, as a stream of at most `max_records` a batch."""
    if _is_kafka(endpoints):
        provide_kafka(spark)
        options = {
            **_kafka_options(endpoints),
            "assign": assigned(starts),
            "startingOffsets": encode_offsets(starts),
            "maxOffsetsPerTrigger": str(max_records),
        }
        return _columns(spark.readStream.format("kafka").options(**options).load())
    _register(spark)
    options = {
        ENDPOINTS_OPTION: endpoints.pack(),
        "starts": encode_offsets(starts),
        "maxrecords": str(max_records),
    }
    return spark.readStream.format("headrace_log").options(**options).load()


def log_table(
    spark: SparkSession,
    endpoints: Endpoints,
    starts: Offsets,
    ends: Offsets,
    *,
    tasks: int = 1,
    skips_removed: bool = False,
) -> DataFrame:
    """Return the committed records from `starts` up to `ends` (exclusive), as a table.

    Each task reads one stretch of one partition, in its order; there are about as many as `tasks`, at least one for
    each partition. With `skips_removed`, records that were removed since are left out; without, they fail the query.
    """
    starts = {at: starts[at] for at in ends}
    if _is_kafka(endpoints):
        provide_kafka(spark)
        options = {
            **_kafka_options(endpoints),
            "assign": assigned(starts),
            "startingOffsets": encode_offsets(starts),
            "endingOffsets": encode_offsets(ends),
            "failOnDataLoss": str(not skips_removed).lower(),
            **({"minPartitions": str(tasks)} if tasks > len(ends) else {}),
        }
        return _columns(spark.read.format("kafka").options(**options).load())
    _register(spark)
    options = {
        ENDPOINTS_OPTION: endpoints.pack(),
        "starts": encode_offsets(starts),
        "ends": encode_offsets(ends),
        "tasks": str(tasks),
        "skipsremoved": str(skips_removed).lower(),
    }
    return spark.read.format("headrace_log").options(**options).load()


def _is_kafka(endpoints: Endpoints) -> bool:
    return urlsplit(endpoints.log).scheme == "kafka"


def _kafka_options(endpoints: Endpoints) -> Mapping[str, str]:
    client = endpoints.settings_of_log().kafka.client
    return {
        "kafka.bootstrap.servers": urlsplit(endpoints.log).netloc,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **{f"kafka.{name}": value for name, value in java_properties(client).items()},
    }


def _columns(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        *("unix_millis(timestamp) AS timestamp_ms" if c == "timestamp_ms" else c for c in LOG_COLUMNS)
    )


def _register(spark: SparkSession) -> None:
    from headrace.pipeline.logs.source import HeadraceLogSource

    register(spark, HeadraceLogSource)
