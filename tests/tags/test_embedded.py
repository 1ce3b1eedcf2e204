"""Events by tag on the embedded tier."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.suites.journal_setting import replicate
from tests.suites.tags_filling import TagFillConformance
from tests.suites.tags_following import TagFollowingConformance
from tests.suites.tags_queries import TagQueryConformance
from tests.suites.tags_setting import Scene, TagSetting, ids, numbers_of
from tests.suites.tags_several import SeveralTagsConformance
from tests.suites.tags_simulation import TagSimulation
from tests.suites.tags_trimming import Minutes, TagTrimConformance
from tests.suites.tags_views import (
    TABLES,
    TagLossConformance,
    TagRepairConformance,
    TagViewConformance,
)

from headrace.app import connect
from headrace.config import HeadraceSettings, TagSettings
from headrace.errors import BadArgument, TagsDisabled, TagsIncomplete, TagsInUse, TagTrimmed
from headrace.log import Log
from headrace.model import Event
from headrace.store import Store
from headrace.tags import TagRepair, UntaggedViews
from headrace.tags import key_states as key_lookup
from headrace.tags.fill import TagFills
from headrace.tags.key_states import KeyState, load_key


class Embedded:
    """A folder for the log and the store."""

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def store_address(self, log_address: str) -> str:
        """Return the same folder."""
        return log_address


class TestEmbeddedQueries(Embedded, TagQueryConformance):
    """All that queries promise."""


class TestEmbeddedSeveralTags(Embedded, SeveralTagsConformance):
    """Queries over several tags."""


@pytest.mark.asyncio(loop_scope="module")
class TestEmbeddedTrimming(Embedded, TagTrimConformance):
    """Retention of the views. Tests that write Marks of now are for stores of their own, which are cheap here."""

    async def test_rebuilds_and_replays_bring_nothing_back(self, scene: Minutes) -> None:
        """X6: a rebuild writes the rows that are kept, with their numbers; what was trimmed stays away."""
        await scene.fill("a")
        await scene.trim(4)
        repair = TagRepair(scene.log, scene.store, scene.settings)
        assert await repair.rebuild(scene.topic, "a", scene.tag) == 2
        await repair.rebuild_all()
        assert await scene.buckets() == [4, 5]
        found = await scene.read(skip_trimmed=True)
        assert [(event.seq_nr, event.number) for event in found] == [(4, 4), (5, 5)]
        await scene.append("a", 6)
        await scene.replicate()
        assert [event.number for event in await scene.read(skip_trimmed=True)] == [4, 5, 6]
        with pytest.raises(TagTrimmed):
            await scene.read()

    async def test_idle_partitions_are_told_that_time_has_passed(self, scene: Minutes) -> None:
        """T34: where nothing happens in some partitions, trimming writes Marks there instead of waiting for years."""
        for n in range(1, 6):
            await scene.append("a", n, at_ms=scene.began_ms + n * 60_000)
        await scene.replicate()
        assert await scene.trim(4) == 3
        assert ids(await scene.read(skip_trimmed=True)) == ["a4", "a5"]
        assert await scene.trimmer().before(scene.tag, datetime.now(UTC)) == 2
        assert await scene.read(skip_trimmed=True) == []


class TestEmbeddedFollowing(Embedded, TagFollowingConformance):
    """What many live queries cost, and what they live through."""


class TestEmbeddedViews(Embedded, TagViewConformance):
    """All that writing the views promises."""


class TestEmbeddedRepair(Embedded, TagRepairConformance):
    """Repairs."""


class TestEmbeddedFills(Embedded, TagFillConformance):
    """A tag that history gets afterwards."""


class TestEmbeddedLoss(Embedded, TagLossConformance):
    """Tables emptied with the sqlite3 command."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self._path = tmp_path / "store.db"

    async def truncate(self, store: Store, tables: Sequence[str] = TABLES) -> None:
        """Empty the tables."""
        with closing(sqlite3.connect(self._path)) as db:
            for table in tables:
                db.execute(f"DELETE FROM {table}")
            db.commit()


class TestEmbeddedSimulation(Embedded, TagSimulation):
    """Everything at once."""


