"""The base of a judgement: the state of a journal before the records that the log still has. Pure.

If the log goes back to its beginning, there was no journal before. If its start was removed, the state before is
unknown, and the stored head is the only evidence. So the audit tries the states that could have led to what is stored:
the head itself, if no record of the window changed it; a journal at a seq_nr that its older rows, its head or the
records of the window suggest; and no journal at all. It takes the state that leaves the fewest findings. The true state
is among them, or one that the records treat in the same way, so a correct store gives no findings. What the head
carries over from before the window (its creation, its incarnation, its segment size) is believed.
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

_MAX_BASES = 64
_META = 3.0
_WEIGHTS = {
    FindingKind.META_CHANGED: _META,
    FindingKind.META_ADDED: _META,
    FindingKind.META_MISSING: _META,
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
