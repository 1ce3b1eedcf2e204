"""What the tasks of a table read, counted, so that push-down can be seen: a file for each task in a folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec

__all__ = ["Counts", "counted", "total"]


class Counts(msgspec.Struct):
    """What one task read: heads and rows of the store, records of the log without and with their values."""

    topic: str
    partition: int
    metas: int = 0
    rows: int = 0
    headers: int = 0
    values: int = 0
    given: int = 0

    def write(self, folder: str | None) -> None:
        """Leave the counts in the folder, if there is one."""
        if folder:
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_bytes(msgspec.json.encode(self))


def counted(folder: Path) -> list[Counts]:
    """Return what the tasks have left there."""
    return [msgspec.json.decode(path.read_bytes(), type=Counts) for path in sorted(folder.glob("*.json"))]


def total(counts: Iterable[Counts]) -> Counts:
    """Add counts up; topic and partition say nothing then."""
    added = Counts("", -1)
    for each in counts:
        for field in ("metas", "rows", "headers", "values", "given"):
            setattr(added, field, getattr(added, field) + getattr(each, field))
    return added
