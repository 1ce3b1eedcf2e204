"""A store that keeps everything in a real one, and fails for journals whose id begins with "bad"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.config import StoreSettings
from headrace.errors import OperationFailed
from headrace.store import EventRow, JournalWrite, Store
from headrace.store import open_store as open_real_store


class FaultyWriter:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        if id_.startswith("bad"):
            raise OperationFailed(f"writing journal {id_!r}", "the test wants it so")
        await self._writer.write_rows(topic, id_, rows)

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        bad = [journal for journal in journals if journal.meta.id.startswith("bad")]
        await self._writer.write_journals([journal for journal in journals if journal not in bad])
        for meta, rows in bad:
            await self.write_rows(meta.topic, meta.id, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class FaultyStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.writer = FaultyWriter(store.writer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def open_store(address: str, settings: StoreSettings) -> Any:
    return FaultyStore(await open_real_store(address.removeprefix("faulty:"), settings=settings))
