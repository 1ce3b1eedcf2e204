"""Every coordinator takes the exam of all coordinators: in SQLite, in ZooKeeper, in a topic of the log."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.testing.conformance import CoordinatorConformance
from headrace.testing.conformance.coordinator_setting import Outage


class TestEmbeddedCoordinator(CoordinatorConformance):
    """Each test on a file of its own."""

    session_s = 1.0

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def outage(self, tmp_path: Path, cluster_name: str) -> Outage:
        """Somebody holds the file's lock; readers don't care, so the file is unreadable, too."""
        path = tmp_path / f"cluster-{cluster_name}.db"

        @asynccontextmanager
        async def locked() -> AsyncIterator[None]:
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                db.execute("ROLLBACK")
                db.close()

        return locked
