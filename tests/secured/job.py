"""`headrace pipeline replicate` as a process between secured servers, and what the store has afterwards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
from tests.secured.servers import Secured
from tests.secured.watching import CommandLines, holding

from headrace.journal import Journal
from headrace.log import open_log
from headrace.model import Event
from headrace.store import open_store

WORK = Path(pyspark.__file__).parent / "work"
TIMEOUT_S = 500


@dataclass(frozen=True)
class Done:
    """How a job ended, and where it left something of itself."""

    code: int
    out: str
    err: str
    commands: frozenset[str]
    folders: Sequence[Path]

    def leaks(self, tokens: Sequence[str]) -> list[str]:
        """Return the places where a secret can be seen."""
        texts = {"stdout": self.out, "stderr": self.err} | {f"command {n}": c for n, c in enumerate(self.commands)}
        shown = [f"{name}: {token}" for name, text in texts.items() for token in tokens if token in text]
        return shown + holding(self.folders, tokens)


def run_job(command: Sequence[str], folder: Path, environ: dict[str, str], *, cwd: Path | None = None) -> Done:
    """Run a command to its end, its processes watched; all of its temporary files are in the folder."""
    (folder / "tmp").mkdir(parents=True)
    before = set(WORK.glob("*"))
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp"), **environ},
    )
    with CommandLines(job.pid).watched() as watched:
        try:
            out, err = job.communicate(timeout=TIMEOUT_S)
        except BaseException:
            job.kill()
            job.wait()
            raise
    return Done(job.returncode, out, err, frozenset(watched.seen), [folder, *(set(WORK.glob("*")) - before)])


def replicate_command(topic: str, *options: str) -> list[str]:
    """Return the shipped command."""
    return [sys.executable, "-m", "headrace.cli", *options, "pipeline", "replicate", "--topics", topic, "--once"]


def append_events(secured: Secured, topic: str, *, keys: int, events: int) -> None:
    """Write journals."""

    async def write() -> None:
        settings = secured.settings()
        log = await open_log(secured.log, settings=settings.log)
        store = await open_store(secured.store(), settings=settings.store)
        try:
            journal = Journal(log, store, topic, cache=None, partitions=4)
            for n in range(1, events + 1):
                await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n})]) for key in range(keys)))
        finally:
            await store.close()
            await log.close()

    asyncio.run(write())


def stored_numbers(secured: Secured, topic: str) -> dict[str, list[int]]:
    """Return what the store has of each journal, without a look at the log."""

    async def read() -> dict[str, list[int]]:
        store = await open_store(secured.store(), settings=secured.settings().store)
        try:
            found = {}
            async for page in store.reader.metas(topic):
                for meta in page:
                    pages = store.reader.rows(topic, meta.id, segment_size=meta.segment_size, first=1, last=meta.seq_nr)
                    found[meta.id] = [row.seq_nr async for rows in pages for row in rows]
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def all_of(keys: int, events: int) -> dict[str, list[int]]:
    """Return what must be there."""
    return {f"k{key}": list(range(1, events + 1)) for key in range(keys)}
