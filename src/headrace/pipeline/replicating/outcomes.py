"""What the tasks of a micro-batch did, told to the driver: one small message each.

The sink's commit runs in a process of its own beside the driver's, so the messages pass through a folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.model import TopicPartition

__all__ = ["Outcome", "read_outcomes", "read_unfinished", "write_outcomes"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's part of a micro-batch: `seen` is its last record, `applied` how far the store has come.

    `is_held` says that the rest waits for other partitions to reach the boundary of a growth.
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
        """Whether all that the task was given is in the store."""
        return self.error is None and not self.is_held

    def packed(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def unpack(cls, plain: dict[str, Any]) -> Outcome:
        """Read what `packed` returned."""
        return msgspec.convert(plain, cls)


def write_outcomes(folder: Path, batch_id: int, outcomes: Sequence[Outcome]) -> None:
    """Leave the outcomes of a batch for the driver; they appear whole."""
    part = folder / f"{batch_id}.part"
    part.write_text(json.dumps([outcome.packed() for outcome in outcomes]))
    part.rename(folder / f"{batch_id}.json")


def read_unfinished(folder: Path) -> list[Outcome]:
    """Return what the tasks of a failed batch could not finish; none if it failed for another reason."""
    found = [Outcome.unpack(plain) for path in folder.glob("*.json") for plain in json.loads(path.read_text())]
    return [outcome for outcome in found if not outcome.is_complete]


def read_outcomes(folder: Path, batch_id: int) -> list[Outcome]:
    """Take the outcomes of a batch; none if it had no data."""
    path = folder / f"{batch_id}.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    path.unlink()
    return [Outcome.unpack(plain) for plain in found]
