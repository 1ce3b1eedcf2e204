"""The rows of a state in its store, and what a batch of changes does to them: decisions only, no I/O.

Rows by their first byte: `d` + key holds the entry of a key; `x` + the time it is due + key finds what is due; `i` +
the index's name + 00 + the indexed value + 00 + key finds keys by an index; `r` + key holds the last record of a
reserved key. All of them are made of the changelog alone. The 00 behind an indexed value is its end: another part of it
would begin with its type, and a text that goes on with ff.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from headrace.state.changelog import ChangelogRecord
from headrace.state.expiry import NEVER, expires_at
from headrace.state.keys import decode_parts
from headrace.state.ports import StoreWrite

__all__ = [
    "FORMAT",
    "INDEX_FORMAT",
    "PLAIN_ROW",
    "FoldedChanges",
    "IndexRow",
    "StateEntry",
    "data_range",
    "decode_entry",
    "due_range",
    "entry_row",
    "find_lasting",
    "fold_changes",
    "index_prefix",
    "is_plain",
    "key_of_due_row",
    "key_of_entry_row",
    "reserved_row",
    "shown_index_value",
]

FORMAT = 2
INDEX_FORMAT = 2

_DATA, _DUE, _INDEX, _RESERVED = b"d", b"x", b"i", b"r"
_HEAD = struct.Struct(">QQQH")
# The part of a head that is zero if no other rows stand for the key: when it is due, and how many rows of indexes.
_DERIVED_AT = 16
_NO_DERIVED = bytes(10)
_VALUE = slice(_HEAD.size, None)  # of an entry without rows of indexes
_TIME_BYTES = 8
PLAIN_ROW = bytes(_HEAD.size)
"""Stands for the row of a key that is there and has no other rows, where nothing else of it is of interest."""

# The row of an index without its first byte and the key: the index's name, 00, the encoded value, 00.
IndexRow: TypeAlias = bytes
Indexer: TypeAlias = Callable[[bytes], Sequence[IndexRow]]


class StateEntry(NamedTuple):
    """The value of a key, where and when it was written, when it is due, and which rows of indexes point to it."""

    value: bytes
    offset: int
    timestamp_ms: int
    expires_ms: int = NEVER
    index_rows: tuple[IndexRow, ...] = ()

    def encode(self) -> bytes:
        """Return the entry as the store keeps it."""
        head = _HEAD.pack(self.offset, self.timestamp_ms, self.expires_ms, len(self.index_rows))
        if not self.index_rows:
            return head + self.value
        rows = b"".join(len(row).to_bytes(4, "big") + row for row in self.index_rows)
        return head + rows + self.value


# Does what StateEntry._make does, without a call of a Python function.
_entry: Callable[[tuple[bytes, int, int, int, tuple[IndexRow, ...]]], StateEntry] = partial(tuple.__new__, StateEntry)


def decode_entry(data: bytes) -> StateEntry:
    """Return an entry that the store kept."""
    offset, timestamp_ms, expires_ms, count = _HEAD.unpack_from(data)
    if not count:
        return _entry((data[_HEAD.size :], offset, timestamp_ms, expires_ms, ()))
    at, rows = _HEAD.size, []
    for _ in range(count):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        rows.append(data[at + 4 : end])
        at = end
    return StateEntry(data[at:], offset, timestamp_ms, expires_ms, tuple(rows))


def find_lasting(find: Callable[[bytes], bytes | None], key: bytes) -> bytes | None:
    """Return the value of a key that is never due and in no index, as most are; None leaves it to `decode_entry`."""
    data = find(_DATA + key)
    return data[_VALUE] if data is not None and data.startswith(_NO_DERIVED, _DERIVED_AT) else None


def entry_row(key: bytes) -> bytes:
    """Return the row of a key's entry."""
    return _DATA + key


def reserved_row(key: bytes) -> bytes:
    """Return the row of a reserved key."""
    return _RESERVED + key


def key_of_entry_row(row: bytes) -> bytes:
    """Return the key of an entry's row."""
    return row[1:]


def data_range(start: bytes, end: bytes | None) -> tuple[bytes, bytes]:
    """Return the range of rows that holds the entries of a range of keys."""
    return _DATA + start, _DATA + end if end is not None else bytes([_DATA[0] + 1])


