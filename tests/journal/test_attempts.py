"""Attempts that outlive the process that made them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.suites.journal_setting import replicate

import headrace
from headrace.errors import WrongSeqNr
from headrace.model import Event
from headrace.testing.processes import running_function

CHILD = "tests.suites.journal_children:append_with_attempt"


@pytest.mark.parametrize("point", ["append.before-write", "append.written"])
@pytest.mark.parametrize("meanwhile", ["nothing", "replicated", "purged"])
async def test_a_process_killed_in_an_append_is_followed_by_one_that_finishes_it(
    tmp_path: Path, point: str, meanwhile: str
) -> None:
    """J28: kill -9 before the record was written, and after; the next process makes no duplicate, undoes no purge."""
    address, kept = f"embedded:{tmp_path / 'data'}", tmp_path / "attempt"
    async with headrace.connect(address) as hr:
        await hr.journal("t").append("k", [Event(1)])
    with running_function(CHILD, address, "t", "k", str(kept), environ={"HEADRACE_CRASH_AT": point}) as child:
        assert await asyncio.to_thread(child.wait, 60) == -signal.SIGKILL
    async with headrace.connect(address) as hr:
        journal = hr.journal("t")
        attempt = await asyncio.to_thread(kept.read_text)
        if meanwhile == "replicated":
            await replicate(hr.log, hr.store, "t")
        if meanwhile == "purged":
            await journal.purge("k")
        if meanwhile == "purged" and point == "append.before-write":
            with pytest.raises(WrongSeqNr):
                await journal.append("k", [Event(2, "once")], expected=1, attempt=attempt)
        else:
            await journal.append("k", [Event(2, "once")], expected=1, attempt=attempt)
        for _ in range(2):
            found = [(event.seq_nr, event.payload) async for event in journal.read("k")]
            assert found == ([] if meanwhile == "purged" else [(1, None), (2, "once")])
            await replicate(hr.log, hr.store, "t")
