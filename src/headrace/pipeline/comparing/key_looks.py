"""Judging journals of a partition: their records from the log, their rows from the store, put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.journal.actions import Append
from headrace.journal.folding import Entry
from headrace.pipeline.comparing.bases import judge
from headrace.pipeline.comparing.findings import Finding
from headrace.pipeline.comparing.judging import Case, Stored, Verdict
from headrace.pipeline.comparing.key_windows import KeyWindow, Window
from headrace.pipeline.comparing.store_looks import look
from headrace.pipeline.comparing.tag_judging import TagVerdict
from headrace.store import DEFAULT_SEGMENT_SIZE, JournalMeta, Store

__all__ = ["KeyLook", "look_at_key"]


@dataclass(frozen=True, slots=True)
class KeyLook:
    """What one look at a journal showed. Without a verdict replication was at work there."""

    id: str
    stored: Stored | None = None
    verdict: Verdict | None = None
    tags: TagVerdict | None = None

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, in the views by tag too."""
        of_journal = self.verdict.findings if self.verdict is not None else []
        return [*of_journal, *(self.tags.findings if self.tags is not None else [])]

    @property
    def has_tag_findings(self) -> bool:
        """Whether something is wrong in the views by tag."""
        return self.tags is not None and bool(self.tags.findings)

    @property
    def is_clean(self) -> bool:
        """Whether the store has what it should."""
        return self.verdict is not None and not self.findings


async def look_at_key(
    store: Store, window: Window, id_: str, entries: Sequence[Entry], *, marker_ttl_s: float
) -> KeyLook:
    """Compare one journal. `entries` are its records, those that are not replicated yet included if they were read.

    A head or rows above the window are replication's that goes on, as long as the log has their records.
    """
    key_window = window.of_key(id_)
    entries = sorted((entry for entry in entries if not key_window.is_before(entry.place)), key=lambda e: e.place)
    sizes = [entry.segment_size for entry in entries if entry.segment_size] or [_size(window)]
    last = max((entry.action.last for entry in entries if isinstance(entry.action, Append)), default=0)
    stored = await look(store.reader, window.at.topic, id_, key_window, sizes, last)
    if stored is None or _is_ahead(stored.meta, key_window, entries):
        return KeyLook(id_)
    case = _case(window, key_window, id_, _sized(window, stored.meta, entries), marker_ttl_s)
    return KeyLook(id_, stored, judge(case, stored))


def _case(window: Window, key_window: KeyWindow, id_: str, entries: Sequence[Entry], marker_ttl_s: float) -> Case:
    return Case(
        at=window.at,
        id=id_,
        window=key_window,
        entries=[entry for entry in entries if not key_window.is_ahead(entry.place)],
        is_log_time_exact=window.is_log_time_exact,
        highest_log_time_ms=window.highest_log_time_ms,
        markers_gone_before_ms=int((time.time() - marker_ttl_s) * 1000),
        places_ahead=frozenset(entry.place for entry in entries if key_window.is_ahead(entry.place)),
    )


def _is_ahead(meta: JournalMeta | None, window: KeyWindow, entries: Sequence[Entry]) -> bool:
    """Say whether the head is of a record that replication has not passed yet."""
    if meta is None or not window.is_ahead(meta.place):
        return False
    return any(entry.place == meta.place for entry in entries)


def _sized(window: Window, meta: JournalMeta | None, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Give the records a segment size where the log does not tell theirs any more: the head's, or the topic's."""
    size = meta.segment_size if meta is not None else _size(window)
    return [entry if entry.segment_size else msgspec.structs.replace(entry, segment_size=size) for entry in entries]


def _size(window: Window) -> int:
    replicated = window.home.replicated
    return replicated.segment_size if replicated is not None else DEFAULT_SEGMENT_SIZE
