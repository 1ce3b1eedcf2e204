"""Projections over views whose oldest buckets were removed: one that is behind stops, and the others notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.projection.test_projections import Embedded
from tests.suites.tags_setting import TagSetting
from tests.suites.tags_trimming import Minutes

from headrace.app.projections import opened_projection
from headrace.errors import TagTrimmed
from headrace.log import Log
from headrace.projection import Projection, ProjectionRunner, Recovery, commits, open_target, rebuild, replay_letters
from headrace.projection.slots import owned, slot_of
from headrace.store import Store


@pytest.mark.asyncio(loop_scope="module")
class TestTrimmed(Embedded, TagSetting):
    """On the embedded tier: where events are gone is decided by queries, which have tests on all tiers."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def scene(self, log: Log, store: Store) -> AsyncIterator[Minutes]:
        """Make a topic with four partitions."""
        scene = Minutes(log, store, bucket="MINUTE")
        await scene.new_topic()
        await scene.begin()
        yield scene
        await scene.clear()

    @pytest.mark.parametrize("is_several", [False, True])
    async def test_a_projection_that_is_behind_stops(self, scene: Minutes, is_several: bool) -> None:
        """T34: its next events are gone: every run fails and handles nothing, until somebody says from where to go on;
        the status says what is missing."""
        seen: list[int] = []
        projection = _projection(scene, seen, is_several=is_several)
        await scene.fill("a", last=2)
        await _catch_up(scene, projection)
        await scene.fill("a", first=3, last=6)
        await scene.trim(5)
        for _ in range(2):
            with pytest.raises(TagTrimmed, match="offset set"):
                await _catch_up(scene, projection)
        assert seen == [1, 2]
        async with opened_projection(projection, scene.queries, scene.store) as handle:
            status = await handle.status()
            assert "were removed" in (status.missed or "")
            assert status.lag.events == 2  # those that are left
        target = open_target(projection, scene.store.settings)
        with pytest.raises(TagTrimmed):
            await rebuild(projection, scene.queries, target)
        assert seen == [1, 2]  # a rebuild that can't be whole resets nothing
        await rebuild(projection, scene.queries, target, start=scene.minute(5))
        assert seen == [1, 2, 5, 6]

    async def test_a_projection_that_has_handled_all_goes_on(self, scene: Minutes) -> None:
        """T5: the events it stands behind may go: nothing is missed, with several workers too."""
        seen: list[int] = []
        projection = _projection(scene, seen)
        await scene.fill("a", "b", last=3)
        for worker in (0, 1):
            await _catch_up(scene, projection, worker, 2)
        await scene.pass_time(8)
        await scene.trim(8)
        for worker in (1, 0):
            assert await _catch_up(scene, projection, worker, 2) == 0
        assert sorted(seen) == [1, 1, 2, 2, 3, 3]

    async def test_a_worker_stores_that_it_has_passed_the_events_of_others(
        self, scene: Minutes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker whose own journals are silent must not look as if it were behind when old events are removed."""
        monkeypatch.setattr(commits, "_STORE_PASSED_S", 0.05)
        projection, other = _projection(scene, []), "a"
        target = open_target(projection, scene.store.settings)
        silent = 1 - slot_of(scene.topic, other, 4) % 2
        runner = ProjectionRunner(projection, scene.queries, target, worker=silent, workers=2)
        working = asyncio.ensure_future(runner.run_once())
        await scene.append(other, 1, at_ms=scene.began_ms + 60_000)
        (event,) = await scene.read()
        slots = owned(silent, 2, 4)
        async with asyncio.timeout(20):
            while {(await target.load())[slot] for slot in slots} != {event.tag_offset}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def test_a_letter_whose_event_was_removed_does_not_hold_up_others(self, scene: Minutes) -> None:
        """Its replay fails and says why; the letters of events that are still there are replayed."""
        failing, seen = {2, 5}, list[int]()

        def handle(event: Any) -> None:
            if event.seq_nr in failing:
                raise ValueError
            seen.append(event.seq_nr)

        projection = Projection(scene.tag, scene.tag, handle, slots=4, recovery=Recovery("dead-letter"))
        await scene.fill("a")
        await _catch_up(scene, projection)
        await scene.trim(4)
        failing.clear()
        target = open_target(projection, scene.store.settings)
        done = await replay_letters(projection, scene.queries, target, await target.letters.all())
        assert done.handled == 1
        assert [failure.seq_nr for failure in done.failed] == [2]
        assert "were removed" in str(done.failed[0])
        assert seen == [1, 3, 4, 5]


def _projection(scene: Minutes, seen: list[int], *, is_several: bool = False) -> Projection:
    fed: dict[str, Any] = {"tags": (scene.tag, f"{scene.tag}-other")} if is_several else {"tag": scene.tag}
    return Projection(scene.tag, handler=lambda event: seen.append(event.seq_nr), slots=4, **fed)


async def _catch_up(scene: Minutes, projection: Projection, worker: int = 0, workers: int = 1) -> int:
    target = open_target(projection, scene.store.settings)
    queries = scene.again(bucket="MINUTE").queries
    return await ProjectionRunner(projection, queries, target, worker=worker, workers=workers).catch_up()
