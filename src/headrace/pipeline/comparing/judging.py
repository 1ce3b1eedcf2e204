"""Whether what the store has of one journal is what the log makes of it: pure.

Rows below the window can't be compared with records that are gone. Of those only what contradicts the journal's own
head is reported: rows that it says are deleted, above its seq_nr, or of another incarnation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.journal.actions import Purge
from headrace.journal.folding import Entry
from headrace.journal.key_writes import KeyFold, fold_key
from headrace.model import TopicPartition
from headrace.pipeline.comparing.findings import Finding, FindingKind
from headrace.pipeline.comparing.key_windows import KeyWindow
from headrace.store import EventRow, JournalMeta, Place

__all__ = ["BY_HAND", "Case", "Stored", "Verdict", "claimed_place", "compare", "differing", "expected_rows"]

# Above every wall clock and below every record: what is written there loses to all that the log caused.
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
class Case:
    """One journal to be judged: its window, its records in it, and those behind it that the log has already."""

    at: TopicPartition
    id: str
    window: KeyWindow
    entries: Sequence[Entry]
    is_log_time_exact: bool = True
    highest_log_time_ms: int = 0
    markers_gone_before_ms: int = 0
    places_ahead: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and what would be right. `is_guess`: the head can't be known from what the log still has."""

    fold: KeyFold
    findings: list[Finding]
    is_guess: bool = False


def claimed_place(row: EventRow) -> Place:
    """Return where a row says it comes from; a row that was typed in may say nothing."""
    return BY_HAND if None in (row.generation, row.offset) else row.place


def expected_rows(fold: KeyFold) -> list[EventRow]:
    """Return the rows that the records of the window leave."""
    return [row for piece in fold.pieces for row in piece.rows]


def compare(case: Case, stored: Stored, base: JournalMeta | None) -> Verdict:
    """Judge a journal that was in state `base` before its window."""
    fold = fold_key(base, case.entries)
    findings = [*_meta_findings(case, stored.meta, fold.meta), *_row_findings(case, stored, fold)]
    is_known = case.window.is_whole or (fold.meta is not None and not case.window.is_before(fold.meta.place))
    return Verdict(fold, findings, is_guess=not is_known)


def _meta_findings(case: Case, stored: JournalMeta | None, right: JournalMeta | None) -> list[Finding]:
    if stored is not None and stored.is_purged and stored.place < Place(0, 0):
        stored = None  # a repair's marker, where a head had been added
    if stored == right:
        return []
    if stored is None:
        if right is None or (right.is_purged and _purge_time_ms(case) < case.markers_gone_before_ms):
            return []
        return [_finding(case, FindingKind.META_MISSING, offset=right.offset)]
    if right is None:
        return [_finding(case, FindingKind.META_ADDED, offset=stored.offset)]
    return [_finding(case, FindingKind.META_CHANGED, offset=right.offset, detail=differing(stored, right))]


def _purge_time_ms(case: Case) -> int:
    return max((entry.timestamp_ms for entry in case.entries if isinstance(entry.action, Purge)), default=0)


def _row_findings(case: Case, stored: Stored, fold: KeyFold) -> list[Finding]:
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


def _difference(case: Case, row: EventRow, right: EventRow) -> str:
    if row == right:
        return ""
    if not case.is_log_time_exact and right.timestamp_ms <= (row.log_time_ms or 0) <= case.highest_log_time_ms:
        right = msgspec.structs.replace(right, log_time_ms=row.log_time_ms)
    return differing(row, right)


def differing(one: msgspec.Struct, other: msgspec.Struct) -> str:
    """Return the names of the columns that differ."""
    return ", ".join(name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name))


def _row_finding(case: Case, kind: FindingKind, row: EventRow, detail: str = "") -> Finding:
    return _finding(case, kind, seq_nr=row.seq_nr, offset=row.offset, detail=detail)


def _finding(
    case: Case, kind: FindingKind, *, seq_nr: int | None = None, offset: int | None = None, detail: str = ""
) -> Finding:
    topic, partition = case.at
    return Finding(topic=topic, partition=partition, id=case.id, kind=kind, seq_nr=seq_nr, offset=offset, detail=detail)
