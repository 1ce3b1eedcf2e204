"""Finding the store that serves an address."""

from __future__ import annotations

from typing import cast

from headrace.runtime import load_backend
from headrace.state.ports import KeyValueStore

__all__ = ["open_state_store"]


async def open_state_store(address: str) -> KeyValueStore:
    """Open the store at `address`: `memory:`, `rocksdb:./folder`, or what an installed package serves.

    A store is an entry point of the group `headrace.state`, named by its scheme: an async function of the address.
    """
    open_backend = load_backend("state", address)
    return cast("KeyValueStore", await open_backend(address))
