"""A log, a store and the shipped job between them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tests.suites.journal_setting import replicate

from headrace.config import PipelineSettings
from headrace.journal import Journal
from headrace.log import Log
from headrace.pipeline import BatchReport, Endpoints, Replication, Selection, Summary
from headrace.pipeline.spark.process import log_of, run, store_of, tag_writer_of
from headrace.store import EventRow, JournalMeta, Store, open_store
from headrace.tags.registry import TagRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

Dump = tuple[dict[str, JournalMeta], dict[str, list[EventRow]]]

# A topic that grows waits twice for the longest lease of its writers.
LEASE_S = 0.1


class Seen:
    """Remembers what a replication told."""

    def __init__(self) -> None:
        self.reports: list[BatchReport] = []
        self.events: list[str] = []

    def batch(self, report: BatchReport) -> None:
        self.reports.append(report)

    def event(self, text: str) -> None:
        self.events.append(text)


class Tier:
    """Everything a test of the pipeline needs, for blocking code: Spark's driver is not asynchronous."""

    def __init__(self, spark: SparkSession, endpoints: Endpoints, crash_file: Path) -> None:
        self.spark = spark
        self.endpoints = endpoints
        self.crash_file = crash_file

    @property
    def is_embedded(self) -> bool:
        return self.endpoints.log.startswith("embedded:")

    def apart(self, folder: Path) -> Tier:
        """Return an embedded tier in a folder of its own, for tests of jobs that read all topics of a log."""
        if not self.is_embedded:
            return self
        own = msgspec.structs.replace(self.endpoints, log=f"embedded:{folder}", store=f"embedded:{folder}")
        tier = Tier(self.spark, own, self.crash_file)
        tier.keep_views()
        return tier

    def on(self, use: Callable[[Log, Store], Awaitable[T]]) -> T:
        """Do something with the log and the store."""

        async def work() -> T:
            return await use(await log_of(self.endpoints), await store_of(self.endpoints))

        return run(work())

    def with_journal(self, topic: str, use: Callable[[Journal], Awaitable[T]], *, partitions: int = 4) -> T:
        """Do something with the journals of a topic."""

        async def work(log: Log, store: Store) -> T:
            return await use(Journal(log, store, topic, cache=None, partitions=partitions, lease_s=LEASE_S))

        return self.on(work)

    def keep_views(self) -> None:
        """Let the store keep views by tag: the first test that replicates would decide it for all others."""

        async def decide(_: Log, store: Store) -> None:
            await TagRegistry(store, self.endpoints.settings_of_tags()).open()

        self.on(decide)

    def job(
        self, *topics: str, watcher: Seen | None = None, endpoints: Endpoints | None = None, **settings: Any
    ) -> Replication:
        """Return the shipped job."""
        chosen = PipelineSettings.model_validate({"interval_s": 0, "discover_every_s": 0.5, **settings})
        selection = Selection(tuple(topics))
        return Replication(self.spark, endpoints or self.endpoints, selection, settings=chosen, watcher=watcher)

    def replicate(self, *topics: str, **options: Any) -> Summary:
        """Run it once."""
        return self.job(*topics, **options).run(once=True)

    def apply(self, topic: str) -> None:
        """Replicate without Spark, for tests of what comes after: a query takes Spark seconds to begin."""

        async def work(log: Log, store: Store) -> None:
            await replicate(log, store, topic, views=await tag_writer_of(self.endpoints, with_log=True))

        self.on(work)

    @contextlib.contextmanager
    def replicating(self, *topics: str, **options: Any) -> Iterator[Seen]:
        """Run it while the block runs."""
        seen = Seen()
        job = self.job(*topics, watcher=seen, **options)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                job.run()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield seen
        finally:
            job.stop()
            thread.join(60)
        assert not thread.is_alive()
        if failed:
            raise failed[0]

    def arm(self, point: str, nth: int = 1) -> None:
        """Let the next worker that comes by die there."""
        self.crash_file.write_text(f"{point}:{nth}")

    def disarm(self) -> bool:
        """Arm no more; says whether somebody died."""
        is_taken = not self.crash_file.exists()
        self.crash_file.unlink(missing_ok=True)
        return is_taken

    def dump(self, topic: str) -> Dump:
        """Return all that the store has of a topic."""
        return self.on(lambda _, store: dump_of(store, topic))

    def expected(self, topic: str) -> Dump:
        """Return what the plain in-order fold of the log makes of an empty store."""

        async def fold(log: Log, _: Store) -> Dump:
            with tempfile.TemporaryDirectory() as folder:
                other = await open_store(f"embedded:{folder}")
                try:
                    await replicate(log, other, topic)
                    return await dump_of(other, topic)
                finally:
                    await other.close()

        return self.on(fold)

    def numbers(self, topic: str, id_: str) -> list[int]:
        """Read a journal's numbers."""

        async def read(journal: Journal) -> list[int]:
            return [event.seq_nr async for event in journal.read(id_)]

        return self.with_journal(topic, read)


async def dump_of(store: Store, topic: str) -> Dump:
    metas = {meta.id: meta async for page in store.reader.metas(topic) for meta in page}
    rows = {}
    for id_, meta in metas.items():
        last = max(meta.seq_nr, 1)
        pages = store.reader.rows(topic, id_, segment_size=meta.segment_size, first=1, last=last)
        rows[id_] = [row async for page in pages for row in page]
    return metas, rows


async def append_all(journal: Journal, keys: int, events: int, *, first: int = 1) -> None:
    from headrace.model import Event

    for n in range(first, first + events):
        await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n})]) for key in range(keys)))
