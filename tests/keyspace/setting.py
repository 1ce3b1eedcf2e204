"""Nodes for the keyspaces' tests: each a connection of its own to one log."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

import headrace
from headrace.app import Headrace
from headrace.app.nodes import RunningNode
from headrace.config import (
    ClusterSettings,
    GatewaySettings,
    HeadraceSettings,
    KeyspaceSettings,
    LogSettings,
    StoreSettings,
)
from headrace.keyspace import Keyspace, KeyspaceClient
from headrace.model import partition_of

__all__ = ["Place", "Served", "new_key", "serving"]


class Place(NamedTuple):
    """Where a cluster is: its log, its name, and the folder of its copies."""

    address: str
    folder: str
    name: str = "c"

    def settings(self, node_id: str, **cluster: float | str) -> HeadraceSettings:
        """Return the settings of a node."""
        return HeadraceSettings(
            log=LogSettings(address=self.address),
            store=StoreSettings(address=f"embedded:{self.folder}/store"),
            gateway=GatewaySettings(listen="127.0.0.1:0"),
            cluster=ClusterSettings(name=self.name, node_id=node_id, **{"session_s": 1.0, **cluster}),  # type: ignore[arg-type]
            keyspace=KeyspaceSettings(state_dir=self.folder, reply_bytes_kept=1000),
        )


class Served(NamedTuple):
    """A connection, its node, and the client of its first keyspace."""

    headrace: Headrace
    node: RunningNode
    client: KeyspaceClient


@contextlib.asynccontextmanager
async def serving(
    place: Place, node_id: str, *kinds: type[Keyspace], calls: type[Keyspace] | None = None
) -> AsyncIterator[Served]:
    """Run a node while the block runs. `calls` is the keyspace of the client, if the node serves none."""
    async with headrace.connect(settings=place.settings(node_id)) as hr, hr.node(*kinds) as node:
        yield Served(hr, node, hr.keyspace(calls or kinds[0]))


def new_key(partition: int | None = None, *, of: int = 2) -> str:
    """Return a key that no other test has; with a number, one that lies in that partition."""
    while True:
        key = uuid.uuid4().hex[:12]
        if partition in (None, partition_of(key.encode(), of)):
            return key
