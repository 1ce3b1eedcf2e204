"""What a journal was before the records that the log still has: pure.

Where the log goes back to its beginning, nothing was. Where its start was cut off, the state before is unknown, and the
store's own head is the only witness. So audit tries the states that could have led to what is there: the head itself,
if it says that no record of the window counted; a journal at a seq_nr that its older rows, its head or the records of
the window suggest; none at all. The one that leaves the fewest findings is taken. The true state is among them, or one
that the records treat alike, so a store that is right gives no findings; what the head carries on from before the
window (its creation, its incarnation, its segment size) is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from uuid import UUID

import msgspec

from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.judge import JournalCase, Judgement, Stored, compare
from headrace.protocol import Append, Delete, Purge
from headrace.store import DEFAULT_SEGMENT_SIZE, JournalMeta, Place

__all__ = ["judge"]

_MOST = 64
_META = 3.0
_WEIGHTS = {
    FindingKind.META_CHANGED: _META,
    FindingKind.META_ADDED: _META,
    FindingKind.META_MISSING: _META,
    FindingKind.ROW_ADDED: 1.5,
}
_UNKNOWN = UUID(int=0)


def judge(case: JournalCase, stored: Stored) -> Judgement:
    """Compare a journal with the store, whatever is known of the time before its window."""
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


def _weight(verdict: Judgement) -> float:
    """Return how unlikely it is that somebody did all this: a head is the better witness, and rows are lost first."""
    return sum(_WEIGHTS.get(finding.kind, 1.0 if finding.offset is not None else 1.5) for finding in verdict.findings)


def _compare_from(case: JournalCase, stored: Stored, base: JournalMeta | None) -> Judgement:
    """Compare, and miss the row that the journal must have had before the window."""
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
    """Yield the states that the journal may have been in, the likeliest first."""
    meta, window = stored.meta, case.window
    if meta is not None and window.is_before(meta.place):
        yield meta
    witness = meta if meta is not None else _guessed(case, stored)
    if witness is not None:
        for count, seq_nr in enumerate(_seq_nrs(case, stored)):
            if count < _MOST:
                yield from _existing(case, witness, seq_nr)
    yield _absent(case, meta)


def _existing(case: JournalCase, meta: JournalMeta, seq_nr: int) -> Iterator[JournalMeta]:
    """Yield the journal at a seq_nr, as often as its last append and its incarnation make a difference.

    Purges depend on the one, deletes on the other.
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
    """Return which incarnation the journal may have been: the head's, or one before it that deletes are meant for."""
    if meta.record_id is not None and (meta.purged_at is None or case.window.is_before(meta.purged_at)):
        return [meta.record_id]
    deletes = [entry.action for entry in case.entries if isinstance(entry.action, Delete)]
    meant = [delete.incarnation for delete in deletes if delete.incarnation is not None]
    return list(dict.fromkeys([*meant, meta.record_id or _UNKNOWN]))


def _last_appends(case: JournalCase, meta: JournalMeta) -> list[Place | None]:
    """Return when the journal may have been appended to last: what the head says, if that was before the window."""
    last = meta.last_append
    if not meta.is_purged and (last is None or case.window.is_before(last)):
        return [last]
    purges = [entry.action for entry in case.entries if isinstance(entry.action, Purge)]
    seen = [purge.last_append for purge in purges if purge.last_append is not None]
    return [_below(case), *(place for place in seen if case.window.is_before(place)), *([None] if seen else [])]


def _absent(case: JournalCase, meta: JournalMeta | None) -> JournalMeta | None:
    """Return no journal, or the marker of one that was purged before the window."""
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
    """Return a head for rows that have none and that no record of the window began; it can't be written."""
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
    """Yield the numbers that the journal may have been at: only these make a difference to what the records do."""
    told = [stored.last_before]
    if stored.meta is not None:
        told += [stored.meta.delete_to, stored.meta.seq_nr]
    appends = [entry.action for entry in case.entries if isinstance(entry.action, Append)]
    told += [append.first - 1 for append in appends]
    told += [max((append.last for append in appends), default=0)]
    told += [n for a in appends if a.expected is not None for n in (a.expected, a.expected - 1, a.expected + 1)]
    yield from dict.fromkeys(number for number in told if number >= max(stored.last_before, 1))


def _purged_before(case: JournalCase, meta: JournalMeta) -> Place | None:
    purged_at = meta.purged_at
    return purged_at if purged_at is not None and case.window.is_before(purged_at) else None


def _below(case: JournalCase) -> Place:
    first = case.window.first
    return Place(first.generation, first.offset - 1)
