"""Where a cluster keeps what its nodes share: SQLite on one machine, ZooKeeper, or a topic of the log.

Promises: one port (`CoordinationStore`), the same behaviour from each; `open_coordinator` finds them by address. The
backend's module is imported when its address is opened: drivers are extras.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import TypeAlias, cast

from headrace.cluster.coordinator import CoordinationStore, Coordinator
from headrace.config import HeadraceSettings
from headrace.errors import MissingExtra, UnknownBackend
from headrace.log import open_log
from headrace.runtime import folder_of, load_backend

__all__ = ["open_coordinator", "open_store"]

Open: TypeAlias = Callable[[str, HeadraceSettings], Awaitable[CoordinationStore]]


async def open_coordinator(address: str | None = None, *, settings: HeadraceSettings | None = None) -> Coordinator:
    """Open the coordinator at `address`, or where the settings say; nobody has joined yet."""
    settings = settings or HeadraceSettings()
    store = await open_store(address, settings=settings)
    return Coordinator(
        store,
        absence_s=settings.cluster.absence_s,
        threshold=settings.cluster.rebalance_threshold,
        cluster_id=settings.cluster.id,
    )


async def open_store(address: str | None = None, *, settings: HeadraceSettings | None = None) -> CoordinationStore:
    """Open what a coordinator keeps: `embedded:FOLDER`, `zookeeper://HOST:PORT`, `kafka://HOST:PORT`.

    Without an address, in the settings neither, it is where the log is. One of another package is an entry point of
    the group `headrace.coordinator`, named by its scheme: an async function of the address and the settings.
    """
    settings = settings or HeadraceSettings()
    address = address or settings.cluster.coordinator or settings.log.address
    scheme = address.partition(":")[0]
    if scheme in _OURS:
        return await _OURS[scheme](address, settings)
    others = entry_points(group="headrace.coordinator")
    if scheme not in {entry.name for entry in others}:
        known = sorted({*_OURS, *(entry.name for entry in others)})
        raise UnknownBackend("coordinator", address, tuple(f"{name}:" for name in known))
    return cast("CoordinationStore", await load_backend("coordinator", address)(address, settings))


async def _embedded(address: str, settings: HeadraceSettings) -> CoordinationStore:
    from headrace.cluster.coordinators.embedded import EmbeddedCoordinationStore

    folder = folder_of(address, "an embedded coordinator needs a folder, as in embedded:./data")
    path = folder / f"cluster-{settings.cluster.name}.db"
    return EmbeddedCoordinationStore(path, session_s=settings.cluster.session_s)


async def _zookeeper(address: str, settings: HeadraceSettings) -> CoordinationStore:
    try:
        from headrace.cluster.coordinators.zookeeper import ZooKeeperCoordinationStore
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("kazoo"):
            raise
        raise MissingExtra("kazoo", "zookeeper") from missing
    hosts = address.removeprefix("zookeeper://")
    return await ZooKeeperCoordinationStore.open(
        hosts, cluster=settings.cluster.name, session_s=settings.cluster.session_s
    )


async def _kafka(address: str, settings: HeadraceSettings) -> CoordinationStore:
    from headrace.cluster.coordinators.kafka import KafkaCoordinationStore

    log = await open_log(address, settings=settings.log)
    return await KafkaCoordinationStore.open(log, cluster=settings.cluster.name, session_s=settings.cluster.session_s)


_OURS: dict[str, Open] = {"embedded": _embedded, "zookeeper": _zookeeper, "kafka": _kafka}
