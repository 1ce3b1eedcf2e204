"""Shared settings, and the behaviour of an open and a closed store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import Closed
from headrace.model import TopicPartition
from headrace.store import JournalWrite, Place, RowDeletion, Store
from headrace.testing.conformance.store_setting import (
    OpenStore,
    StoreSetting,
    event,
    head,
    read_rows,
    replicated,
    seq_nrs,
    snapshot,
)

__all__ = ["SettingsAndClosing"]

USES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "read meta": lambda store: store.reader.meta("t", "id"),
    "read replicated": lambda store: store.reader.replicated(TopicPartition("t", 0)),
    "read rows": lambda store: read_rows(store, "t", "id"),
    "read metas": lambda store: anext(aiter(store.reader.metas("t"))),
    "read metas of": lambda store: store.reader.metas_of("t", ["id"]),
    "read topics": lambda store: store.reader.topics(),
    "write rows": lambda store: store.writer.write_rows("t", "id", [event(1)]),
    "write meta": lambda store: store.writer.write_meta(head("t", "id", 1)),
    "write journals": lambda store: store.writer.write_journals([JournalWrite(head("t", "id", 1), [event(1)])]),
    "delete rows": lambda store: store.writer.delete_rows("t", "id", [RowDeletion(0, None)], at=Place(0, 1)),
    "delete snapshots": lambda store: store.writer.delete_snapshots("t", "id", at=Place(0, 1)),
    "move replicated": lambda store: store.writer.move_replicated(replicated("t", 1)),
    "save snapshot": lambda store: store.snapshots.save("t", "id", snapshot(0, 1)),
    "load snapshots": lambda store: store.snapshots.load("t", "id"),
    "delete snapshot": lambda store: store.snapshots.delete("t", "id", 0, at=Place(0, 1)),
    "get setting": lambda store: store.settings.get("k"),
    "put setting": lambda store: store.settings.put("k", "v", expected=None),
    "list settings": lambda store: store.settings.all("k"),
}


class SettingsAndClosing(StoreSetting):
    """Settings change atomically; closing is final."""

    async def test_a_setting_changes_only_from_what_was_expected(self, store: Store, topic: str) -> None:
        """None expects that it is not there; a wrong expectation changes nothing and says so."""
        put, get = store.settings.put, store.settings.get
        assert await get(topic) is None
        assert not await put(topic, "x", expected="y")
        assert await get(topic) is None
        assert await put(topic, "one", expected=None)
        assert not await put(topic, "again", expected=None)
        assert not await put(topic, "two", expected="zwei")
        assert await put(topic, "two", expected="one")
        assert await get(topic) == "two"
        assert await put(topic, "", expected="two")
        assert await get(topic) == ""

    async def test_of_racers_exactly_one_wins(self, store: Store, another: OpenStore, topic: str) -> None:
        """Two clients, several tries each, for a key that is not there and then for one that is."""
        other = await another()
        for expected in (None, "start"):
            key = f"{topic}-{expected}"
            if expected is not None:
                assert await store.settings.put(key, expected, expected=None)
            tries = [
                each.settings.put(key, f"{number}-{n}", expected=expected)
                for number, each in enumerate((store, other))
                for n in range(3)
            ]
            outcomes = await asyncio.gather(*tries)
            assert sum(outcomes) == 1
            winner = [f"{number}-{n}" for number in range(2) for n in range(3)][outcomes.index(True)]
            assert await store.settings.get(key) == await other.settings.get(key) == winner

    async def test_settings_are_listed_by_prefix(self, store: Store, topic: str) -> None:
        """The prefix is plain text, whatever characters it has."""
        for key in (f"{topic}.a", f"{topic}.b", f"{topic}%x", f"{topic.upper()}.c"):
            await store.settings.put(key, key[-1], expected=None)
        assert await store.settings.all(f"{topic}.") == {f"{topic}.a": "a", f"{topic}.b": "b"}
        assert await store.settings.all(f"{topic}%") == {f"{topic}%x": "x"}
        assert await store.settings.all(uuid.uuid4().hex) == {}

    async def test_a_store_keeps_what_it_holds_when_it_is_opened_again(
        self, store: Store, another: OpenStore, topic: str
    ) -> None:
        """Everything acknowledged is there for the next client."""
        await store.writer.write_rows(topic, "id", [event(1), event(2)])
        await store.writer.write_meta(head(topic, "id", 2))
        await store.snapshots.save(topic, "id", snapshot(0, 2))
        await store.writer.move_replicated(replicated(topic, 2))
        await store.settings.put(topic, "v", expected=None)
        await store.close()
        again = await another()
        assert seq_nrs(await read_rows(again, topic, "id")) == [1, 2]
        assert await again.reader.meta(topic, "id") == head(topic, "id", 2)
        assert await again.snapshots.load(topic, "id") == [snapshot(0, 2)]
        assert await again.reader.replicated(TopicPartition(topic, 0)) == replicated(topic, 2)
        assert await again.settings.get(topic) == "v"

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        """Every use after close raises Closed, and closing twice is fine."""
        await store.close()
        await store.close()
        for use in USES.values():
            with pytest.raises(Closed):
                await use(store)

    async def test_closing_ends_a_read_that_is_under_way(self, store: Store, topic: str) -> None:
        """A reader between two pages gets Closed or the rest it had asked for, and is not left waiting."""
        await store.writer.write_rows(topic, "id", [event(n) for n in range(1, 41)])
        pages = aiter(store.reader.rows(topic, "id", segment_size=10, first=1, last=40, page_size=5))
        assert seq_nrs(await anext(pages)) == [1, 2, 3, 4, 5]
        await store.close()
        with pytest.raises(Closed):
            async with asyncio.timeout(20):
                async for _ in pages:
                    pass

    async def test_work_that_shares_a_store_is_kept_apart(self, store: Store, topic: str) -> None:
        """Fifty journals written and read at once: each gets its own rows."""

        async def use(id_: str, count: int) -> list[int]:
            await store.writer.write_rows(topic, id_, [event(n) for n in range(1, count + 1)])
            return seq_nrs(await read_rows(store, topic, id_))

        found = await asyncio.gather(*(use(f"id-{n}", n) for n in range(50)))
        assert found == [list(range(1, n + 1)) for n in range(50)]
