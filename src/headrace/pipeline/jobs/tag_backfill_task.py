"""What one task of a tag's back-fill does: count the journals of its partition under the tag."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import OperationFailed
from headrace.model import TopicPartition
from headrace.pipeline.jobs.job_reports import FilledPartition, report_batch
from headrace.pipeline.spark.errors_told import told
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import Places
from headrace.store import Place
from headrace.tags import Chooser
from headrace.tags.filling import TagFills
from headrace.tags.history import HistoryCount
from headrace.tags.registry import TagRegistry

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["fill_partition"]


def fill_partition(places: Places, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Count one partition; in a worker."""
    started_s = time.perf_counter()
    report = FilledPartition(topic=at.topic, partition=at.partition)
    try:
        _check_first_attempt(arguments["tag"])
        report = run(_fill(places, at, arguments))
    except Exception as error:
        report = msgspec.structs.replace(report, error=told(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


def _check_first_attempt(tag: str) -> None:
    """Refuse to go on where a task has died: rows may be there whose numbers were not noted."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise OperationFailed(f"back-filling tag {tag!r}", "a task has died; begin again, with --again")


async def _fill(places: Places, at: TopicPartition, arguments: Arguments) -> FilledPartition:
    tag, settings = arguments["tag"], places.settings_of_tags()
    store = await store_of(places)
    await TagFills(await log_of(places), store, settings).current(tag, arguments["fill"])
    # The registry is read before the journals: those that are at its places or above are left to a later pass.
    registry = await TagRegistry(store, settings).open()
    replicated = await store.reader.replicated(at)
    history = HistoryCount(store, settings, registry, tag, at, _chooser(arguments["choose"]))
    after = arguments["after"].get(str(at))
    if after is None:
        await history.sweep()
    await history.count(after=Place(*after) if after is not None else Place(-1, -2))
    await history.redact()
    if arguments["is_last"]:
        await history.sweep_late()
    counted = history.counted
    return FilledPartition(
        topic=at.topic,
        partition=at.partition,
        generation=replicated.generation if replicated is not None else -1,
        seen=replicated.offset if replicated is not None else -2,
        journals=counted.journals,
        events=counted.events,
        rows=counted.rows,
    )


def _chooser(packed: str) -> Chooser:
    choose: Chooser = pickle.loads(base64.b64decode(packed))  # noqa: S301 - the driver of this job made it
    return choose
