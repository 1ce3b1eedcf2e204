"""Values that only one key of a partition may have: who holds them, and who may not have them.

They are looked up in the index that a state declares as unique. What is checked here stays true only while nobody else
writes: the commit queue claims both the keys and the rows of the index first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from headrace.errors import NotUnique
from headrace.state.changelog import StateWrite
from headrace.state.declaration import index_range
from headrace.state.keys import after_prefix
from headrace.state.replica import StateReplica
from headrace.state.table import index_prefix, shown_index_value
from headrace.state.unit_of_work import UnitOfWork

__all__ = ["DuplicateValue", "check_unique", "expire_holders", "find_duplicates", "unique_rows"]

_ROWS = 64
_PAGE = 500


@dataclass(frozen=True, slots=True)
class DuplicateValue:
    """A value that must be unique, and two keys that have it."""

    index: str
    value: str
    key: str
    holder: str


def unique_rows(replica: StateReplica, writes: Mapping[bytes, StateWrite]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield index, row and key of each value that must be unique."""
    if replica.spec.unique:
        for key, write in writes.items():
            if write.value is not None:
                value = replica.codec.decode(write.value)
                for name in replica.spec.unique:
                    for row in replica.spec.rows_of(name, value):
                        yield name, index_prefix(row), key


def expire_holders(unit: UnitOfWork) -> None:
    """Delete keys that are due and hold a value that this unit wants for another key."""
    for replica, writes in [each for each in unit.writes.items() if each[0].spec.unique]:
        for _, row, _ in list(unique_rows(replica, writes)):
            for holder in _holders(replica, row):
                unit.expire(replica, holder)


def check_unique(unit: UnitOfWork) -> None:
    """Refuse a value that another key has. A key that the same unit writes holds what it writes there."""
    for replica, writes in unit.writes.items():
        claimed: dict[bytes, bytes] = {}
        for name, row, key in unique_rows(replica, writes):
            rivals = [claimed[row]] if row in claimed else []
            rivals += [holder for holder in _holders(replica, row) if holder not in writes]
            if rivals:
                shown = [repr(replica.keys.decode(each)) for each in (key, rivals[0])]
                raise NotUnique(replica.spec.name, name, shown_index_value(row), *shown)
            claimed[row] = key


async def find_duplicates(replica: StateReplica) -> AsyncIterator[DuplicateValue]:
    """Yield the values that must be unique and are not: written before that was declared. Others run in between."""
    for name in replica.spec.unique:
        start, end = index_range(name)
        value, holder = b"", b""
        while rows := replica.rows(start, end, limit=_PAGE):
            for row, key in rows:
                found = row[: len(row) - len(key)]
                if found != value:
                    value, holder = found, key
                else:
                    shown = [repr(replica.keys.decode(each)) for each in (key, holder)]
                    yield DuplicateValue(name, shown_index_value(value), *shown)
            start = rows[-1][0] + b"\x00"
            await asyncio.sleep(0)


def _holders(replica: StateReplica, row: bytes) -> list[bytes]:
    """Return the keys that an index has under this value."""
    holders, start, end = list[bytes](), row, after_prefix(row)
    while rows := replica.rows(start, end, limit=_ROWS):
        holders += [key for _, key in rows]
        start = rows[-1][0] + b"\x00"
        if len(rows) < _ROWS:
            break
    return holders
