"""What the journal's benches write, and how many at once; the servers themselves are not needed for that."""

from __future__ import annotations

import asyncio

from benchmarks.workloads import events
from benchmarks.workloads.journals import appends_to, many


def test_appends_go_round_the_journals_and_count_on() -> None:
    """Each journal's numbers rise without a hole, from one round to the next."""
    numbers: dict[str, int] = {}
    written = events(30, keys=3)
    first = appends_to(written, size=5, numbers=numbers)
    again = appends_to(written, size=5, numbers=numbers)
    assert [append.id for append in first] == ["key-0000", "key-0001", "key-0002"] * 2
    for id_ in ("key-0000", "key-0001", "key-0002"):
        of_id = [event.seq_nr for append in first + again if append.id == id_ for event in append.events]
        assert of_id == list(range(1, 21))
    assert numbers == dict.fromkeys(("key-0000", "key-0001", "key-0002"), 20)


def test_appends_hold_every_event_once() -> None:
    """The bound sends the same payloads: none may be lost on the way."""
    written = events(25, keys=4)
    appends = appends_to(written, size=10, numbers={})
    assert [event.payload for append in appends for event in append.events] == [event.value for event in written]
    assert [len(append.events) for append in appends] == [10, 10, 5]


async def test_so_many_are_in_flight_and_no_more() -> None:
    """All items are worked on once, `in_flight` of them at the same time."""
    running, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await many(work, range(20), in_flight=4)
    assert sorted(done) == list(range(20))
    assert most == 4
