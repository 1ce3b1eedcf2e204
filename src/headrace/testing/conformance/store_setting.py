"""The fixtures of the store's tests: an address, opened stores, values to write, edits by hand."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest
import pytest_asyncio

from headrace.config import StoreSettings
from headrace.model import TopicPartition
from headrace.store import (
    EventRow,
    JournalMeta,
    Place,
    ReplicatedOffset,
    SnapshotRow,
    Store,
    open_store,
    segment_of,
)

__all__ = [
    "EVERYTHING",
    "INCARNATION",
    "ByHand",
    "OpenStore",
    "StoreSetting",
    "event",
    "events",
    "head",
    "read_rows",
    "replicated",
    "seq_nrs",
    "snapshot",
]

EVERYTHING = 1_000
INCARNATION = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
NOW_MS = 1_790_000_000_123

OpenStore = Callable[..., Awaitable[Store]]


class ByHand(Protocol):
    """Edits that bypass Headrace: SQL or CQL as an operator would type it, with no place."""

    async def delete(self, topic: str, id_: str, row: EventRow) -> None:
        """Delete a row."""
        ...

    async def change(self, topic: str, id_: str, row: EventRow, *, payload: str, origin: str) -> None:
        """Change the text payload and the origin of a row."""
        ...

    async def add(self, topic: str, id_: str, row: EventRow) -> None:
        """Add a row with a text payload."""
        ...


@pytest.mark.asyncio
class StoreSetting:
    """The fixtures. A backend overrides `address` and `by_hand`; tests get `store`, and `another` for more clients."""

    @pytest.fixture
    def address(self) -> str:
        """Return where the store is."""
        raise NotImplementedError("override the fixture `address`")

    @pytest.fixture
    def by_hand(self) -> ByHand:
        """Return something that edits the store's rows directly."""
        raise NotImplementedError("override the fixture `by_hand`")

    @pytest_asyncio.fixture
    async def another(self, address: str) -> AsyncIterator[OpenStore]:
        """Open further clients of the same store, closed at the end."""
        opened: list[Store] = []

        async def open_another(settings: StoreSettings | None = None) -> Store:
            opened.append(await open_store(address, settings=settings))
            return opened[-1]

        yield open_another
        for store in opened:
            await store.close()

    @pytest_asyncio.fixture
    async def store(self, another: OpenStore) -> Store:
        """Open the store under test."""
        return await another()

    @pytest.fixture
    def topic(self) -> str:
        """Return an unused topic name."""
        return f"t-{uuid.uuid4().hex[:12]}"


def event(seq_nr: int, offset: int | None = None, *, size: int = 10, **columns: Any) -> EventRow:  # noqa: ANN401
    """Make a row; its offset is its seq_nr unless given."""
    given: dict[str, Any] = {
        "segment": segment_of(seq_nr, size),
        "generation": 0,
        "partition": 0,
        "offset": seq_nr if offset is None else offset,
        "log_time_ms": NOW_MS + seq_nr,
        "timestamp_ms": NOW_MS,
        "record_id": INCARNATION,
        "payload_type": "json",
        "payload": b'{"n":%d}' % seq_nr,
    }
    return EventRow(seq_nr=seq_nr, **{**given, **columns})


def events(first: int, last: int, *, size: int = 10) -> list[EventRow]:
    """Make rows `first` to `last`."""
    return [event(seq_nr, size=size) for seq_nr in range(first, last + 1)]


def head(topic: str, id_: str, offset: int, **columns: Any) -> JournalMeta:  # noqa: ANN401
    """Make a head."""
    given: dict[str, Any] = {
        "generation": 0,
        "partition": 0,
        "seq_nr": 1,
        "segment_size": 10,
        "record_id": INCARNATION,
        "created_ms": NOW_MS,
        "updated_ms": NOW_MS,
        "last_append": Place(0, offset),
    }
    return JournalMeta(topic=topic, id=id_, offset=offset, **{**given, **columns})


def snapshot(slot: int, offset: int, **columns: Any) -> SnapshotRow:  # noqa: ANN401
    """Make a snapshot that covers all up to the offset."""
    given: dict[str, Any] = {
        "seq_nr": offset,
        "generation": 0,
        "timestamp_ms": NOW_MS + offset,
        "record_id": INCARNATION,
        "payload_type": "json",
        "payload": b'{"at":%d}' % offset,
    }
    return SnapshotRow(slot=slot, offset=offset, **{**given, **columns})


def replicated(topic: str, offset: int, *, partition: int = 0, generation: int = 0) -> ReplicatedOffset:
    """Make a replicated offset."""
    return ReplicatedOffset(
        at=TopicPartition(topic, partition),
        generation=generation,
        offset=offset,
        log_time_ms=NOW_MS + offset,
        created_ms=NOW_MS,
        updated_ms=NOW_MS + offset,
        segment_size=7,
    )


async def read_rows(
    store: Store, topic: str, id_: str, *, size: int = 10, first: int = 1, last: int = EVERYTHING, page_size: int = 500
) -> list[EventRow]:
    """Read rows to the end."""
    pages = store.reader.rows(topic, id_, segment_size=size, first=first, last=last, page_size=page_size)
    return [row async for page in pages for row in page]


def seq_nrs(rows: Sequence[EventRow]) -> list[int]:
    """Return the seq_nrs of rows."""
    return [row.seq_nr for row in rows]


def deadline(within_s: float) -> Callable[[], bool]:
    """Return a function that returns True when the time is up."""
    end_s = time.monotonic() + within_s
    return lambda: time.monotonic() > end_s
