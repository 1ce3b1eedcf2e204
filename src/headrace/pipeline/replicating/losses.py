"""Going on behind records that left the log before they were replicated: only when somebody says so, by name."""

from __future__ import annotations

import time

import msgspec

from headrace.errors import BadArgument
from headrace.journal import Topology
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.spark.opened import log_of, store_of
from headrace.pipeline.spark.places import Places
from headrace.store import ReplicatedOffset

__all__ = ["accept_loss"]

_logger = get_logger(__name__)


async def accept_loss(places: Places, topic: str, partition: int, last: int) -> None:
    """Move the replicated offset to `last`. Raises BadArgument unless all up to there is gone from the log."""
    log, store = await log_of(places), await store_of(places)
    at = TopicPartition(topic, partition)
    bounds = await log.bounds(at)
    if last != bounds.start - 1:
        rule = f"the log of {at} begins at {bounds.start}: what can be given up ends at {bounds.start - 1}"
        raise BadArgument("--accept-loss", last, rule)
    layout = await Topology(log, store.settings, topic).layout()
    before = await store.reader.replicated(at)
    known = layout.of_topic(before)
    if known is not None and known.offset >= last:
        return
    now_ms = time.time_ns() // 1_000_000
    base = before or ReplicatedOffset(
        at=at, generation=0, offset=-1, log_time_ms=0, created_ms=now_ms, updated_ms=now_ms
    )
    # The boundary of a generation may be among what is lost: it was passed all the same.
    generation = max(base.generation, layout.generation_at(partition, last + 1))
    moved = msgspec.structs.replace(base, generation=generation, offset=last, updated_ms=now_ms)
    await store.writer.move_replicated(moved)
    first = known.offset + 1 if known is not None else 0
    _logger.warning("loss accepted", partition=str(at), first=first, last=last)
