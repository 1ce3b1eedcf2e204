"""Metrics of journals, and the timing of single operations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from headrace.observe import counter, get_logger, histogram

__all__ = [
    "HEAD_ANSWERS",
    "HEAD_ENTRIES_DROPPED",
    "OPERATIONS",
    "REPLICATED_ROWS",
    "SLOW_S",
    "STRAY_RECORDS",
    "VOID_ACTIONS",
    "Operation",
    "Operations",
]

OPERATIONS = histogram("journal", "operation", "Time of an operation of a journal.", ["topic", "operation"])
HEAD_ANSWERS = counter("journal", "head_answers", "Answers of the head cache, by kind.", ["topic", "kind"])
HEAD_ENTRIES_DROPPED = counter("journal", "head_evictions", "Keys that the full head cache evicted.", ["topic"])
REPLICATED_ROWS = counter("journal", "replicated_rows", "Rows written to the store.", ["topic"])
STRAY_RECORDS = counter("journal", "stray_records", "Records in a partition that their key had left.", ["topic"])
VOID_ACTIONS = counter("journal", "void_actions", "Replicated actions that changed nothing.", ["topic"])

_logger = get_logger(__name__)

SLOW_S = 1.0


class Operations:
    """The operations of one topic's journals."""

    def __init__(self, topic: str, *, slow_s: float = SLOW_S) -> None:
        self.topic = topic
        self.slow_s = slow_s
        self._observe = {
            name: OPERATIONS.labels(topic, name).observe for name in ("append", "read", "pointer", "delete", "purge")
        }

    def begin(self, name: str, id_: str) -> Operation:
        """Begin an operation; use it in a `with`."""
        return Operation(self, name, id_)

    def end(self, name: str, id_: str, took_s: float, stages: Mapping[str, float] = {}) -> None:
        """Record an operation; log a slow one with its stages."""
        self._observe[name](took_s)
        if took_s <= self.slow_s:
            return
        stages_s = {stage: round(seconds, 3) for stage, seconds in stages.items()}
        about = {"operation": name, "topic": self.topic, "id": id_}
        _logger.warning("slow operation", **about, took_s=round(took_s, 3), stages_s=stages_s)


class Operation:
    """One operation with its time. `lap` ends a stage; stages of concurrent work overlap."""

    __slots__ = ("_lap_s", "_operations", "_started_s", "id", "name", "stages")

    def __init__(self, operations: Operations, name: str, id_: str) -> None:
        self._operations = operations
        self.name = name
        self.id = id_
        self.stages: dict[str, float] = {}
        self._started_s = self._lap_s = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to a stage."""
        now_s = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now_s - self._lap_s
        self._lap_s = now_s

    def __enter__(self) -> Operation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._operations.end(self.name, self.id, time.perf_counter() - self._started_s, self.stages)
