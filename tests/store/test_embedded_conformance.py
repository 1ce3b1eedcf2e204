"""The embedded store takes the exam of all stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headrace.store import EventRow
from headrace.testing.conformance import StoreConformance

KEY = "journal = (SELECT number FROM journals WHERE topic = ? AND id = ?) AND segment = ? AND seq_nr = ?"


class Sql:
    """An operator with the sqlite3 command."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"

    async def delete(self, topic: str, id_: str, row: EventRow) -> None:
        self._run(f"DELETE FROM events WHERE {KEY}", topic, id_, row.segment, row.seq_nr)

    async def change(self, topic: str, id_: str, row: EventRow, *, payload: str, origin: str) -> None:
        values = (payload.encode(), origin, topic, id_, row.segment, row.seq_nr)
        self._run(f"UPDATE events SET payload = ?, origin = ? WHERE {KEY}", *values)

    async def add(self, topic: str, id_: str, row: EventRow) -> None:
        self._run("INSERT OR IGNORE INTO journals (topic, id) VALUES (?, ?)", topic, id_)
        self._run(
            "INSERT INTO events (journal, segment, seq_nr, timestamp_ms, generation, partition, offset, log_time_ms,"
            " record_id, payload_type, payload, origin)"
            " SELECT number, ?, ?, ?, ?, ?, ?, ?, ?, 'text', ?, 'somebody' FROM journals WHERE topic = ? AND id = ?",
            row.segment, row.seq_nr, row.timestamp_ms, row.generation, row.partition, row.offset, row.log_time_ms,
            row.record_id.bytes, row.payload, topic, id_,
        )  # fmt: skip

    def _run(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path)) as db:
            assert db.execute(statement, values).rowcount <= 1
            db.commit()


class TestEmbeddedStore(StoreConformance):
    """Every test of the conformance suite, on a folder of its own."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path / 'store'}"

    @pytest.fixture
    def by_hand(self, tmp_path: Path) -> Sql:
        """Edit the file."""
        return Sql(tmp_path / "store")
