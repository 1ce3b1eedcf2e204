"""Bounded memory: writing and reading many tagged events takes no more than writing and reading some."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.suites.tags_setting import Scene

from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.journal import replicate_batch
from headrace.log import Log, open_log
from headrace.model import TopicPartition
from headrace.services import RunningService
from headrace.store import Store, open_store
from headrace.testing.plugin import Size

MB = 1024 * 1024
AN_APPEND = 50


@pytest_asyncio.fixture(params=["embedded", pytest.param("servers", marks=pytest.mark.servers)])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """Open a tier, with a topic of one partition."""
    log, store = await (_open_servers(request) if request.param == "servers" else _open_embedded(tmp_path))
    scene = Scene(log, store)
    await scene.new_topic(partitions=1)
    yield scene
    await scene.clear()
    await store.close()
    await log.close()


async def _open_embedded(folder: Path) -> tuple[Log, Store]:
    log = await open_log(f"embedded:{folder}", settings=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    return log, await open_store(f"embedded:{folder}", settings=settings)


async def _open_servers(request: pytest.FixtureRequest) -> tuple[Log, Store]:
    kafka: RunningService = request.getfixturevalue("kafka")
    cassandra: RunningService = request.getfixturevalue("cassandra")
    store = await open_store(f"cassandra://{cassandra.address}/tag_memory_tests")
    return await open_log(f"kafka://{kafka.address}"), store


@pytest.mark.timeout(3600)
async def test_many_tagged_events_take_bounded_memory(scene: Scene, size: Size) -> None:
    """W13: a million (in `make test` ten thousand) events: the last batches take what the first ones took."""
    many = size(10_000, 1_000_000)
    for first in range(0, many, AN_APPEND):
        id_ = f"k{first // AN_APPEND % 100}"
        start = first // (AN_APPEND * 100) * AN_APPEND + 1
        await scene.append(id_, range(start, start + AN_APPEND))
    peaks = await _replicate(scene)
    quarter = max(len(peaks) // 4, 1)
    assert max(peaks[-quarter:]) < max(peaks[:quarter]) * 1.5 + MB
    tracemalloc.start()
    count = 0
    async for _ in scene.queries.events(scene.tag):
        count += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == many
    assert peak < 20 * MB


async def _replicate(scene: Scene) -> list[int]:
    """Apply the log in batches; returns the peak of each."""
    at, layout = TopicPartition(scene.topic, 0), await scene.layout()
    peaks = []
    tracemalloc.start()
    async for batch in scene.log.read(at, 0, (await scene.log.bounds(at)).end, max_records=20):
        gc.collect()  # what earlier batches left to the collector is not this one's
        tracemalloc.reset_peak()
        await replicate_batch(scene.store, layout, at, batch.records, up_to=batch.next_offset - 1, views=scene.writer)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    return peaks
