"""Retention of views by tag: whole buckets are removed, and no reader misses an event silently."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from tests.suites.tags_setting import DAY_MS, Scene, TagSetting, ids

from headrace.errors import BadArgument, TagTrimmed
from headrace.log import Log
from headrace.model import NewRecord
from headrace.protocol.actions import Mark
from headrace.protocol.headers import encode_action
from headrace.runtime import SYSTEM_CLOCK
from headrace.store import Store
from headrace.tags import TaggedEvent, TagTrim
from headrace.tags.fill import TagFills
from headrace.testing.crashes import SimulatedCrash, crash_at

__all__ = ["Minutes", "TagTrimConformance"]

MINUTE_MS = 60_000


class Minutes(Scene):
    """A scene whose views have buckets of a minute. Event number n of a journal lies in minute n."""

    began_ms = 0

    async def begin(self) -> None:
        """Find a time that lies above all that the store has seen, and well in the past."""
        floor_ms = max(await self.floor_ms(), SYSTEM_CLOCK.now_ms() - DAY_MS)
        self.began_ms = floor_ms - floor_ms % MINUTE_MS + MINUTE_MS

    def minute(self, n: int) -> datetime:
        """Return when a minute begins."""
        return datetime.fromtimestamp((self.began_ms + n * MINUTE_MS) / 1000, UTC)

    async def fill(self, *ids_: str, first: int = 1, last: int = 5) -> None:
        """Write an event a minute to journals, and carry all of it into the views."""
        for n in range(first, last + 1):
            for index, id_ in enumerate(ids_):
                await self.append(id_, n, at_ms=self.began_ms + n * MINUTE_MS + index)
        await self.pass_time(last)

    async def pass_time(self, n: int) -> None:
        """Let every partition come to the end of a minute, and replicate that."""
        for partition in range((await self.layout()).partitions):
            at_ms = self.began_ms + (n + 1) * MINUTE_MS
            headers = encode_action(Mark(id="time"))
            await self.put(NewRecord(self.topic, b"time", None, headers, partition=partition, timestamp_ms=at_ms))
        await self.replicate()

    async def trim(self, n: int) -> int:
        """Remove what lies before a minute."""
        return await self.trimmer().before(self.tag, self.minute(n))

    def trimmer(self) -> TagTrim:
        """Return the trimmer."""
        return TagTrim(self.log, self.store, self.settings)

    async def buckets(self) -> list[int]:
        """Return the minutes that the view has."""
        return [(ms - self.began_ms) // MINUTE_MS for ms in await self.store.tags.views.buckets(self.tag)]


class TagTrimConformance(TagSetting):
    """What trimming promises, on any tier; its store has buckets of a minute."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def scene(self, log: Log, store: Store) -> AsyncIterator[Minutes]:
        """Make a topic with four partitions."""
        scene = Minutes(log, store, bucket="MINUTE")
        await scene.new_topic()
        await scene.begin()
        yield scene
        await scene.clear()

    async def test_whole_buckets_go_and_a_query_from_before_is_refused(self, scene: Minutes) -> None:
        """T6: buckets before a time are gone; a query that begins before them is refused, or begins behind them."""
        await scene.fill("a", "b")
        whole = await scene.read()
        assert await scene.trim(3) == 2
        assert await scene.buckets() == [3, 4, 5]
        for after in (None, whole[0].tag_offset, scene.minute(1), whole[2].tag_offset):
            with pytest.raises(TagTrimmed, match="skip_trimmed"):
                await scene.read(after=after)
        with pytest.raises(TagTrimmed, match=str(whole[3].tag_offset)):
            await scene.follow().next()
        rest = ["a3", "b3", "a4", "b4", "a5", "b5"]
        assert ids(await scene.read(after=whole[3].tag_offset)) == rest
        assert ids(await scene.read(after=scene.minute(3))) == rest
        assert ids(await scene.read(skip_trimmed=True)) == rest
        assert ids(await scene.read(after=whole[6].tag_offset, skip_trimmed=True)) == ["b4", "a5", "b5"]
        assert [event.number for event in await scene.read(skip_trimmed=True)] == [3, 3, 4, 4, 5, 5]

    async def test_who_had_all_that_was_removed_goes_on(self, scene: Minutes) -> None:
        """T5: the place of the last event stays good, though it was removed with its bucket: nothing is missed."""
        await scene.fill("a", last=2)
        last = (await scene.read())[-1].tag_offset
        follower = scene.follow(after=last)
        assert await follower.is_silent(0.05)
        await scene.pass_time(9)
        assert await scene.trim(9) == 2
        assert await scene.read(after=last) == []
        await scene.append("a", 3, at_ms=scene.began_ms + 10 * MINUTE_MS)
        assert ids(await follower.next()) == ["a3"]
        await follower.stop()
        assert ids(await scene.again(bucket="MINUTE").read(after=str(last))) == ["a3"]
        several = [e async for e in scene.queries.events((scene.tag, f"{scene.tag}-other"), after=last)]
        assert ids(several) == ["a3"]

    async def test_a_slow_query_is_overtaken_with_an_error(self, scene: Minutes) -> None:
        """T34: a query in the middle of the views whose next buckets are removed fails; it never leaves some out."""
        await scene.fill("a", "b", last=6)
        slow = scene.again(bucket="MINUTE", page_size=1)
        events = slow.queries.events(slow.tag)
        assert ids([await anext(events) for _ in range(3)]) == ["a1", "b1", "a2"]
        await scene.trim(5)
        found: list[TaggedEvent] = []
        with pytest.raises(TagTrimmed):
            async for event in events:
                found.append(event)  # noqa: PERF401 - it ends with an error
        assert ids(found) in ([], ["b2"], ["b2", "a3"])  # what had been fetched before

    async def test_what_replication_could_still_add_to_stays(self, scene: Minutes) -> None:
        """T34: a partition that replication lags behind in holds trimming up: its events belong into those buckets."""
        await scene.fill("a")
        late = [f"p{n}" for n in range(40)]
        for id_ in late:
            await scene.append(id_, 1, at_ms=scene.began_ms + 6 * MINUTE_MS)
        assert await scene.trimmer().before(scene.tag, datetime.now(UTC)) == 5
        await scene.replicate()
        found = await scene.read(skip_trimmed=True)
        assert set(late) <= {event.id for event in found}

    @pytest.mark.parametrize("point", ["tags.trim.noted", "tags.trim.dropped"])
    async def test_a_trim_that_is_killed_is_run_again(self, scene: Minutes, point: str) -> None:
        """X4: killed after it said what goes, or in the middle of it: queries are refused, and the next run ends it."""
        await scene.fill("a")
        whole = await scene.read()
        with pytest.raises(SimulatedCrash), crash_at(point, 1):
            await scene.trim(4)
        with pytest.raises(TagTrimmed):
            await scene.read(after=whole[0].tag_offset)
        assert ids(await scene.read(skip_trimmed=True)) == ["a4", "a5"]
        assert await scene.trim(4) in (2, 3)
        assert await scene.buckets() == [4, 5]
        assert ids(await scene.read(skip_trimmed=True)) == ["a4", "a5"]
        assert await scene.trim(3) == 0  # never back
        with pytest.raises(TagTrimmed):
            await scene.read(after=whole[1].tag_offset)

    async def test_each_tag_has_its_own_age(self, scene: Minutes) -> None:
        """T39: by the settings, a tag's own retention or that of all others decides; without one all is kept."""
        for n in range(1, 6):
            await scene.append("a", n, ["x", "y", "z"], at_ms=scene.began_ms + n * MINUTE_MS)
        await scene.pass_time(5)
        now_ms = scene.began_ms + 6 * MINUTE_MS
        x, y, _ = scene.tags(["x", "y", "z"])
        ages: dict[str, float] = {x: 180.0, y: 60.0}
        trimmer = TagTrim(scene.log, scene.store, scene.again(bucket="MINUTE", retention_s=ages).settings)
        assert await trimmer.by_age(now_ms) == {x: 2, y: 4}
        assert await trimmer.by_age(now_ms) == {}
        assert ids(await scene.read("x", skip_trimmed=True)) == ["a3", "a4", "a5"]
        assert ids(await scene.read("y", skip_trimmed=True)) == ["a5"]
        assert len(await scene.read("z")) == 5

    async def test_history_is_not_given_a_tag_that_was_trimmed(self, scene: Minutes) -> None:
        """T38: its numbers would start again below events that readers have seen."""
        await scene.fill("a")
        await scene.trim(3)
        with pytest.raises(BadArgument, match="another tag"):
            await TagFills(scene.log, scene.store, scene.settings).begin(scene.tag, "m:f")
