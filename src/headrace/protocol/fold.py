"""The fold: the effect of one action on one journal. Replication, reads, the head cache and the audit all use it.

A journal's state is its JournalMeta. Actions come in the order of the log and are applied one by one; nothing is
collapsed across kinds, because append 2–4, delete 6, append 5–6 must end with 5 and 6 alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from uuid import UUID, uuid5

import msgspec

from headrace.model import Record
from headrace.protocol.actions import Action, Append, Delete, Mark, Poison, Purge, Verdict
from headrace.store import DEFAULT_SEGMENT_SIZE, JournalMeta, Place

__all__ = ["Effect", "Entry", "Step", "exists", "held_place", "pointer_of", "record_id_of", "reopened", "step"]

_NAMESPACE = UUID("6f6b2f0e-5d0c-5a86-9d0e-4f1f2f3c9a01")


class Effect(Enum):
    """What an action did."""

    NOTHING = "nothing"
    APPENDED = "appended"
    VOID = "void"
    DELETED = "deleted"
    PURGED = "purged"
    HELD = "held"


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record of one journal: its action and its place. `segment_size` is the topic's at that place."""

    topic: str
    id: str
    generation: int
    partition: int
    offset: int
    timestamp_ms: int
    action: Action
    log_time_ms: int = 0
    segment_size: int = DEFAULT_SEGMENT_SIZE
    record: Record | None = None

    @property
    def place(self) -> Place:
        """The entry's place in the order of its key."""
        return Place(self.generation, self.offset)


class Step(msgspec.Struct, frozen=True, gc=False):
    """The state after an action, what the action did, and the reason if it did nothing."""

    meta: JournalMeta | None
    effect: Effect
    reason: str = ""


def exists(meta: JournalMeta | None) -> bool:
    """Return True if clients see a journal in this state."""
    return meta is not None and not meta.is_purged


def pointer_of(meta: JournalMeta | None) -> int:
    """Return the journal's last seq_nr; 0 if there is no journal. A delete_to above seq_nr counts as seq_nr."""
    if meta is None or meta.is_purged:
        return 0
    return max(meta.seq_nr, meta.delete_to)


def held_place(meta: JournalMeta | None) -> Place | None:
    """Return the place of the record that a journal is held from; None if it is not held."""
    return None if meta is None or meta.held_from is None else Place(meta.generation, meta.held_from)


def record_id_of(topic: str, generation: int, partition: int, offset: int) -> UUID:
    """Return the id of the incarnation that began with a record; a replay computes the same one."""
    return uuid5(_NAMESPACE, f"{topic}\n{generation}\n{partition}\n{offset}")


def step(meta: JournalMeta | None, entry: Entry, *, expire_after: str | None = None) -> Step:
    """Apply one action that lies above the state's place."""
    if meta is not None and meta.held_from is not None:
        return Step(meta, Effect.HELD, f"behind offset {meta.held_from}")
    match entry.action:
        case Mark() | Verdict():
            return Step(meta, Effect.NOTHING)
        case Append():
            return _append(meta, entry, entry.action, expire_after)
        case Delete():
            return _delete(meta, entry, entry.action)
        case Purge():
            return _purge(meta, entry, entry.action)
        case Poison():
            return Step(_held(meta, entry), Effect.HELD, entry.action.reason)


def reopened(meta: JournalMeta | None, verdict: Entry, held: Sequence[Entry]) -> tuple[JournalMeta, list[Entry]] | None:
    """Return the state without its hold, and the entries that were held and are not part of the state, in order.

    None if the verdict is about another hold. A state may be held past the record that can't be decoded: its writer
    died while it applied the held entries.
    """
    action = verdict.action
    if not isinstance(action, Verdict) or meta is None or meta.held_from != action.held_from:
        return None
    if meta.offset == meta.held_from and not action.is_about(meta.place):
        return None
    by_place = {entry.place: entry for entry in held}
    opened = msgspec.structs.replace(meta, held_from=None)
    if not action.is_skip and meta.offset == action.held_from:
        opened = msgspec.structs.replace(opened, offset=action.held_from - 1)
    return opened, [by_place[place] for place in sorted(by_place)]


