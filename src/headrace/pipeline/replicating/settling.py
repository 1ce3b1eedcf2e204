"""After a micro-batch: the stored offsets pass what the sink got no rows for.

Aborted and control records make no rows, but the source covered them, so the stored offset moves to the end of what it
covered. Only for finished batches: then all records below that end are in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.journal import replicate_batch
from headrace.model import TopicPartition
from headrace.pipeline.logs.offsets import decode_offsets
from headrace.pipeline.logs.planning import Plan
from headrace.pipeline.replicating.outcomes import Outcome
from headrace.pipeline.replicating.watching import BatchReport
from headrace.pipeline.spark.opened import store_of, tag_writer_of
from headrace.pipeline.spark.places import Places

__all__ = ["lag_of", "settle"]


async def settle(places: Places, plan: Plan, progress: Mapping[str, Any], outcomes: Sequence[Outcome]) -> BatchReport:
    """Move the offsets of a finished batch and return what it did."""
    source = progress["sources"][0]
    starts, ends = _offsets(source["startOffset"]) or dict(plan.starts), _offsets(source["endOffset"])
    applied = {outcome.at: outcome.applied for outcome in outcomes}
    moved = [at for at, end in ends.items() if end > starts.get(at, 0)]
    await asyncio.gather(*(_pass(places, plan, at, ends[at], applied.get(at, -1)) for at in moved))
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
    """Return how far what is replicated lies behind the log: behind what the source saw of it, or we saw before.

    The source was once told an end below what had been acknowledged long before.
    """
    return {at: max(0, latest.get(at, end) - end, plan.ends.get(at, end) - end) for at, end in ends.items()}


async def _pass(places: Places, plan: Plan, at: TopicPartition, end: int, applied: int) -> None:
    if applied < end - 1:
        store, views = await store_of(places), await tag_writer_of(places, with_log=True)
        await replicate_batch(store, plan.layouts[at.topic], at, [], up_to=end - 1, views=views)


def _offsets(text: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - Spark gives text, or nothing
    if not text or text == "null":
        return {}
    return decode_offsets(text if isinstance(text, str) else msgspec.json.encode(text))
