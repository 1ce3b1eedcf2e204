"""`headrace pipeline replicate` as a process between secured servers, and what the store has afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from tests.pipeline.tier import Dump, append_all, dump_of
from tests.secured.servers import Secured
from tests.secured.watching import CommandLines, holding
from tests.suites.journal_setting import replicate

from headrace.journal import Journal
from headrace.log import Log, open_log
from headrace.services.packages import cache_folder
from headrace.store import Store, open_store

TIMEOUT_S = 500
_APPLICATION = re.compile(r" --app-id (\S+)")
PARTITIONS = 4
# For executors, too: their second compiler costs more in the first minute than it brings.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


@dataclass(frozen=True)
class Done:
    """How a job ended, and where it left something of itself."""

    code: int
    out: str
    err: str
    commands: frozenset[str]
    folder: Path

    @property
    def work(self) -> list[Path]:
        """Where the executors of a local cluster ran; Spark leaves that, and whoever ran it removes it."""
        names = {name for each in self.commands for name in _APPLICATION.findall(each)}
        homes = [Path(pyspark.__file__).parent, *(cache_folder() / "spark-home").glob("*")]
        return [work for home in homes for name in names if (work := home / "work" / name).exists()]

    def leaks(self, tokens: Sequence[str]) -> list[str]:
        """Return the places where a secret can be seen."""
        texts = {"stdout": self.out, "stderr": self.err} | {f"command {n}": c for n, c in enumerate(self.commands)}
        shown = [f"{name}: {token}" for name, text in texts.items() for token in tokens if token in text]
        return shown + holding([self.folder, *self.work], tokens)


def run_job(
    command: Sequence[str],
    folder: Path,
    environ: dict[str, str],
    *,
    cwd: Path | None = None,
    given: str = "",
    meanwhile: Callable[[psutil.Process], None] | None = None,
) -> Done:
    """Run a command to its end, its processes watched; all of its temporary files are in the folder.

    `given` is its input; `meanwhile` is called in a thread while it runs.
    """
    (folder / "tmp").mkdir(parents=True)
    own = {"TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp"), **QUICK_JAVA}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen(command, **pipes, text=True, cwd=cwd, env={**os.environ, **own, **environ})
    with CommandLines(job.pid).watched() as watched, ThreadPoolExecutor(1) as threads, _ended(job):
        beside = threads.submit(meanwhile, psutil.Process(job.pid)) if meanwhile is not None else None
        out, err = job.communicate(given, timeout=TIMEOUT_S)
        if beside is not None:
            beside.result(TIMEOUT_S)
    return Done(job.returncode, out, err, frozenset(watched.seen), folder)


@contextmanager
def _ended(job: subprocess.Popen[str]) -> Iterator[None]:
    """See to it that nothing of a job stays."""
    try:
        yield
    finally:
        if job.poll() is None:
            family = psutil.Process(job.pid).children(recursive=True)
            job.kill()
            job.wait()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def replicate_arguments(topic: str, *options: str) -> list[str]:
    """Return what comes after `headrace`."""
    return [*options, "pipeline", "replicate", "--topics", topic, "--once"]


def replicate_command(topic: str, *options: str) -> list[str]:
    """Return the shipped command."""
    return [sys.executable, "-m", "headrace.cli", *replicate_arguments(topic, *options)]


def append_events(secured: Secured, topic: str, *, keys: int, events: int) -> None:
    """Write journals."""

    async def write() -> None:
        async with _opened(secured) as (log, store):
            await append_all(Journal(log, store, topic, cache=None, partitions=PARTITIONS), keys, events)

    asyncio.run(write())


def stored(secured: Secured, topic: str) -> Dump:
    """Return all that the store has of a topic, without a look at the log."""
    with _blocking_store(secured) as (runner, store):
        return runner.run(dump_of(store, topic))


def expected(secured: Secured, topic: str) -> Dump:
    """Return what the plain in-order fold of the log makes of an empty store."""

    async def fold() -> Dump:
        with tempfile.TemporaryDirectory() as folder:
            other = await open_store(f"embedded:{folder}")
            try:
                async with _opened(secured) as (log, _):
                    await replicate(log, other, topic)
                return await dump_of(other, topic)
            finally:
                await other.close()

    return asyncio.run(fold())


@contextmanager
def counting(secured: Secured, topic: str) -> Iterator[Callable[[], int]]:
    """Give a function that tells how many events the store knows of a topic now, by the journals' heads."""

    async def count(store: Store) -> int:
        return sum([meta.seq_nr async for page in store.reader.metas(topic) for meta in page])

    with _blocking_store(secured) as (runner, store):
        yield lambda: runner.run(count(store))


@contextmanager
def _blocking_store(secured: Secured) -> Iterator[tuple[asyncio.Runner, Store]]:
    with asyncio.Runner() as runner:
        store = runner.run(open_store(secured.store(), settings=secured.settings().store))
        try:
            yield runner, store
        finally:
            runner.run(store.close())


@asynccontextmanager
async def _opened(secured: Secured) -> AsyncIterator[tuple[Log, Store]]:
    settings = secured.settings()
    log = await open_log(secured.log, settings=settings.log)
    store = await open_store(secured.store(), settings=settings.store)
    try:
        yield log, store
    finally:
        await store.close()
        await log.close()