def _append(meta: JournalMeta | None, entry: Entry, append: Append, expire_after: str | None) -> Step:
    pointer = pointer_of(meta)
    if reason := _why_void(meta, append, pointer):
        return Step(meta, Effect.VOID, reason)
    base = meta if meta is not None and exists(meta) else _born(meta, entry, delete_to=append.first - 1)
    changed = msgspec.structs.replace(
        base,
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        seq_nr=append.last,
        last_append=entry.place,
        updated_ms=entry.timestamp_ms,
        expire_after=expire_after,
        origin=append.origin,
    )
    return Step(changed, Effect.APPENDED)


def _why_void(meta: JournalMeta | None, append: Append, pointer: int) -> str:
    if append.first <= pointer:
        return f"its first seq_nr {append.first} is not above the journal's, {pointer}"
    if append.expected is not None and append.expected != pointer:
        return f"it expected seq_nr {append.expected}, the journal was at {pointer}"
    purged_at = meta.purged_at if meta is not None else None
    if append.since is not None and purged_at is not None and purged_at >= append.since:
        return f"a purge at offset {purged_at.offset} came after its first attempt"
    return ""


def _delete(meta: JournalMeta | None, entry: Entry, delete: Delete) -> Step:
    if not _is_meant(meta, delete):
        return Step(meta, Effect.VOID, "the journal that it was meant for had been purged")
    to = delete.to
    if meta is None or not exists(meta):
        born = _born(meta, entry, delete_to=to)
        return Step(msgspec.structs.replace(born, seq_nr=to), Effect.DELETED)
    clamped = max(min(to, pointer_of(meta)), meta.delete_to)
    changed = msgspec.structs.replace(
        meta,
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        seq_nr=pointer_of(meta),
        delete_to=clamped,
        updated_ms=entry.timestamp_ms,
    )
    return Step(changed, Effect.DELETED)


def _is_meant(meta: JournalMeta | None, delete: Delete) -> bool:
    """Return True if a delete applies to the journal as it is: it names this incarnation, or none at all."""
    if delete.incarnation is None:
        return True
    return meta is not None and exists(meta) and meta.record_id in (None, delete.incarnation)


def _purge(meta: JournalMeta | None, entry: Entry, purge: Purge) -> Step:
    seen, last = purge.last_append, meta.last_append if meta is not None else None
    if seen is not None and last is not None and last > seen:
        return Step(meta, Effect.VOID, f"an append at offset {last.offset} came after what the purge had seen")
    marker = JournalMeta(
        topic=entry.topic,
        id=entry.id,
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        seq_nr=max(meta.seq_nr, meta.delete_to) if meta is not None else 0,
        delete_to=meta.delete_to if meta is not None else 0,
        segment_size=meta.segment_size if meta is not None else entry.segment_size,
        is_purged=True,
        purged_at=entry.place,
    )
    return Step(marker, Effect.PURGED)


def _born(meta: JournalMeta | None, entry: Entry, *, delete_to: int) -> JournalMeta:
    """Return the first state of an incarnation, before its first action sets its numbers."""
    return JournalMeta(
        topic=entry.topic,
        id=entry.id,
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        seq_nr=0,
        delete_to=delete_to,
        segment_size=entry.segment_size,
        purged_at=meta.purged_at if meta is not None else None,
        created_ms=entry.timestamp_ms,
        updated_ms=entry.timestamp_ms,
        record_id=record_id_of(entry.topic, entry.generation, entry.partition, entry.offset),
    )


def _held(meta: JournalMeta | None, entry: Entry) -> JournalMeta:
    base = meta or msgspec.structs.replace(_born(None, entry, delete_to=0), is_purged=True, record_id=None)
    return msgspec.structs.replace(
        base,
        generation=entry.generation,
        partition=entry.partition,
        offset=entry.offset,
        held_from=entry.offset,
    )
