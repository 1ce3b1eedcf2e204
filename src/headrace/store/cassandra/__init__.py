"""The eventual store in Apache Cassandra, through cassandra-driver.

Promises: what `headrace.store.ports` promises, with Cassandra's durability at the consistency that is set; no
blocking call on the event loop; nothing printed. Every write carries the place of the record that caused it as its
write time, so writes are repeated without harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import StoreSettings
from headrace.errors import MissingExtra
from headrace.store.cassandra.address import parse

if TYPE_CHECKING:
    from headrace.store.cassandra.store import CassandraStore

__all__ = ["open_store"]


async def open_store(address: str, settings: StoreSettings) -> CassandraStore:
    """Open `cassandra://host[:port][,host2]/keyspace`. Raises Unreachable unless a node answers in time."""
    cluster = parse(address)
    try:
        from headrace.store.cassandra.store import CassandraStore
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "cassandra":
            raise
        raise MissingExtra("cassandra-driver", "cassandra") from missing
    return await CassandraStore.open(cluster, settings)
