"""The move of the stored offsets after a batch, on the driver.

The sink gets no rows for control records and aborted transactions. So after a batch has succeeded, the stored offsets
move to the end of what the source covered: all records below that end are in the store then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.journal import replicate_batch
from headrace.model import TopicPartition
from headrace.pipeline.logs.offsets import decode_offsets
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.replication.outcomes import TaskOutcome
from headrace.pipeline.replication.reports import BatchReport
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import store_of, tag_writer_of

__all__ = ["finish_batch", "lag_of"]


async def finish_batch(
    endpoints: Endpoints, plan: Plan, progress: Mapping[str, Any], outcomes: Sequence[TaskOutcome]
) -> BatchReport:
    """Move the stored offsets to the ends of a finished batch, and return its report."""
    source = progress["sources"][0]
    starts, ends = _offsets(source["startOffset"]) or dict(plan.starts), _offsets(source["endOffset"])
    applied = {outcome.at: outcome.applied for outcome in outcomes}
    moved = [at for at, end in ends.items() if end > starts.get(at, 0)]
    await asyncio.gather(*(_pass(endpoints, plan, at, ends[at], applied.get(at, -1)) for at in moved))
    latest = _offsets(source.get("latestOffset")) or ends
    return BatchReport(
        batch=progress["batchId"],
        records=int(progress["numInputRows"]),
        rows=sum(outcome.rows for outcome in outcomes),
        took_s=progress["durationMs"].get("triggerExecution", 0) / 1000,
        lag=lag_of(plan, latest, ends),
        outcomes=outcomes,
    )


def lag_of(
    plan: Plan, latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the lag of each partition behind the log's end, as the source or the plan saw it, whichever is later.

    Spark's source has reported an end below records that had been acknowledged long before.
    """
    return {at: max(0, latest.get(at, end) - end, plan.ends.get(at, end) - end) for at, end in ends.items()}


async def _pass(endpoints: Endpoints, plan: Plan, at: TopicPartition, end: int, applied: int) -> None:
    if applied < end - 1:
        store, views = await store_of(endpoints), await tag_writer_of(endpoints, with_log=True)
        await replicate_batch(store, plan.layouts[at.topic], at, [], up_to=end - 1, views=views)


def _offsets(text: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - Spark gives text, or nothing
    if not text or text == "null":
        return {}
    return decode_offsets(text if isinstance(text, str) else msgspec.json.encode(text))
