"""One query for all sockets on a key: nobody misses a change, gets one twice, or goes on when the query has failed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from headrace.errors import Unreachable
from headrace.gateway.feeds import Change, KeyFeeds
from headrace.state import StateChange
from headrace.testing.conformance.log_setting import eventually


class Key:
    """A key whose n-th change has the value n; queries of it are counted."""

    def __init__(self, *, kept_from: int = 0) -> None:
        self.newest = 0
        self.kept_from = kept_from
        self.open_queries = 0
        self.queries = 0
        self.failure: Exception | None = None
        self._changed = asyncio.Event()

    def change(self) -> None:
        self.newest += 1
        self._wake()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def query(self, after: str | None) -> AsyncIterator[Change]:
        self.queries += 1
        self.open_queries += 1
        try:
            offset = None if after is None else int(after.removeprefix("t:"))
            if offset is None or offset < self.kept_from:
                offset = self.newest
                yield change_to(offset, is_present=True, is_lagged=after is not None)
            while True:
                while offset < self.newest:
                    offset += 1
                    yield change_to(offset)
                if self.failure is not None:
                    raise self.failure
                await self._changed.wait()
        finally:
            self.open_queries -= 1


def change_to(number: int, *, is_present: bool = False, is_lagged: bool = False) -> Change:
    return StateChange("k", number, number, f"t:{number}", is_present=is_present, is_lagged=is_lagged)


class Subscriber:
    """One who follows the key, and what it got."""

    def __init__(self, feeds: KeyFeeds, key: Key, after: str | None = None) -> None:
        self.got: list[Change] = []
        self.task = asyncio.ensure_future(feeds.follow("k", key.query, after, self.got.append))

    @property
    def values(self) -> list[int | None]:
        return [each.value for each in self.got]

    async def has(self, newest: int) -> bool:
        return self.values[-1:] == [newest]

    async def leave(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def test_all_subscribers_of_a_key_share_one_query() -> None:
    """G5, G7: those who come later begin at the present value, and then get the changes of the one query."""
    feeds, key = KeyFeeds(), Key()
    all_of_them = [Subscriber(feeds, key)]
    await eventually(lambda: all_of_them[0].has(0), every_s=0)
    for number in range(1, 5):
        key.change()
        all_of_them.append(Subscriber(feeds, key))
        for each in all_of_them:
            await eventually(lambda each=each, number=number: each.has(number), every_s=0)
    assert key.open_queries == 1
    assert [each.values for each in all_of_them] == [list(range(start, 5)) for start in range(5)]
    for each in all_of_them:
        await each.leave()
    assert (key.open_queries, len(feeds)) == (0, 0)


async def test_one_who_resumes_gets_what_it_missed_once() -> None:
    """G6, G13: the changes since its last one come in order, whether the feed still has them or not."""
    feeds, key = KeyFeeds(), Key()
    first = Subscriber(feeds, key)
    await eventually(lambda: first.has(0), every_s=0)
    for _ in range(40):  # more than a feed keeps
        key.change()
    await eventually(lambda: first.has(40), every_s=0)
    resumed = [Subscriber(feeds, key, f"t:{place}") for place in (0, 20, 39)]
    for each, place in zip(resumed, (0, 20, 39), strict=True):
        await eventually(lambda each=each: each.has(40), every_s=0)
        assert each.values == list(range(place + 1, 41))
    assert key.open_queries == 1
    for each in (first, *resumed):
        await each.leave()


async def test_what_ends_the_query_ends_all_who_share_it() -> None:
    """G8: nobody is left in silence when the query of the key fails; the next one begins anew."""
    feeds, key = KeyFeeds(), Key()
    first = Subscriber(feeds, key)
    await eventually(lambda: first.has(0), every_s=0)
    second = Subscriber(feeds, key)
    await eventually(lambda: second.has(0), every_s=0)
    key.fail(Unreachable("n2", "it is gone"))
    for each in (first, second):
        with pytest.raises(Unreachable):
            await each.task
    assert len(feeds) == 0
    key.failure = None
    third = Subscriber(feeds, key)
    await eventually(lambda: third.has(0), every_s=0)
    await third.leave()


@pytest.mark.parametrize("seed", range(20))
async def test_whenever_they_come_and_go_everybody_sees_every_change(seed: int) -> None:
    """G13: each sees what comes behind its start without a gap or a repeat, in any order of joining and leaving."""
    choices = random.Random(seed)
    feeds, key = KeyFeeds(), Key()
    present: list[tuple[Subscriber, int | None]] = []
    for _ in range(200):
        match choices.randrange(6):
            case 0:
                place = choices.choice([None, choices.randint(0, key.newest)])
                present.append((Subscriber(feeds, key, None if place is None else f"t:{place}"), place))
            case 1 if present:
                await present.pop(choices.randrange(len(present)))[0].leave()
            case 2 | 3:
                for _ in range(choices.choice([1, 1, 30])):
                    key.change()
            case _:
                for _ in range(choices.randrange(4)):
                    await asyncio.sleep(0)
    key.change()
    for subscriber, place in present:
        await eventually(lambda each=subscriber: each.has(key.newest), every_s=0)
        start = subscriber.got[0].offset if place is None else place + 1
        assert subscriber.values == list(range(start, key.newest + 1))
        await subscriber.leave()
    assert (key.open_queries, len(feeds)) == (0, 0)