class TestEmbeddedUse(Embedded, TagSetting):
    """Whether a store keeps views by tag is a fact of the store. Other tests of a server's store rely on it."""

    @pytest.mark.parametrize("is_noted", [True, False])
    async def test_what_was_replicated_without_views_is_not_left_out_of_them(
        self, scene: Scene, is_noted: bool
    ) -> None:
        """FT7: tags were off for a while: switching them on is refused until the views are built from the journals.

        Also where an older version did not note that they were off.
        """
        await scene.append("a", [1, 2])
        without = UntaggedViews(scene.store, TagSettings(enabled=False))
        await replicate(scene.log, scene.store, scene.topic, views=without if is_noted else None)
        await scene.append("a", 3)
        for refused in (scene.again().read, scene.again().replicate):
            with pytest.raises(TagsIncomplete, match="headrace tags rebuild --all"):
                await refused()
        assert await TagRepair(scene.log, scene.store, scene.settings).rebuild_all() == 2
        assert numbers_of(await scene.again().read(), "a") == [1, 2, 3]
        await scene.again().replicate()
        assert numbers_of(await scene.again().read(), "a") == [1, 2, 3]
        await scene.append("a", 4)
        with pytest.raises(TagsInUse):
            await replicate(scene.log, scene.store, scene.topic, views=without)

    async def test_views_that_were_given_up_come_back_without_a_hole(self, scene: Scene) -> None:
        """FT7: on, off by an operator, on again: all that the journals have is there, once, with numbers that go on."""
        for n in (1, 2):
            await scene.append("a", n)
        await scene.replicate()
        repair = TagRepair(scene.log, scene.store, scene.settings)
        assert await repair.give_up()
        await scene.append("a", [3, 4])
        with pytest.raises(TagsIncomplete):
            await scene.replicate()
        without = UntaggedViews(scene.store, TagSettings(enabled=False))
        await replicate(scene.log, scene.store, scene.topic, views=without)
        await repair.rebuild_all()
        await scene.append("a", 5)
        await scene.replicate()
        assert [(event.seq_nr, event.number) for event in await scene.read()] == [(n, n) for n in range(1, 6)]

    async def test_a_running_query_notices_that_views_were_given_up(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FT7: what was replicated without views before a slow query came to it is not passed over in silence."""
        for n in (1, 2):
            await scene.append("a", n)
        await scene.replicate()
        follower = scene.follow()
        assert numbers_of(await follower.next(2), "a") == [1, 2]
        repair = TagRepair(scene.log, scene.store, scene.settings)
        await repair.give_up()
        is_replicated = asyncio.Event()

        async def load_late(*arguments: Any) -> KeyState:
            await is_replicated.wait()
            return await load_key(*arguments)

        monkeypatch.setattr(key_lookup, "load_key", load_late)
        await scene.append("a", [3, 4])
        without = UntaggedViews(scene.store, TagSettings(enabled=False))
        await replicate(scene.log, scene.store, scene.topic, views=without)
        await scene.append("a", 5)
        is_replicated.set()
        with pytest.raises(TagsIncomplete):
            await follower.next()
        await follower.stop()

    @pytest.mark.parametrize("wrong", ["", None, 5, "\ud800", "\0epoch", "x" * 70_000])
    async def test_what_can_be_no_tag_is_refused(self, scene: Scene, wrong: Any) -> None:
        """A query for it would be empty for ever, or fail somewhere inside."""
        with pytest.raises(BadArgument, match="tag"):
            scene.queries.events(wrong)

    async def test_a_tag_is_not_given_to_an_empty_place(self, log: Log, store: Store) -> None:
        """T38: addresses that are wrong lead to a place without journals: refused, and nothing is made there."""
        with pytest.raises(BadArgument, match="no journals here"):
            await TagFills(log, store, TagSettings()).begin("big", "shop:is_big")
        assert await store.settings.all("") == {}

    async def test_settings_may_change_before_anything_is_replicated(self, scene: Scene) -> None:
        """FT7: a store that nothing was replicated into follows the next process."""
        without = UntaggedViews(scene.store, TagSettings(enabled=False))
        await without.open_topic(await scene.layout())
        await scene.append("a", 1)
        await scene.replicate()
        assert numbers_of(await scene.read(), "a") == [1]


async def test_disabled_tags_leave_no_tables(tmp_path: Path) -> None:
    """T33: journals work, queries fail with a clear error, and the file holds no table of tags."""
    settings = HeadraceSettings(tags=TagSettings(enabled=False))
    async with connect(f"embedded:{tmp_path}", settings=settings) as hr:
        journal = hr.journal("accounts")
        await journal.append("a", [Event(1, "x", tags=("vip",))])
        assert [event.tags async for event in journal.read("a")] == [("vip",)]
        with pytest.raises(TagsDisabled):
            await anext(hr.events_by_tag("vip"))
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
    assert not [name for name in tables if "tag" in name]
