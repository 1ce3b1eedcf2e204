"""Journals on the embedded tier."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.suites.journal import JournalConformance
from tests.suites.journal_matrix import Case, JournalMatrix, all_cases, pairwise
from tests.suites.journal_setting import numbers, replicate

import headrace
from headrace.errors import Closed
from headrace.journal import HeadCache, Journal
from headrace.log import open_log
from headrace.model import Event, NewRecord, TopicPartition
from headrace.store import open_store
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.plugin import Size


class Embedded:
    """A folder for the log and the store."""

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def store_address(self, log_address: str) -> str:
        """Return the same folder."""
        return log_address


class TestEmbeddedJournal(Embedded, JournalConformance):
    """All that journals promise."""


class TestEmbeddedMatrix(Embedded, JournalMatrix):
    """The whole matrix at full size; else every pair of its columns."""

    @pytest.fixture
    def cases(self, size: Size) -> Sequence[Case]:
        """Return the cases to run."""
        cases = all_cases()
        return cases if size(0, 1) else pairwise(cases, most=420)


async def test_a_store_that_was_emptied_beside_a_journal_hides_nothing(tmp_path: Path) -> None:
    """J2, E4: what was replicated is read from the log again, though nobody replicates it into the store again."""
    log, store = await open_log(f"embedded:{tmp_path}"), await open_store(f"embedded:{tmp_path}")
    cache = HeadCache(log, store.reader, trim_every_s=0.01)
    journal = Journal(log, store, "t", cache=cache, partitions=1)

    async def is_trimmed() -> bool:
        return cache.replicated(TopicPartition("t", 0)) is not None

    async def is_complete() -> bool:
        return await numbers(journal, "k") == [1, 2]

    await journal.append("k", [Event(1, 1), Event(2, 2)])
    assert await numbers(journal, "k") == [1, 2]
    await replicate(log, store, "t")
    await eventually(is_trimmed)
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        for table in ("events", "heads", "replicated"):
            database.execute(f"DELETE FROM {table}")
        database.commit()
    await eventually(is_complete)
    await cache.close()
    await store.close()
    await log.close()


@pytest.mark.parametrize("part", ["store", "log"])
async def test_a_connection_that_is_closed_is_closed_whole_also_if_it_is_cancelled(tmp_path: Path, part: str) -> None:
    """Cancelled while it closes, `connect` leaves nothing running, and passes the cancellation on."""
    opened: list[headrace.Headrace] = []

    async def use() -> None:
        async with headrace.connect(f"embedded:{tmp_path}") as hr:
            opened.append(hr)
            await hr.journal("t").append("k", [Event(1)])
            closed: Any = getattr(hr, part)
            close = closed.close

            async def close_and_cancel() -> None:
                using.cancel()
                await close()

            closed.close = close_and_cancel

    before = asyncio.all_tasks()
    using = asyncio.ensure_future(use())
    await asyncio.wait([using])
    assert using.cancelled()
    with pytest.raises(Closed):
        await opened[0].log.append([NewRecord("t", b"k", None)])
    assert asyncio.all_tasks() <= before
