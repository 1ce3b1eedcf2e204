"""Finding the backend that serves an address."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from headrace.config import LogSettings
from headrace.errors import UnknownBackend
from headrace.log.ports import Log

__all__ = ["open_log"]

GROUP = "headrace.log"


async def open_log(address: str, *, settings: LogSettings | None = None) -> Log:
    """Open the log at `address`: `embedded:./folder`, `kafka://host:9092`, or what an installed package serves.

    A backend is an entry point of the group `headrace.log`, named by its scheme: an async function of the
    address and the settings.
    """
    scheme = address.partition(":")[0]
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in found:
        raise UnknownBackend("log", address, tuple(sorted(f"{name}:" for name in found)))
    open_backend = found[scheme].load()
    return cast("Log", await open_backend(address, settings or LogSettings()))
