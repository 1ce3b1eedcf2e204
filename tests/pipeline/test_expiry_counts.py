"""What the expiry counts: purges that took effect. On the embedded tier, without Spark."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from tests.suites.journal_setting import new_topic, records_of, replicate

from headrace.journal import Journal
from headrace.log import Log, open_log
from headrace.model import Event, NewRecord, Position, TopicPartition
from headrace.pipeline import Endpoints
from headrace.pipeline.jobs import expiry, partition_jobs
from headrace.pipeline.jobs.expiry import purge_expired_of
from headrace.store import Store, open_store

LATER_MS = 4_000_000_000_000


@pytest_asyncio.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = await open_log(f"embedded:{tmp_path}")
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(f"embedded:{tmp_path}")
    yield opened
    await opened.close()


class MeanwhileLog:
    """A log on which something happens just before the next append: what a rival does between a look and a write."""

    def __init__(self, log: Log, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._log = log
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        await self._meanwhile()
        return await self._log.append(records)


async def expiring(log: Log, store: Store, *ids: str) -> Journal:
    journal = Journal(log, store, await new_topic(log), cache=None)
    for id_ in ids:
        await journal.append(id_, [Event(1, 1)], expire_after=timedelta(days=1))
    await replicate(log, store, journal.topic)
    return journal


async def test_a_purge_that_changes_nothing_is_not_counted(log: Log, store: Store) -> None:
    """Journals that the log has renewed or purged already are neither purged again nor counted."""
    journal = await expiring(log, store, "due", "renewed", "gone")
    await journal.append("renewed", [Event(2, 2)])
    await journal.purge("gone")
    at = TopicPartition(journal.topic, 0)
    first = await purge_expired_of(log, store, at, LATER_MS)
    assert (first.journals, first.purged) == (3, 1)
    written = len(await records_of(log, journal.topic))
    again = await purge_expired_of(log, store, at, LATER_MS)
    assert (again.journals, again.purged) == (3, 0), "the store has not heard of the first run yet"
    assert len(await records_of(log, journal.topic)) == written
    assert [await journal.pointer(id_) for id_ in ("due", "renewed", "gone")] == [None, 2, None]


@pytest.mark.parametrize("is_renewed", [True, False], ids=["renewed", "purged"])
async def test_what_a_rival_does_between_the_look_and_the_purge_is_seen(
    log: Log, store: Store, is_renewed: bool
) -> None:
    """A purge that a rival's append makes void, or that comes after a rival's purge, is not counted."""
    journal = await expiring(log, store, "contended", "due")

    async def meanwhile() -> None:
        await (journal.append("contended", [Event(2, 2)]) if is_renewed else journal.purge("contended"))

    slow: Any = MeanwhileLog(log, meanwhile)
    report = await purge_expired_of(slow, store, TopicPartition(journal.topic, 0), LATER_MS)
    assert (report.journals, report.purged) == (2, 1)
    assert await journal.pointer("contended") == (2 if is_renewed else None)
    assert await journal.pointer("due") is None


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """K9: no journal is purged hours before its time because the machine is in another time zone."""
    asked: list[int] = []

    def job(*given: Any) -> None:
        asked.append(given[-1]["now_ms"])
        raise KeyboardInterrupt  # before anything of Spark is used

    monkeypatch.setattr(expiry, "partitions_ever", lambda *_: [TopicPartition("t", 0)])
    monkeypatch.setattr(partition_jobs, "job_frame", job)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        for now in (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12)):  # noqa: DTZ001 - the claim
            with pytest.raises(KeyboardInterrupt):
                expiry.purge_expired(cast("Any", None), Endpoints.of("embedded:./none"), now=now)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert asked == [1_767_268_800_000] * 2
