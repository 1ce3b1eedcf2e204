"""The choice of the backend that serves an address."""

from __future__ import annotations

from typing import cast

from headrace.config import LogSettings
from headrace.log.ports import Log
from headrace.runtime import load_backend

__all__ = ["open_log"]


async def open_log(address: str, *, settings: LogSettings | None = None) -> Log:
    """Open the log at `address`: `embedded:./folder`, `kafka://host:9092`, or what an installed package serves.

    A backend is an entry point of the group `headrace.log`, named by its scheme: an async function of the
    address and the settings.
    """
    open_backend = load_backend("log", address)
    return cast("Log", await open_backend(address, settings or LogSettings()))
