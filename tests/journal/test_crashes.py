"""Replication into the embedded store, killed at each of its crash points in turn."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.suites.journal_histories import IDS, random_history
from tests.suites.journal_memory import MemoryStore
from tests.suites.journal_script import Script

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.journal import replicate_batch
from headrace.protocol.layout import Generation, Layout
from headrace.store import JournalMeta, Store, open_store
from headrace.testing import SimulatedCrash, crash_at, recording


async def opened(folder: Path) -> Store:
    return await open_store(f"embedded:{folder}", settings=StoreSettings(embedded=EmbeddedStoreSettings(fsync=False)))


async def run(store: Store, script: Script, up_to: int) -> None:
    layout = Layout(script.at.topic, "script", (Generation(1),))
    await replicate_batch(store, layout, script.at, script.records, up_to=up_to)


async def state(store: Store, topic: str) -> list[object]:
    found: list[object] = []
    for id_ in IDS:
        meta: JournalMeta | None = await store.reader.meta(topic, id_)
        found.append(meta)
        for size in (10_000, 1, 2, 3, 5):
            pages = store.reader.rows(topic, id_, segment_size=size, first=1, last=200)
            found.append([row async for page in pages for row in page])
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_a_crash_at_any_point_is_mended_by_a_replay(tmp_path: Path, seed: int) -> None:
    """R24, B7: killed after rows, after the head, before and after the offset; replayed in other slices."""
    rng = random.Random(seed)
    length = 18
    first = random_history(random.Random(seed), actions=length, topic="t-0")
    expected_store = MemoryStore()
    await run(expected_store, first, first.records[-1].offset)
    with recording() as passed:
        await run(MemoryStore(), first, first.records[-1].offset)
    points = [(name, nth) for name, times in Counter(passed).items() for nth in range(1, times + 1)]
    assert {name for name, _ in points} >= {
        "replicate.before-meta",
        "replicate.before-deletions",
        "replicate.after-key",
        "replicate.before-offset",
        "replicate.after-offset",
    }
    store = await opened(tmp_path)
    for number, (name, nth) in enumerate(points):
        script = random_history(random.Random(seed), actions=length, topic=f"t-{number}")
        last = script.records[-1].offset
        with crash_at(name, nth), pytest.raises(SimulatedCrash):
            await run(store, script, last)
        await run(store, script, rng.randint(0, last))
        await run(store, script, last)
        expected = MemoryStore()
        await run(expected, script, last)
        assert await state(store, script.at.topic) == await state(expected, script.at.topic), (name, nth)
    await store.close()
