"""Judgement of one journal, and of a partition's replicated offset: is the store what the log makes of it? Pure.

Rows from before the window can't be compared with records that the log has removed. They are reported only if they
contradict the journal's own head: rows that it says are deleted, that are above its seq_nr, or of another incarnation.

The base of a judgement is the state of the journal before the records that the log still has. If the log goes back to
its beginning, there was no journal before. If its start was removed, the state before is unknown, and the stored head
is the only evidence. So the audit tries the states that could have led to what is stored: the head itself, if no record
of the window changed it; a journal at a seq_nr that its older rows, its head or the records of the window suggest; and
no journal at all. It takes the state that leaves the fewest findings. The true state is among them, or one that the
records treat in the same way, so a correct store gives no findings. What the head carries over from before the window
(its creation, its incarnation, its segment size) is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from uuid import UUID

import msgspec

from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.windows import AuditWindow, KeyWindow, WindowStretch, generation_at
from headrace.protocol import Append, Delete, Entry, KeyFold, Purge, fold_key
from headrace.store import DEFAULT_SEGMENT_SIZE, EventRow, JournalMeta, Place

__all__ = [
    "BY_HAND",
    "JournalCase",
    "Judgement",
    "Stored",
    "claimed_place",
    "compare",
    "differing",
    "equally_likely",
    "expected_rows",
    "judge",
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


_MAX_BASES = 64
_META_WEIGHT = 3.0
_WEIGHTS = {
    FindingKind.META_CHANGED: _META_WEIGHT,
    FindingKind.META_ADDED: _META_WEIGHT,
    FindingKind.META_MISSING: _META_WEIGHT,
    FindingKind.ROW_ADDED: 1.5,
}
_UNKNOWN = UUID(int=0)


def judge(case: JournalCase, stored: Stored) -> Judgement:
    """Compare a journal with the store, from the likeliest state before its window."""
    if case.window.is_whole:
        return compare(case, stored, None)
    best: Judgement | None = None
    for base in _bases(case, stored):
        verdict = _compare_from(case, stored, base)
        if best is None or _weight(verdict) < _weight(best):
            best = verdict
        if not best.findings:
            break
    if best is None:
        raise AssertionError("there is always the state of no journal")
    return best


def equally_likely(case: JournalCase, stored: Stored, verdict: Judgement) -> Iterator[Judgement]:
    """Yield judgements from other states before the window that leave no more findings, and other events with tags.

    Rows and head of a journal that was purged within the window do not tell which appends before the purge counted.
    """
    if case.window.is_whole:
        return
    seen = [verdict.fold.tagged]
    for base in _bases(case, stored):
        other = _compare_from(case, stored, base)
        if _weight(other) <= _weight(verdict) and other.fold.tagged not in seen:
            seen.append(other.fold.tagged)
            yield other


def _weight(verdict: Judgement) -> float:
    """Return how unlikely these findings are together: heads are more reliable than rows, and rows are lost first."""
    return sum(_WEIGHTS.get(finding.kind, 1.0 if finding.offset is not None else 1.5) for finding in verdict.findings)


def _compare_from(case: JournalCase, stored: Stored, base: JournalMeta | None) -> Judgement:
    """Compare, and add a finding if the row of the last event before the window is missing."""
    verdict = compare(case, stored, base)
    if base is None or base.is_purged or base.place == (stored.meta.place if stored.meta else None):
        return verdict
    deleted_to = stored.meta.delete_to if stored.meta is not None else 0
    if base.seq_nr > max(stored.last_before, deleted_to) and not _is_purged_within(case, stored):
        gone = Finding(
            topic=case.at.topic,
            partition=case.at.partition,
            id=case.id,
            kind=FindingKind.ROW_MISSING,
            seq_nr=base.seq_nr,
            detail="its record left the log",
        )
        verdict.findings.append(gone)
    return verdict


def _is_purged_within(case: JournalCase, stored: Stored) -> bool:
    purged_at = stored.meta.purged_at if stored.meta is not None else None
    return purged_at is not None and not case.window.is_before(purged_at)


def _bases(case: JournalCase, stored: Stored) -> Iterator[JournalMeta | None]:
    """Yield the states that the journal may have had before the window, the likeliest first."""
    meta, window = stored.meta, case.window
    if meta is not None and window.is_before(meta.place):
        yield meta
    witness = meta if meta is not None else _guessed(case, stored)
    if witness is not None:
        for count, seq_nr in enumerate(_seq_nrs(case, stored)):
            if count < _MAX_BASES:
                yield from _existing(case, witness, seq_nr)
    if meta is not None and meta.is_purged and meta.held_from is not None:
        below = _below(case)  # there was no journal, and a record that can't be decoded had been skipped before
        yield msgspec.structs.replace(meta, generation=below.generation, offset=below.offset, held_from=None)
    yield _absent(case, meta)


def _existing(case: JournalCase, meta: JournalMeta, seq_nr: int) -> Iterator[JournalMeta]:
    """Yield the journal at a seq_nr, once for each possible last append and incarnation.

    Purges depend on the last append, deletes on the incarnation.
    """
    below = _below(case)
    for last_append, record_id in product(_last_appends(case, meta), _incarnations(case, meta)):
        yield msgspec.structs.replace(
            meta,
            generation=below.generation,
            offset=below.offset,
            seq_nr=seq_nr,
            delete_to=min(meta.delete_to, seq_nr),
            last_append=last_append,
            is_purged=False,
            purged_at=_purged_before(case, meta),
            held_from=None,
            record_id=record_id,
        )


def _incarnations(case: JournalCase, meta: JournalMeta) -> list[UUID]:
    """Return the possible incarnations: the head's, or earlier ones that deletes of the window refer to."""
    if meta.record_id is not None and (meta.purged_at is None or case.window.is_before(meta.purged_at)):
        return [meta.record_id]
    deletes = [entry.action for entry in case.entries if isinstance(entry.action, Delete)]
    meant = [delete.incarnation for delete in deletes if delete.incarnation is not None]
    return list(dict.fromkeys([*meant, meta.record_id or _UNKNOWN]))


