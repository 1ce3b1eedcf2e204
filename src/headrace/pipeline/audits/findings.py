"""Findings of an audit: rows, heads and rows of views that are missing, changed or added, by id and seq_nr."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["FINDING_COLUMNS", "Finding", "FindingKind"]

FINDING_COLUMNS = (
    "topic string, partition int, id string, kind string, seq_nr bigint, offset bigint, detail string, "
    "repaired boolean, tag string"
)


class FindingKind(StrEnum):
    """The kind of a difference between the store and the log."""

    ROW_MISSING = "row missing"
    ROW_CHANGED = "row changed"
    ROW_ADDED = "row added"
    META_MISSING = "meta missing"
    META_CHANGED = "meta changed"
    META_ADDED = "meta added"
    POINTER_CHANGED = "replicated offset changed"
    TAG_ROW_MISSING = "tag row missing"
    TAG_ROW_CHANGED = "tag row changed"
    TAG_ROW_ADDED = "tag row added"
    TAG_NUMBER_CHANGED = "tag number changed"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the store and the log.

    `id` is empty for a partition's replicated offset. `seq_nr` is None for a head. `offset` is that of the record that
    says what is right, or the one that the row claims. `repaired` is None if no repair was requested. `tag` is set for
    a row of a view by tag.
    """

    topic: str
    partition: int
    id: str
    kind: FindingKind
    seq_nr: int | None = None
    offset: int | None = None
    detail: str = ""
    repaired: bool | None = None
    tag: str | None = None

    def __str__(self) -> str:
        kind = self.kind.value if self.tag is None else f"{self.kind.value} under {self.tag!r}"
        what = kind if self.seq_nr is None else f"{kind}, seq_nr {self.seq_nr}"
        of = f"{self.topic}[{self.partition}]" + (f" {self.id!r}" if self.id else "")
        return f"{of}: {what}" + (f" ({self.detail})" if self.detail else "")
