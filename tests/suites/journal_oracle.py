"""What journals are after a run of records, computed the plain way: one record after another, dicts and lists.

It shares nothing with the fold but the codec and the names of incarnations, so that the two can be held against each
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model import Record, StoredEvent
from headrace.protocol.actions import Append, Delete, Poison, Purge
from headrace.protocol.events import events_of_record
from headrace.protocol.fold import record_id_of
from headrace.protocol.headers import decode_action

__all__ = ["Oracle", "PlainJournal"]


@dataclass(slots=True)
class PlainJournal:
    """One journal: its live events by number, its last number, what was deleted, and where it began."""

    born: int
    seq_nr: int = 0
    delete_to: int = 0
    last_append: int = -1
    expire_after: str | None = None
    events: dict[int, StoredEvent] = field(default_factory=dict)
    held_from: int | None = None

    def visible(self) -> tuple[Any, ...]:
        """Return what a client can see: the last number and the events."""
        return self.seq_nr, tuple(self.events[n] for n in sorted(self.events))


class Oracle:
    """Journals by id. `void` counts what changed nothing."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.journals: dict[str, PlainJournal] = {}
        self.purged_at: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.void = 0
        for record in records:
            self.apply(record)

    def visible(self, id_: str) -> tuple[Any, ...]:
        """Return what a client sees of a journal; (None, ()) if there is none."""
        journal = self.journals.get(id_)
        return journal.visible() if journal is not None else (None, ())

    def copy_of(self, id_: str) -> PlainJournal | None:
        """Return a journal as it is now."""
        journal = self.journals.get(id_)
        return replace(journal, events=dict(journal.events)) if journal is not None else None

    def apply(self, record: Record) -> None:
        """Apply one record."""
        action = decode_action(record)
        if action is None or record.key is None:
            return
        id_ = record.key.decode()
        if id_ in self.held:
            return
        if isinstance(action, Append):
            self._append(id_, record, action)
        elif isinstance(action, Delete):
            self._delete(id_, record, action)
        elif isinstance(action, Purge):
            self._purge(id_, record, action)
        elif isinstance(action, Poison):
            self.held[id_] = record.offset

    def _append(self, id_: str, record: Record, action: Append) -> None:
        journal = self.journals.get(id_)
        pointer = journal.seq_nr if journal is not None else 0
        is_late = action.since is not None and self.purged_at.get(id_, -1) >= action.since.offset
        if action.first <= pointer or action.expected not in (None, pointer) or is_late:
            self.void += 1
            return
        if journal is None:
            journal = self.journals[id_] = PlainJournal(record.offset, delete_to=action.first - 1)
        decoded = events_of_record(id_, record, action)
        journal.events.update({event.seq_nr: event for event in decoded})
        journal.seq_nr, journal.last_append = action.last, record.offset
        journal.expire_after = decoded[0].expire_after

    def _delete(self, id_: str, record: Record, action: Delete) -> None:
        journal = self.journals.get(id_)
        if action.incarnation is not None and (
            journal is None or action.incarnation != record_id_of(record.topic, 0, record.partition, journal.born)
        ):
            self.void += 1
            return
        if journal is None:
            self.journals[id_] = PlainJournal(record.offset, seq_nr=action.to, delete_to=action.to)
            return
        to = min(action.to, journal.seq_nr)
        journal.delete_to = max(journal.delete_to, to)
        journal.events = {n: event for n, event in journal.events.items() if n > to}

    def _purge(self, id_: str, record: Record, action: Purge) -> None:
        journal = self.journals.get(id_)
        if action.last_append is not None and journal is not None and journal.last_append > action.last_append.offset:
            self.void += 1
            return
        self.journals.pop(id_, None)
        self.purged_at[id_] = record.offset
