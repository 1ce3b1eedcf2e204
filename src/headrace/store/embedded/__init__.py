"""The eventual store on one machine: SQLite in WAL mode, one folder, nothing to start."""

from __future__ import annotations

from pathlib import Path

from headrace.config import StoreSettings
from headrace.errors import NothingThere
from headrace.runtime import SYSTEM_CLOCK, Clock, folder_of
from headrace.store.embedded.store import FILE_NAME, EmbeddedStore

__all__ = ["EmbeddedStore", "open_store"]


async def open_store(address: str, settings: StoreSettings, *, clock: Clock = SYSTEM_CLOCK) -> EmbeddedStore:
    """Open `embedded:FOLDER`."""
    folder = folder_of(address, "an embedded store needs a folder, as in embedded:./data")
    if not settings.embedded.create_folder and not _is_anything_in(folder):
        command = f"headrace topic create NAME --journal --store {address}"
        raise NothingThere("store", address, str((folder / FILE_NAME).absolute()), command)
    return await EmbeddedStore.open(folder, settings, clock)


def _is_anything_in(folder: Path) -> bool:
    """Return True if the folder has a store, or a log that was never used with one, whose store is empty."""
    return (folder / FILE_NAME).exists() or (folder / "log.db").exists()
