"""Collections: a snapshot in pages while its keys change, and the changes after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.keyspace.accounts import Accounts, Deposit
from tests.keyspace.setting import Place, serving

from headrace.errors import StateOffline
from headrace.keyspace.collections import CollectionEvent, CollectionSource, KeyRange, RangePage, follow_collection
from headrace.keyspace.state_copies import range_of
from headrace.state import OrderedKeys, StateChange

KEYS = "abcde"


class ScriptedPartitions:
    """A state whose writes happen between any two steps of its reader, as a script says."""

    def __init__(self, partitions: int, script: list[tuple[str, int | None]], ring: int) -> None:
        self.count = partitions
        self.generation = 1
        self.logs: list[list[tuple[str, int | None]]] = [[] for _ in range(partitions)]
        self._script = iter(script)
        self._ring = ring

    def source(self) -> CollectionSource:
        return CollectionSource(
            lambda: f"g{self.generation}", lambda: tuple(range(self.count)), self.page, self.changes, lambda _: True
        )

    def step(self) -> None:
        """Do the next writes of the script, two at a time."""
        for key, value in itertools.islice(self._script, 2):
            self.logs[KEYS.index(key) % self.count].append((key, value))

    def state(self, partition: int, offset: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, value in self.logs[partition][: offset + 1]:
            found.pop(key, None)
            if value is not None:
                found[key] = value
        return found

    async def page(self, partition: int, after: str | None) -> RangePage:
        self.step()
        offset = len(self.logs[partition]) - 1
        left = [pair for pair in sorted(self.state(partition, offset).items()) if after is None or pair[0] > after]
        return RangePage(left[:1], left[0][0] if len(left) > 1 else None, offset)

    async def changes(
        self, partition: int, token: str | None, heartbeat_s: float | None
    ) -> AsyncIterator[StateChange[str, int]]:
        at = None if token is None else int(token.partition(":")[2])
        generation = self.generation
        while True:
            if partition >= self.count:
                raise StateOffline("balances", "there is no such partition any more")
            self.step()
            end, is_other = len(self.logs[partition]) - 1, generation != self.generation
            generation = self.generation
            if at is None or is_other or end - at > self._ring:
                is_lagged, at = at is not None, end
                yield StateChange(None, None, at, f"g{generation}:{at}", is_present=True, is_lagged=is_lagged)
            elif at < end:
                at += 1
                key, value = self.logs[partition][at]
                yield StateChange(key, value, at, f"g{generation}:{at}")
            elif heartbeat_s is not None:
                yield StateChange(None, None, at, f"g{generation}:{at}", is_heartbeat=True)
            else:
                await asyncio.sleep(0)


class Folded:
    """What a subscriber knows: it folds events, and shows a partition when its snapshot is ready."""

    def __init__(self) -> None:
        self.pairs: dict[int, dict[str, int]] = {}
        self.places: dict[int, str] = {}
        self.ready: set[int] = set()

    def take(self, event: CollectionEvent) -> None:
        if event.kind == "begin":
            for gone in set(self.pairs) - set(event.partitions):
                self.pairs.pop(gone)
        elif event.kind == "reset":
            self.pairs[event.partition] = {}
            self.ready.discard(event.partition)
        elif event.kind == "pairs":
            self.pairs[event.partition].update(event.pairs)
        elif event.kind == "ready":
            self.ready.add(event.partition)
        if event.change is not None:
            pairs = self.pairs.setdefault(event.partition, {})
            pairs.pop(event.change.key or "", None)
            if event.change.value is not None:
                pairs[event.change.key or ""] = event.change.value
        if event.token:
            self.places[event.partition] = event.token


writes = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 99)), max_size=40)


@given(writes, st.integers(1, 3), st.integers(1, 6), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_a_collection_is_the_state_as_of_its_offset(
    script: list[tuple[str, int | None]], partitions: int, ring: int, taken: int
) -> None:
    """G6: whatever is written between the pages, a partition that is ready is the state as of its offset, always.

    The subscriber leaves after some events and resumes; the changes that are kept may not reach back to it.
    """

    async def run() -> None:
        model = ScriptedPartitions(partitions, script, ring)
        folded = Folded()
        for most in (taken, 400):
            after = {each: folded.places[each] for each in folded.ready}
            async with aclosing(follow_collection(model.source(), after)) as events:  # type: ignore[type-var]
                for _ in range(most):
                    folded.take(await anext(events))
                    for each in folded.ready:
                        place = int(folded.places[each].partition(":")[2])
                        assert folded.pairs[each] == model.state(each, place)
                    if len(folded.ready) == partitions and all(
                        folded.places[each] == f"g1:{len(model.logs[each]) - 1}" for each in range(partitions)
                    ):
                        break
        assert [folded.pairs[each] for each in range(partitions)] == [
            model.state(each, len(model.logs[each])) for each in range(partitions)
        ]

    asyncio.run(run())


async def test_a_collection_begins_again_when_its_keyspace_is_resized() -> None:
    """Keys move to other partitions then: all of it is read again, and what is known of gone partitions is dropped."""
    model = ScriptedPartitions(3, [(key, 1) for key in KEYS], ring=100)
    folded = Folded()
    async with aclosing(follow_collection(model.source(), {})) as events:  # type: ignore[type-var]
        while sum(map(len, folded.pairs.values())) < len(KEYS) or len(folded.ready) < 3:
            folded.take(await anext(events))
        model.generation, model.count = 2, 1
        model.logs = [[(key, 2) for key in KEYS]]
        model._script = iter([("a", 3)])
        while folded.pairs != {0: {"a": 3, "b": 2, "c": 2, "d": 2, "e": 2}}:
            folded.take(await anext(events))


def test_a_range_is_narrowed_by_both_ends() -> None:
    """A prefix with a beginning and an end holds the keys that lie in all of them."""
    assert KeyRange(b"a", b"b").narrowed(b"ab", None) == KeyRange(b"ab", b"b")
    assert KeyRange(b"a", b"b").narrowed(None, b"c") == KeyRange(b"a", b"b")
    assert KeyRange(b"", None).narrowed(None, None) == KeyRange(b"", None)
    assert [key for key in (b"a", b"ab", b"ac", b"b") if KeyRange(b"ab", b"b").holds(key)] == [b"ab", b"ac"]


def test_an_empty_first_part_is_a_part() -> None:
    """G6: a prefix of an empty text holds all texts, but of compound keys those whose first part is empty."""
    everything = KeyRange(b"", None)
    assert range_of(OrderedKeys(str), "", None, None) == (everything, None)
    compound = OrderedKeys(tuple[str, int])
    for whole in (None, ()):
        assert range_of(compound, whole, None, None) == (everything, None)
    for empty in ("", ("",)):
        found, routing = range_of(compound, empty, None, None)
        assert routing == b""
        assert [key for key in (("", 1), ("a", 1), ("\0", 1)) if found.holds(compound.encode(key))] == [("", 1)]


async def test_collections_of_a_served_keyspace(tmp_path: Path) -> None:
    """G6: a whole state, a prefix and a range of one give their pairs, and then only their own changes."""
    place = Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))

    async def until(events: AsyncIterator[CollectionEvent], folded: Folded, expected: dict[Any, Any]) -> None:
        def known() -> dict[Any, Any]:
            return {key: value for pairs in folded.pairs.values() for key, value in pairs.items()}

        async with asyncio.timeout(20):
            while known() != expected or folded.ready != set(folded.pairs):
                folded.take(await anext(events))

    async with serving(place, "a", Accounts) as served:
        client = served.client
        for key in ("x1", "x2", "y1"):
            await client.ask(Deposit(key, 1))
        everything = client.collection("balances")
        some = client.collection("balances", prefix="x", start="x2")
        folded, folded_some = Folded(), Folded()
        await until(everything, folded, {"x1": 1, "x2": 1, "y1": 1})
        await until(some, folded_some, {"x2": 1})
        await client.ask(Deposit("x1", 1))
        await client.ask(Deposit("x3", 1))
        await until(everything, folded, {"x1": 2, "x2": 1, "y1": 1, "x3": 1})
        await until(some, folded_some, {"x2": 1, "x3": 1})
        await everything.aclose()  # type: ignore[attr-defined]
        await client.ask(Deposit("y1", 1))
        resumed = client.collection("balances", after=folded.places)
        assert (await anext(resumed)).kind == "begin"
        missed = await anext(resumed)
        assert missed.change is not None
        assert (missed.kind, missed.change.key, missed.change.value) == ("change", "y1", 2)
        for each in (some, resumed):
            await each.aclose()  # type: ignore[attr-defined]
