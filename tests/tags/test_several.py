"""The merge of several tags on its own: how often the queries of the single tags are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from headrace.store import TagTime
from headrace.tags import TaggedEvent, TagOffset
from headrace.tags.several import PlaceWatch, merge_tags

TAGS = 200


def event(tag: str, place: int) -> TaggedEvent:
    """Return the event of a tag at a place."""
    offset = TagOffset(place, 0, 0, place, 1, 1)
    return TaggedEvent(1, b"", (tag,), 0, place, place, tag=tag, topic="t", id=f"k{place}", number=1, tag_offset=offset)


async def test_many_tags_ask_one_another_once_and_not_at_every_event() -> None:
    """T34: what 200 tags with ten events each cost grows with their number, not with its square."""
    asked = 0

    async def query(tag: str, after: TagOffset | None, watch: PlaceWatch) -> AsyncGenerator[TaggedEvent, None]:
        """Give a tag's events, which lie between those of all others, then answer how far this query has come."""
        nonlocal asked
        del after
        wanted, number = asyncio.Event(), int(tag)
        watch.on_want = wanted.set
        for n in range(10):
            yield event(tag, 1 + n * TAGS + number)
        watch.report_spent()
        while True:
            if watch.wanted is None:
                wanted.clear()
                await wanted.wait()
            asked += 1
            assert watch.wanted is not None
            watch.report_passed(TagTime(*watch.wanted))

    async with asyncio.timeout(20):
        found = [each.offset async for each in merge_tags([str(n) for n in range(TAGS)], None, query)]
    assert found == list(range(1, 1 + 10 * TAGS))
    assert asked < 3 * TAGS
