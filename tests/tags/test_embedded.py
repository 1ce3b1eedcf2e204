"""Events by tag on the embedded tier."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace.app import connect
from headrace.config import HeadraceSettings, TagSettings
from headrace.errors import TagsDisabled
from headrace.model import Event
from headrace.store import Store
from headrace.testing.conformance.tags_filling import TagFillConformance
from headrace.testing.conformance.tags_queries import TagQueryConformance
from headrace.testing.conformance.tags_simulation import TagSimulation
from headrace.testing.conformance.tags_views import (
    TABLES,
    TagLossConformance,
    TagRepairConformance,
    TagViewConformance,
)


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
