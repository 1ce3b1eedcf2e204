"""A process that serves the bank until it is killed; it reports by printing lines."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tests.engine.models import bank_engine, counter_engine

from headrace.app import connect
from headrace.config import (
    ClusterSettings,
    EmbeddedLogSettings,
    EmbeddedStoreSettings,
    HeadraceSettings,
    KeyspaceSettings,
    LogSettings,
    StoreSettings,
)

__all__ = ["EnginePlace", "serve_bank", "serve_topic_bank", "settings_of", "topic_bank_settings"]


def settings_of(node: str) -> HeadraceSettings:
    """Return the settings of a node on the embedded tier."""
    return HeadraceSettings(
        log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)),
        store=StoreSettings(),
        cluster=ClusterSettings(node_id=node),
    )


class EnginePlace(NamedTuple):
    """Where a cluster is: its log, and the folder of its store and of its copies. The name is that of its bank, too."""

    address: str
    folder: str
    name: str

    def settings(self, node: str) -> HeadraceSettings:
        """Return the settings of a node; the log survives the death of a process without fsync, too."""
        return HeadraceSettings(
            log=LogSettings(address=self.address, embedded=EmbeddedLogSettings(fsync=False)),
            store=StoreSettings(address=f"embedded:{self.folder}/store", embedded=EmbeddedStoreSettings(fsync=False)),
            cluster=ClusterSettings(name=self.name, node_id=node),
            keyspace=KeyspaceSettings(state_dir=f"{self.folder}/state"),
        )


def serve_bank(address: str, folder: str, name: str, node: str, partitions: int) -> None:
    """Be a node that serves the bank."""
    asyncio.run(_serve(EnginePlace(address, folder, name), node, partitions))


async def _serve(place: EnginePlace, node: str, partitions: int) -> None:
    bank = bank_engine(place.name, partitions=partitions)
    async with connect(settings=place.settings(node)) as hr, hr.node(bank) as running:
        print("serves", flush=True)
        await running.wait()


def topic_bank_settings(cluster: str, node: str, folder: str) -> HeadraceSettings:
    """Return the settings of a node that shares a broker with other clusters."""
    return HeadraceSettings(
        cluster=ClusterSettings(name=cluster, node_id=node), keyspace=KeyspaceSettings(state_dir=folder)
    )


def serve_topic_bank(address: str, cluster: str, node: str, folder: str) -> None:
    """Be a node that serves a counter which takes its commands from a topic."""
    asyncio.run(_serve_topic_bank(address, topic_bank_settings(cluster, node, folder), cluster))


async def _serve_topic_bank(address: str, settings: HeadraceSettings, name: str) -> None:
    counter = counter_engine(name, command_topic=f"{name}-commands")
    async with connect(address, settings=settings) as hr, hr.node(counter) as running:
        print("serves", flush=True)
        await running.wait()