def due_range(now_ms: int) -> tuple[bytes, bytes]:
    """Return the range of rows of what is due."""
    return _DUE, _DUE + (now_ms + 1).to_bytes(_TIME_BYTES, "big")


def key_of_due_row(row: bytes) -> bytes:
    """Return the key that is due."""
    return row[1 + _TIME_BYTES :]


def index_prefix(row: IndexRow) -> bytes:
    """Return the prefix of the rows of one indexed value."""
    return _INDEX + row


def shown_index_value(prefix: bytes) -> str:
    """Return the indexed value of such a prefix, for messages."""
    parts = decode_parts(prefix.partition(b"\x00")[2][:-1])
    return repr(parts[0] if len(parts) == 1 else parts)


def is_plain(row: bytes, data: bytes | None) -> bool:
    """Return True for the row of an entry that is never due and in no index."""
    return data is not None and row[:1] == _DATA and data.startswith(_NO_DERIVED, _DERIVED_AT)


@dataclass(slots=True)
class FoldedChanges:
    """What a batch of records does: rows to write, changes that took effect, how many keys there are more or less."""

    writes: list[StoreWrite] = field(default_factory=list)
    changes: list[ChangelogRecord] = field(default_factory=list)
    keys: int = 0


def fold_changes(
    records: Iterable[ChangelogRecord],
    find: Callable[[bytes], bytes | None],
    *,
    default_ttl_ms: int | None,
    index: Indexer | None = None,
) -> FoldedChanges:
    """Apply records in order to the rows that `find` returns. A deletion of what is not there changes nothing.

    Owners spend much of their time here, and so do copies that are built from their log: the row of an entry that is
    never due and in no index is made without the entry.
    """
    rows, changes, keys, pack = dict[bytes, bytes | None](), list[ChangelogRecord](), 0, _HEAD.pack
    for record in records:
        key, offset, timestamp_ms, (value, ttl_ms, _, _) = record
        row = _DATA + key
        before = rows[row] if row in rows else find(row)
        if value is None and before is None:
            continue
        is_plain = (
            ttl_ms is None
            and default_ttl_ms is None
            and (before is None or before.startswith(_NO_DERIVED, _DERIVED_AT))
        )
        found = tuple(index(value)) if index is not None and value is not None else ()
        if found or not is_plain:
            previous = None if before is None else decode_entry(before)
            rows.update(_row_changes(key, previous, _entry_of(record, default_ttl_ms, found)))
        elif value is not None:
            rows[row] = pack(offset, timestamp_ms, NEVER, 0) + value
        else:
            rows[row] = None
        keys += (value is not None) - (before is not None)
        changes.append(record)
    return FoldedChanges(list(rows.items()), changes, keys)


def _entry_of(
    record: ChangelogRecord, default_ttl_ms: int | None, index_rows: tuple[IndexRow, ...]
) -> StateEntry | None:
    value, ttl_ms = record.write.value, record.write.ttl_ms
    if value is None:
        return None
    expires_ms = expires_at(record.timestamp_ms, default_ttl_ms if ttl_ms is None else ttl_ms)
    return StateEntry(value, record.offset, record.timestamp_ms, expires_ms, index_rows)


def _row_changes(key: bytes, previous: StateEntry | None, entry: StateEntry | None) -> list[StoreWrite]:
    """Return the writes that replace a key's rows: old ones out, new ones in."""
    stored: StoreWrite = (entry_row(key), entry.encode() if entry is not None else None)
    gone = set(_derived(key, previous)) if previous is not None else set()
    new = dict.fromkeys(_derived(key, entry), key) if entry is not None else {}
    writes: list[StoreWrite] = [(row, None) for row in gone - new.keys()]
    writes += [(row, value) for row, value in new.items() if row not in gone]
    return [*writes, stored]


def _derived(key: bytes, entry: StateEntry) -> list[bytes]:
    rows = [_INDEX + row + key for row in entry.index_rows]
    if entry.expires_ms != NEVER:
        rows.append(_DUE + entry.expires_ms.to_bytes(_TIME_BYTES, "big") + key)
    return rows
