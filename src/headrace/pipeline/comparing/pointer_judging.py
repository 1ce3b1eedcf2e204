"""Whether a partition's replicated offset can be one that replication stored: pure."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.pipeline.comparing.findings import Finding, FindingKind
from headrace.pipeline.comparing.key_windows import Stretch, Window, generation_at

__all__ = ["pointer_findings"]

# Brokers refuse records stamped more than a minute ahead of their clock, and clocks of machines differ a little.
_AHEAD_MS = 120_000


def pointer_findings(window: Window, now_ms: int) -> list[Finding]:
    """Return what is wrong with the replicated offset of the task's own partition.

    A repair leaves it alone: whether the offset or the log is wrong, only an operator can know.
    """
    details = _details(window, window.home, now_ms)
    topic, partition = window.at
    offset = window.home.stored.offset if window.home.stored is not None else None
    kind = FindingKind.POINTER_CHANGED
    return [Finding(topic=topic, partition=partition, id="", kind=kind, offset=offset, detail=each) for each in details]


def _details(window: Window, stretch: Stretch, now_ms: int) -> Iterator[str]:
    stored, layout = stretch.stored, window.layout
    if stored is None:
        return
    if stored.offset >= stretch.end:
        yield f"it is at or beyond the log's end, {stretch.end}: the log lost records, or the offset was edited"
        return
    # A boundary belongs to the generation before it; once replication has passed it, the next one has begun.
    right = {generation_at(layout, stretch.at, offset) for offset in (stored.offset, stored.offset + 1)}
    if stored.generation not in right and stretch.replicated is not None:
        told = " or ".join(map(str, sorted(right)))
        yield f"its generation is {stored.generation}, and records there are of generation {told}"
    if stored.generation > layout.generation or stored.generation < 0:
        yield f"its generation is {stored.generation}, and the topic's is {layout.generation}"
    if stored.log_time_ms > now_ms + _AHEAD_MS:
        yield f"its log time lies {(stored.log_time_ms - now_ms) // 1000} s in the future"
