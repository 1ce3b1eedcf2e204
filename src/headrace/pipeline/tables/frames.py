"""Journals, their heads and the replicated offsets as DataFrames.

Log and store are looked at when a frame is first acted on. Spark keeps that look for further actions with the same
filters: who wants what came since makes the frame anew.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import msgspec

from headrace.pipeline.logs.planning import Selection
from headrace.pipeline.spark.places import PLACES_OPTION, Places
from headrace.pipeline.spark.registering import register
from headrace.pipeline.tables.manners import Manners
from headrace.pipeline.tables.typed_events import with_events
from headrace.serde import BlockingRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["journal_frame", "meta_frame", "pointer_frame"]

_ALL = Selection()
_AN_HOUR = timedelta(hours=1)


def journal_frame(
    spark: SparkSession,
    places: Places,
    selection: Selection = _ALL,
    *,
    held: Literal["raise", "skip"] = "raise",
    clock_skew: timedelta | None = _AN_HOUR,
    counts: Path | None = None,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return the living events of whole journals: what the store has and what only the log has, each once.

    Also while replication runs: each journal is given as it was at a place of the log at or after the query was
    planned. Filters on key, topic, partition, seq_nr, offset and timestamp decide what is read at all; those on time
    skip journals whose first and last record lie further than `clock_skew` (None: look at all) from it. A quarantined
    journal fails the query, or is left out with `held="skip"`. `counts` is a folder where every task tells what it
    read; workers must reach it. With a `registry` payloads that are framed Avro are there as `event` too, see
    `with_events`.
    """
    from headrace.pipeline.tables.journal_source import HeadraceJournalSource

    skew_ms = None if clock_skew is None else clock_skew // timedelta(milliseconds=1)
    options = {"manners": msgspec.json.encode(Manners(held, skew_ms)).decode()}
    if counts is not None:
        options["counts"] = str(counts)
    frame = _load(spark, HeadraceJournalSource, places, selection, options)
    text = "CASE WHEN payload_type IN ('text', 'json') THEN CAST(payload AS STRING) END AS payload_text"
    columns = list(frame.columns)
    after = columns.index("payload") + 1
    frame = frame.selectExpr(*columns[:after], text, *columns[after:])
    return frame if registry is None else with_events(frame, places, selection, registry)


def meta_frame(
    spark: SparkSession, places: Places, selection: Selection = _ALL, *, counts: Path | None = None
) -> DataFrame:
    """Return the heads of journals as the store has them, markers of purged ones included.

    What replication has not reached is not in it. Filters on key, topic and partition decide what is read.
    """
    from headrace.pipeline.tables.meta_source import HeadraceMetaSource

    options = {} if counts is None else {"counts": str(counts)}
    return _load(spark, HeadraceMetaSource, places, selection, options)


def pointer_frame(spark: SparkSession, places: Places, selection: Selection = _ALL) -> DataFrame:
    """Return how far each partition is replicated, what its log holds, and how far replication is behind."""
    from headrace.pipeline.tables.pointer_source import HeadracePointerSource

    return _load(spark, HeadracePointerSource, places, selection, {})


def _load(
    spark: SparkSession,
    source: type[DataSource],
    places: Places,
    selection: Selection,
    options: dict[str, str],
) -> DataFrame:
    register(spark, source)
    where = {PLACES_OPTION: places.pack(), "selection": msgspec.json.encode(selection).decode()}
    frame = spark.read.format(source.name()).options(frame=uuid4().hex, **where, **options).load()
    # Spark asks a source for its filters only where there is one; a scan that wants everything must be heard as well.
    return frame.where("topic IS NOT NULL")
