"""The log on one machine: SQLite in WAL mode, one folder, nothing to start."""

from __future__ import annotations

from headrace.config import LogSettings
from headrace.errors import NothingThere
from headrace.log.embedded.log import FILE_NAME, EmbeddedLog
from headrace.runtime import SYSTEM_CLOCK, Clock, folder_of

__all__ = ["EmbeddedLog", "open_log"]


async def open_log(address: str, settings: LogSettings, *, clock: Clock = SYSTEM_CLOCK) -> EmbeddedLog:
    """Open `embedded:FOLDER`."""
    folder = folder_of(address, "an embedded log needs a folder, as in embedded:./data")
    if not settings.embedded.create_folder and not (file := folder / FILE_NAME).exists():
        command = f"headrace topic create NAME --journal --log {address}"
        raise NothingThere("log", address, str(file.absolute()), command)
    return await EmbeddedLog.open(folder, settings.embedded, clock)
