"""A process that serves the bank until it is killed; it reports by printing lines."""

from __future__ import annotations

import asyncio

from tests.engine.models import bank_engine

from headrace.app import connect
from headrace.config import ClusterSettings, EmbeddedLogSettings, HeadraceSettings, LogSettings, StoreSettings

__all__ = ["serve_bank", "settings_of"]


def settings_of(node: str) -> HeadraceSettings:
    """Return the settings of a node; the log survives the death of a process without fsync, too."""
    return HeadraceSettings(
        log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)),
        store=StoreSettings(),
        cluster=ClusterSettings(node_id=node),
    )


def serve_bank(address: str, node: str, partitions: int) -> None:
    """Be a node that serves the bank."""
    asyncio.run(_serve(address, node, partitions))


async def _serve(address: str, node: str, partitions: int) -> None:
    bank = bank_engine(partitions=partitions)
    async with connect(address, settings=settings_of(node)) as hr, hr.node(bank) as running:
        print("serves", flush=True)
        await running.wait()
