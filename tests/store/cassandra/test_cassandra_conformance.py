"""The Cassandra store takes the exam of all stores."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.store import EventRow
from headrace.testing.conformance import StoreConformance

pytestmark = pytest.mark.servers

KEY = "id = %s AND topic = %s AND segment = %s AND seq_nr = %s AND timestamp = %s"


class Cqlsh:
    """An operator with cqlsh: what is written carries the time of the clock."""

    def __init__(self, cql: Any, keyspace: str) -> None:
        self._cql = cql
        self._table = f"{keyspace}.journal"

    async def delete(self, topic: str, id_: str, row: EventRow) -> None:
        self._cql.execute(f"DELETE FROM {self._table} WHERE {KEY}", _key(topic, id_, row))

    async def change(self, topic: str, id_: str, row: EventRow, *, payload: str, origin: str) -> None:
        values = (payload, origin, *_key(topic, id_, row))
        self._cql.execute(f"UPDATE {self._table} SET payload_txt = %s, origin = %s WHERE {KEY}", values)

    async def add(self, topic: str, id_: str, row: EventRow) -> None:
        assert row.payload is not None
        self._cql.execute(
            f"INSERT INTO {self._table} (id, topic, segment, seq_nr, timestamp, generation, partition, offset,"
            " log_time, meta_record_id, payload_type, payload_txt, origin)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'text', %s, 'somebody')",
            (*_key(topic, id_, row), row.generation, row.partition, row.offset, row.log_time_ms, row.record_id,
             row.payload.decode()),
        )  # fmt: skip


def _key(topic: str, id_: str, row: EventRow) -> tuple[object, ...]:
    return id_, topic, row.segment, row.seq_nr, row.timestamp_ms


class TestCassandraStore(StoreConformance):
    """Every test of the conformance suite, in topics of its own."""

    @pytest.fixture
    def address(self, store_address: str) -> str:
        """Return the run's keyspace."""
        return store_address

    @pytest.fixture
    def by_hand(self, cql: Any, store_address: str) -> Cqlsh:
        """Edit the tables."""
        return Cqlsh(cql, store_address.rpartition("/")[2])
