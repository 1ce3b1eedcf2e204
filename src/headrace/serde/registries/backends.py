"""Opening a registry by its address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import TypeAlias, cast

from headrace.config import RegistrySettings
from headrace.errors import BadArgument, UnknownBackend
from headrace.log import Log
from headrace.model import check_topic_name
from headrace.runtime import folder_of, load_backend
from headrace.serde.compatibility import Level
from headrace.serde.ports import Registry

__all__ = ["open_registry"]

Open: TypeAlias = Callable[[str, RegistrySettings, Log | None], Awaitable[Registry]]


async def open_registry(
    address: str | None = None, *, log: Log | None = None, settings: RegistrySettings | None = None
) -> Registry:
    """Open the registry at `address`; the default is that of the settings.

    `log:TOPIC` is a topic of `log`, `folder:PATH` a folder, `memory:` is in memory, and `http://…` and `https://…` are
    servers with Confluent's protocol.
    A registry of another package is an entry point of the group `headrace.registry`, named by its scheme: an async
    function of the address, the settings and the log.
    """
    settings = settings or RegistrySettings()
    address = address or settings.address
    scheme = address.partition(":")[0]
    if scheme in _OURS:
        return await _OURS[scheme](address, settings, log)
    others = entry_points(group="headrace.registry")
    if scheme not in {entry.name for entry in others}:
        known = sorted({*_OURS, *(entry.name for entry in others)})
        raise UnknownBackend("registry", address, tuple(f"{name}:" for name in known))
    return cast("Registry", await load_backend("registry", address)(address, settings, log))


async def _in_log(address: str, settings: RegistrySettings, log: Log | None) -> Registry:
    from headrace.serde.registries.in_log import LogRegistry

    if log is None:
        raise BadArgument("registry", address, "a registry in the log needs the log: open_registry(…, log=…)")
    return LogRegistry(log, check_topic_name(address.partition(":")[2]), level=Level(settings.level))


async def _folder(address: str, settings: RegistrySettings, log: Log | None) -> Registry:
    from headrace.serde.registries.folder import FolderRegistry

    folder = folder_of(address, "a registry in a folder needs its path, as in folder:./schemas")
    return FolderRegistry(folder, level=Level(settings.level))


async def _memory(address: str, settings: RegistrySettings, log: Log | None) -> Registry:
    from headrace.serde.registries.memory import MemoryRegistry

    return MemoryRegistry(level=Level(settings.level))


async def _http(address: str, settings: RegistrySettings, log: Log | None) -> Registry:
    from headrace.serde.registries.confluent import ConfluentRegistry

    return ConfluentRegistry(address, settings.http, level=Level(settings.level))


_OURS: dict[str, Open] = {"log": _in_log, "folder": _folder, "memory": _memory, "http": _http, "https": _http}
