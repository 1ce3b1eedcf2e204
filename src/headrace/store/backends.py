"""The choice of the backend that serves an address."""

from __future__ import annotations

from typing import cast

from headrace.config import StoreSettings
from headrace.runtime import load_backend
from headrace.store.ports import Store

__all__ = ["open_store"]


async def open_store(address: str, *, settings: StoreSettings | None = None) -> Store:
    """Open the store at `address`: `embedded:./folder`, `cassandra://host/keyspace`, or what a package serves.

    A backend is an entry point of the group `headrace.store`, named by its scheme: an async function of the
    address and the settings.
    """
    open_backend = load_backend("store", address)
    return cast("Store", await open_backend(address, settings or StoreSettings()))
