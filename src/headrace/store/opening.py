"""Finding the backend that serves an address."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from headrace.config import StoreSettings
from headrace.errors import UnknownBackend
from headrace.store.ports import Store

__all__ = ["open_store"]

GROUP = "headrace.store"


async def open_store(address: str, *, settings: StoreSettings | None = None) -> Store:
    """Open the store at `address`: `embedded:./folder`, `cassandra://host/keyspace`, or what a package serves.

    A backend is an entry point of the group `headrace.store`, named by its scheme: an async function of the
    address and the settings.
    """
    scheme = address.partition(":")[0]
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in found:
        raise UnknownBackend("store", address, tuple(sorted(f"{name}:" for name in found)))
    open_backend = found[scheme].load()
    return cast("Store", await open_backend(address, settings or StoreSettings()))
