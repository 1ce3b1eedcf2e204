"""Judgement of one journal, and of a partition's replicated offset: is the store what the log makes of it? Pure.

Rows from before the window can't be compared with records that the log has removed. They are reported only if they
contradict the journal's own head: rows that it says are deleted, that are above its seq_nr, or of another incarnation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.windows import AuditWindow, KeyWindow, WindowStretch, generation_at
from headrace.protocol import Entry, KeyFold, Purge, fold_key
from headrace.store import EventRow, JournalMeta, Place

__all__ = [
    "BY_HAND",
    "JournalCase",
    "Judgement",
    "Stored",
    "claimed_place",
    "compare",
    "differing",
    "expected_rows",
    "pointer_findings",
]

# A place above every wall clock and below every record: what is written there loses to everything from the log.
BY_HAND = Place(0, -1)


@dataclass(slots=True)
class Stored:
    """What the store has of a journal. `last_before` is the highest seq_nr of its rows from before the window."""

    meta: JournalMeta | None
    within: list[EventRow] = field(default_factory=list)
    wrong_before: list[EventRow] = field(default_factory=list)
    ahead: list[EventRow] = field(default_factory=list)
    last_before: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class JournalCase:
    """One journal to judge: its window, its records in it, and the places of its later records in the log."""

    at: TopicPartition
    id: str
    window: KeyWindow
    entries: Sequence[Entry]
    is_log_time_exact: bool = True
    highest_log_time_ms: int = 0
    markers_gone_before_ms: int = 0
    places_ahead: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings, and the fold of what is right. `is_guess`: the log's remaining records don't determine the head."""

    fold: KeyFold
    findings: list[Finding]
    is_guess: bool = False


def claimed_place(row: EventRow) -> Place:
    """Return the place that a row claims; a row that was written by hand may have none."""
    return BY_HAND if None in (row.generation, row.offset) else row.place


def expected_rows(fold: KeyFold) -> list[EventRow]:
    """Return the rows that the records of the window leave."""
    return [row for piece in fold.pieces for row in piece.rows]


def compare(case: JournalCase, stored: Stored, base: JournalMeta | None) -> Judgement:
    """Judge a journal that was in state `base` before its window."""
    fold = fold_key(base, case.entries)
    findings = [*_meta_findings(case, stored.meta, fold.meta), *_row_findings(case, stored, fold)]
    is_known = case.window.is_whole or (fold.meta is not None and not case.window.is_before(fold.meta.place))
    return Judgement(fold, findings, is_guess=not is_known)


def _meta_findings(case: JournalCase, stored: JournalMeta | None, right: JournalMeta | None) -> list[Finding]:
    if stored is not None and stored.is_purged and stored.place < Place(0, 0):
        stored = None  # the marker of a repair that removed an added head
    if stored == right:
        return []
    if stored is None:
        if right is None or (right.is_purged and _purge_time_ms(case) < case.markers_gone_before_ms):
            return []
        return [_finding(case, FindingKind.META_MISSING, offset=right.offset)]
    if right is None:
        return [_finding(case, FindingKind.META_ADDED, offset=stored.offset)]
    return [_finding(case, FindingKind.META_CHANGED, offset=right.offset, detail=differing(stored, right))]


def _purge_time_ms(case: JournalCase) -> int:
    return max((entry.timestamp_ms for entry in case.entries if isinstance(entry.action, Purge)), default=0)


def _row_findings(case: JournalCase, stored: Stored, fold: KeyFold) -> list[Finding]:
    missing = {(row.seq_nr, row.timestamp_ms): row for row in expected_rows(fold)}
    findings = []
    for row in stored.within:
        right = missing.pop((row.seq_nr, row.timestamp_ms), None)
        if right is None:
            findings.append(_row_finding(case, FindingKind.ROW_ADDED, row))
        elif detail := _difference(case, row, right):
            findings.append(_row_finding(case, FindingKind.ROW_CHANGED, right, detail))
    unknown = [row for row in stored.ahead if claimed_place(row) not in case.places_ahead]
    for row in [*stored.wrong_before, *unknown]:
        right = missing.pop((row.seq_nr, row.timestamp_ms), None)
        if right is None:
            findings.append(_row_finding(case, FindingKind.ROW_ADDED, row))
        else:
            findings.append(_row_finding(case, FindingKind.ROW_CHANGED, right, differing(row, right)))
    findings += [_row_finding(case, FindingKind.ROW_MISSING, row) for row in missing.values()]
    return findings


def _difference(case: JournalCase, row: EventRow, right: EventRow) -> str:
    if row == right:
        return ""
    if not case.is_log_time_exact and right.timestamp_ms <= (row.log_time_ms or 0) <= case.highest_log_time_ms:
        right = msgspec.structs.replace(right, log_time_ms=row.log_time_ms)
    return differing(row, right)


def differing(one: msgspec.Struct, other: msgspec.Struct) -> str:
    """Return the names of the columns that differ."""
    return ", ".join(name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name))


def _row_finding(case: JournalCase, kind: FindingKind, row: EventRow, detail: str = "") -> Finding:
    return _finding(case, kind, seq_nr=row.seq_nr, offset=row.offset, detail=detail)


def _finding(
    case: JournalCase, kind: FindingKind, *, seq_nr: int | None = None, offset: int | None = None, detail: str = ""
) -> Finding:
    topic, partition = case.at
    return Finding(topic=topic, partition=partition, id=case.id, kind=kind, seq_nr=seq_nr, offset=offset, detail=detail)


# Brokers refuse records with times more than a minute ahead of their clock, and clocks differ a little.
_AHEAD_MS = 120_000


def pointer_findings(window: AuditWindow, now_ms: int) -> list[Finding]:
    """Return what is wrong with the replicated offset of the task's own partition.

    A repair does not change it: only an operator can know whether the offset or the log is wrong.
    """
    details = _details(window, window.home, now_ms)
    topic, partition = window.at
    offset = window.home.stored.offset if window.home.stored is not None else None
    kind = FindingKind.POINTER_CHANGED
    return [Finding(topic=topic, partition=partition, id="", kind=kind, offset=offset, detail=each) for each in details]


def _details(window: AuditWindow, stretch: WindowStretch, now_ms: int) -> Iterator[str]:
    stored, layout = stretch.stored, window.layout
    if stored is None:
        return
    if stored.offset >= stretch.end:
        yield f"it is at or beyond the log's end, {stretch.end}: the log lost records, or the offset was edited"
        return
    # A boundary belongs to the generation before it; once replication has passed it, the next one has begun.
    right = {generation_at(layout, stretch.at, offset) for offset in (stored.offset, stored.offset + 1)}
    if stored.generation not in right and stretch.replicated is not None:
        generations = " or ".join(map(str, sorted(right)))
        yield f"its generation is {stored.generation}, and records there are of generation {generations}"
    if stored.generation > layout.generation or stored.generation < 0:
        yield f"its generation is {stored.generation}, and the topic's is {layout.generation}"
    if stored.log_time_ms > now_ms + _AHEAD_MS:
        yield f"its log time lies {(stored.log_time_ms - now_ms) // 1000} s in the future"
