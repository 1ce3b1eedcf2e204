"""Journals of any size stream: memory does not grow with them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from tests.suites.journal_setting import new_topic, replicate

from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.journal import HeadCache, Journal
from headrace.log import open_log
from headrace.model import Event
from headrace.store import open_store
from headrace.testing.plugin import Size

IN_ONE_APPEND = 10
# A read holds a few batches and the values it may keep; of an un-replicated head also the actions, without values.
HELD_BYTES = 64 * 1024 * 1024
ACTION_BYTES = 500


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("source", ["store", "log", "log, head cache"])
async def test_a_million_events_stream_in_constant_memory(tmp_path: Path, size: Size, source: str) -> None:
    """J2: read from the store, and from a head that was never replicated; far more bytes than are ever held."""
    count = size(10_000, 1_000_000)
    payload = "x" * size(10_000, 2_000)
    log = await open_log(f"embedded:{tmp_path}", settings=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    store = await open_store(f"embedded:{tmp_path}", settings=settings)
    cache = HeadCache(log, store.reader) if "cache" in source else None
    topic = await new_topic(log)
    journal = Journal(log, store, topic, cache=cache)
    for first in range(1, count + 1, IN_ONE_APPEND):
        await journal.append("k", [Event(n, payload) for n in range(first, first + IN_ONE_APPEND)])
    if source == "store":
        await replicate(log, store, topic, batch=200)
    tracemalloc.start()
    read = 0
    async for event in journal.read("k"):
        read += 1
        assert event.seq_nr == read
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == count
    actions = 0 if source == "store" else count // IN_ONE_APPEND
    assert peak < HELD_BYTES + actions * ACTION_BYTES, f"{peak} bytes for {count} events"
    if cache is not None:
        await cache.close()
    await store.close()
    await log.close()
