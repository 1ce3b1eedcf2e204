"""Opening all that an application uses, and closing it again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headrace.config import HeadraceSettings
from headrace.log import Log, open_log

__all__ = ["Headrace", "connect"]


class Headrace:
    """An open Headrace."""

    def __init__(self, log: Log, settings: HeadraceSettings) -> None:
        self.log = log
        self.settings = settings


@contextlib.asynccontextmanager
async def connect(address: str | None = None, *, settings: HeadraceSettings | None = None) -> AsyncIterator[Headrace]:
    """Open the log at `address` and what stands on it, while the block runs.

    `embedded:./data` is a folder of this machine, `kafka://host:9092` a cluster. Without an address the settings
    decide; without settings they are loaded from the environment and the files it names.
    """
    settings = settings or HeadraceSettings.load()
    log = await open_log(address or settings.log.address, settings=settings.log)
    try:
        yield Headrace(log, settings)
    finally:
        await log.close()
