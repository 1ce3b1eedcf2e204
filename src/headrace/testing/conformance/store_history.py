"""Histories of one journal: records of a log as writes to a store, and the state that must result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID, uuid5

from hypothesis import strategies as st

from headrace.model import TopicPartition
from headrace.store import EventRow, JournalMeta, Place, RowDeletion, SnapshotRow, Store, segment_of
from headrace.testing.conformance.store_setting import INCARNATION, event, head, read_rows, replicated, snapshot

__all__ = ["Histories", "History", "state_of"]

SIZE = 2
SLOTS = 2
Write = Callable[[Store], Awaitable[None]]
State = tuple[list[EventRow], JournalMeta | None, list[SnapshotRow], int | None]


@dataclass
class _Journal:
    """A journal while its history is played."""

    topic: str
    id: str
    writes: list[Write] = field(default_factory=list)
    rows: dict[int, EventRow] = field(default_factory=dict)
    slots: dict[int, SnapshotRow] = field(default_factory=dict)
    meta: JournalMeta | None = None
    seq_nr: int = 0
    delete_to: int = 0
    record_id: UUID = INCARNATION

    def play(self, kind: str, amount: int, place: Place) -> None:
        getattr(self, f"_{kind}")(amount, place)
        if kind in {"append", "delete"}:
            self._head(place)

    def _append(self, amount: int, place: Place) -> None:
        # Which columns a row has differs from place to place: no column of an earlier row may remain.
        some: dict[str, Any] = {"origin": "o"} if place.offset % 2 else {"tags": ("t",), "headers": {"h": "v"}}
        numbers = range(self.seq_nr + 1, self.seq_nr + 1 + amount)
        where = {"generation": place.generation, "record_id": self.record_id}
        rows = [event(number, place.offset, size=SIZE, **where, **some) for number in numbers]
        self.rows.update({row.seq_nr: row for row in rows})
        self.seq_nr += amount
        self.writes += map(self._write_row, rows)

    def _write_row(self, row: EventRow) -> Write:
        return lambda store: store.writer.write_rows(self.topic, self.id, [row])

    def _delete(self, amount: int, place: Place) -> None:
        to = min(self.delete_to + amount, self.seq_nr)
        if to <= self.delete_to:
            return
        last = segment_of(to, SIZE)
        deletions = [*(RowDeletion(n, None) for n in range(segment_of(self.delete_to + 1, SIZE), last))]
        self._remove([*deletions, RowDeletion(last, to)], place)
        self.rows = {number: row for number, row in self.rows.items() if number > to}
        self.delete_to = to

    def _purge(self, _: int, place: Place) -> None:
        self._remove([RowDeletion(n, None) for n in range(segment_of(max(self.seq_nr, 1), SIZE) + 1)], place)
        marker = {"is_purged": True, "purged_at": place, "record_id": None, "created_ms": None, "updated_ms": None}
        self._put(self._made(place, **marker))
        self.writes.append(lambda store: store.writer.delete_snapshots(self.topic, self.id, at=place))
        self.rows, self.slots, self.seq_nr, self.delete_to = {}, {}, 0, 0
        self.record_id = uuid5(INCARNATION, str(place))

    def _snapshot(self, amount: int, place: Place) -> None:
        row = snapshot(amount % SLOTS, place.offset, generation=place.generation, record_id=self.record_id)
        self.slots[row.slot] = row
        self.writes.append(lambda store: store.snapshots.save(self.topic, self.id, row))

    def _forget(self, amount: int, place: Place) -> None:
        slot = amount % SLOTS
        self.slots.pop(slot, None)
        self.writes.append(lambda store: store.snapshots.delete(self.topic, self.id, slot, at=place))

    def _head(self, place: Place) -> None:
        expiry = {"expire_after": "1 day", "expire_on_ms": 7} if place.offset % 3 else {}
        self._put(self._made(place, record_id=self.record_id, properties={f"p{place.offset}": "x"}, **expiry))

    def _made(self, place: Place, **columns: Any) -> JournalMeta:  # noqa: ANN401
        where = {"generation": place.generation, "seq_nr": self.seq_nr, "delete_to": self.delete_to}
        return head(self.topic, self.id, place.offset, segment_size=SIZE, **where, **columns)

    def _put(self, meta: JournalMeta) -> None:
        self.meta = meta
        self.writes.append(lambda store: store.writer.write_meta(meta))

    def _remove(self, deletions: Sequence[RowDeletion], place: Place) -> None:
        self.writes.append(lambda store: store.writer.delete_rows(self.topic, self.id, deletions, at=place))


Kind = Literal["append", "delete", "purge", "snapshot", "forget"]


@dataclass(frozen=True)
class History:
    """Records of one journal, each at the next place; the generation grows once, after `grown`."""

    records: tuple[tuple[Kind, int], ...]
    grown: int

    def writes(self, topic: str, id_: str) -> list[Write]:
        """Return what a replicator would write, in order."""
        writes = self._play(topic, id_).writes
        moves = [self._moved(id_, n) for n in range(len(self.records))]
        return [*writes, *(lambda store, move=move: store.writer.move_replicated(move) for move in moves)]

    def outcome(self, topic: str, id_: str) -> State:
        """Return the state that must result, whatever the order of the writes."""
        journal = self._play(topic, id_)
        rows = [journal.rows[number] for number in sorted(journal.rows)]
        slots = [journal.slots[slot] for slot in sorted(journal.slots)]
        last = self._place(len(self.records) - 1).offset if self.records else None
        return rows, journal.meta, slots, last

    def _play(self, topic: str, id_: str) -> _Journal:
        journal = _Journal(topic, id_)
        for n, (kind, amount) in enumerate(self.records):
            journal.play(kind, amount, self._place(n))
        return journal

    def _place(self, n: int) -> Place:
        return Place(0, n + 50) if n < self.grown else Place(1, n)

    def _moved(self, id_: str, n: int) -> Any:  # noqa: ANN401
        place = self._place(n)
        return replicated(f"of-{id_}", place.offset, generation=place.generation)


async def state_of(store: Store, topic: str, id_: str) -> State:
    """Return what the store holds of the journal."""
    moved = await store.reader.replicated(TopicPartition(f"of-{id_}", 0))
    return (
        await read_rows(store, topic, id_, size=SIZE),
        await store.reader.meta(topic, id_),
        list(await store.snapshots.load(topic, id_)),
        moved.offset if moved else None,
    )


_kinds: st.SearchStrategy[Kind] = st.sampled_from(
    ["append", "append", "append", "delete", "purge", "snapshot", "forget"]
)
Histories = st.builds(
    History,
    records=st.lists(st.tuples(_kinds, st.integers(1, 4)), max_size=10).map(tuple),
    grown=st.integers(0, 10),
)
