"""Repair of a journal after an audit: what the log says is written again, and what it does not know is removed.

Everything is written at its own place, as replication writes it. That wins over rows written by hand, which carry the
time of a wall clock, and loses to later records of the log. Rows without a place are removed at a place below every
record. This can't undo writes by hand that carry a place as write time; the audit reports them as not repaired.
"""

from __future__ import annotations

from headrace.pipeline.audits.findings import FindingKind
from headrace.pipeline.audits.judge import BY_HAND, Judgement, Stored, expected_rows
from headrace.pipeline.audits.windows import AuditWindow
from headrace.store import EventRow, JournalMeta, RowDeletion, Store

__all__ = ["repair_journal"]

_OF_META = (FindingKind.META_MISSING, FindingKind.META_CHANGED)


async def repair_journal(store: Store, window: AuditWindow, id_: str, stored: Stored, verdict: Judgement) -> None:
    """Repair a journal, in the order in which replication writes: rows, the head, removals."""
    topic = window.at.topic
    wrong = {(finding.seq_nr, finding.offset) for finding in verdict.findings if finding.seq_nr is not None}
    rows = [row for row in expected_rows(verdict.fold) if (row.seq_nr, row.offset) in wrong]
    if rows:
        await store.writer.write_rows(topic, id_, rows)
        await store.writer.write_gaps(topic, id_, [gap for piece in verdict.fold.pieces for gap in piece.gaps])
    kinds = {finding.kind for finding in verdict.findings}
    if kinds & set(_OF_META) and verdict.fold.meta is not None and not verdict.is_guess:
        await store.writer.write_meta(verdict.fold.meta)
    elif FindingKind.META_ADDED in kinds and not verdict.is_guess:
        await store.writer.write_meta(_purge_marker(window, id_, stored))
    if FindingKind.ROW_ADDED in kinds:
        await _remove(store, topic, id_, stored, verdict)


def _purge_marker(window: AuditWindow, id_: str, stored: Stored) -> JournalMeta:
    """Return a purge marker below every record, to replace a head that no record made. It expires automatically."""
    size = stored.meta.segment_size if stored.meta is not None else 1
    return JournalMeta(
        topic=window.at.topic,
        id=id_,
        generation=BY_HAND.generation,
        partition=window.at.partition,
        offset=BY_HAND.offset,
        seq_nr=0,
        segment_size=max(1, size or 1),
        is_purged=True,
        purged_at=BY_HAND,
    )


async def _remove(store: Store, topic: str, id_: str, stored: Stored, verdict: Judgement) -> None:
    """Remove rows that were added by hand, and again those that the journal's deletes and purges had removed."""
    added = {f.seq_nr for f in verdict.findings if f.kind is FindingKind.ROW_ADDED}
    rows: list[EventRow] = [*stored.within, *stored.wrong_before, *stored.ahead]
    segments = sorted({row.segment for row in rows if row.seq_nr in added})
    await store.writer.delete_rows(topic, id_, [RowDeletion(segment, None) for segment in segments], at=BY_HAND)
    for piece in verdict.fold.pieces:
        for deletion, place in piece.deletions:
            await store.writer.delete_rows(topic, id_, [deletion], at=place)
        if piece.purged_at is not None:
            await store.writer.delete_snapshots(topic, id_, at=piece.purged_at)