def _last_appends(case: JournalCase, meta: JournalMeta) -> list[Place | None]:
    """Return the possible places of the last append: the head's, if it was before the window."""
    last = meta.last_append
    if not meta.is_purged and (last is None or case.window.is_before(last)):
        return [last]
    purges = [entry.action for entry in case.entries if isinstance(entry.action, Purge)]
    seen = [purge.last_append for purge in purges if purge.last_append is not None]
    return [_below(case), *(place for place in seen if case.window.is_before(place)), *([None] if seen else [])]


def _absent(case: JournalCase, meta: JournalMeta | None) -> JournalMeta | None:
    """Return None for no journal, or the marker of a journal that was purged before the window."""
    purged_at = _purged_before(case, meta) if meta is not None else None
    if meta is None or purged_at is None:
        return None
    return JournalMeta(
        topic=meta.topic,
        id=meta.id,
        generation=purged_at.generation,
        partition=meta.partition,
        offset=purged_at.offset,
        seq_nr=0,
        segment_size=meta.segment_size,
        is_purged=True,
        purged_at=purged_at,
    )


def _guessed(case: JournalCase, stored: Stored) -> JournalMeta | None:
    """Return a guessed head for rows without a head; a repair does not write it."""
    if not stored.within:
        return None
    row = stored.within[0]
    size = case.entries[0].segment_size if case.entries else 0
    return JournalMeta(
        topic=case.at.topic,
        id=case.id,
        generation=row.generation or 0,
        partition=case.at.partition,
        offset=0,
        seq_nr=0,
        segment_size=size or DEFAULT_SEGMENT_SIZE,
        record_id=row.record_id,
    )


def _seq_nrs(case: JournalCase, stored: Stored) -> Iterator[int]:
    """Yield the possible seq_nrs of the journal: only these change the effect of the records."""
    candidates = [stored.last_before]
    if stored.meta is not None:
        candidates += [stored.meta.delete_to, stored.meta.seq_nr]
    appends = [entry.action for entry in case.entries if isinstance(entry.action, Append)]
    candidates += [append.first - 1 for append in appends]
    candidates += [max((append.last for append in appends), default=0)]
    candidates += [n for a in appends if a.expected is not None for n in (a.expected, a.expected - 1, a.expected + 1)]
    yield from dict.fromkeys(number for number in candidates if number >= max(stored.last_before, 1))


def _purged_before(case: JournalCase, meta: JournalMeta) -> Place | None:
    purged_at = meta.purged_at
    return purged_at if purged_at is not None and case.window.is_before(purged_at) else None


def _below(case: JournalCase) -> Place:
    first = case.window.first
    return Place(first.generation, first.offset - 1)
