"""The eventual store on one machine: SQLite in WAL mode, one folder, nothing to start."""

from __future__ import annotations

from pathlib import Path

from headrace.config import StoreSettings
from headrace.errors import BadArgument
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore", "open_store"]


async def open_store(address: str, settings: StoreSettings, *, clock: Clock = SYSTEM_CLOCK) -> EmbeddedStore:
    """Open `embedded:FOLDER`."""
    folder = address.removeprefix("embedded:")
    if not folder:
        raise BadArgument("address", address, "an embedded store needs a folder, as in embedded:./data")
    return await EmbeddedStore.open(Path(folder), settings, clock)
