"""Outcomes of replication's tasks, and their way to the driver.

The sink's commit runs in a process of its own beside the driver's, so outcomes are passed on through a folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.model import TopicPartition

__all__ = ["TaskOutcome", "read_failed_batch", "read_outcomes", "write_outcomes"]


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one partition's task: `seen` is its last record, `applied` the last one that the store has.

    `is_held` means that the rest waits for other partitions to reach the boundary of a growth.
    """

    topic: str
    partition: int
    task: int
    first: int
    seen: int
    applied: int
    records: int
    rows: int = 0
    void: int = 0
    skipped: int = 0
    quarantined: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    is_held: bool = False
    error: str | None = None
    is_fault: bool = False
    took_s: float = 0.0

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_complete(self) -> bool:
        """Whether all records of the task are in the store."""
        return self.error is None and not self.is_held

    def written(self) -> TaskOutcome:
        """Return the outcome with only those records that are in the store, for a batch that failed."""
        if self.is_complete:
            return self
        return msgspec.structs.replace(self, records=max(0, min(self.records, self.applied - self.first + 1)))

    def packed(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def unpack(cls, plain: dict[str, Any]) -> TaskOutcome:
        """Return the outcome that `packed` returned as plain values."""
        return msgspec.convert(plain, cls)


def write_outcomes(folder: Path, batch_id: int, outcomes: Sequence[TaskOutcome]) -> None:
    """Write the outcomes of a batch to a file for the driver, atomically."""
    part = folder / f"{batch_id}.part"
    part.write_text(json.dumps([outcome.packed() for outcome in outcomes]))
    part.rename(folder / f"{batch_id}.json")


def read_failed_batch(folder: Path) -> list[TaskOutcome]:
    """Return the outcomes of a batch that has not succeeded, and remove their file; none if no task ended."""
    batches = [int(path.stem) for path in folder.glob("*.json")]
    return [outcome for batch_id in sorted(batches) for outcome in read_outcomes(folder, batch_id)]


def read_outcomes(folder: Path, batch_id: int) -> list[TaskOutcome]:
    """Return the outcomes of a batch and remove their file; none if the batch had no data."""
    path = folder / f"{batch_id}.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    path.unlink()
    return [TaskOutcome.unpack(plain) for plain in found]
