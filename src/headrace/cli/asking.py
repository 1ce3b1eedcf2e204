"""What commands share: the options that say where, and running a coroutine there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import typer

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.config.layers import DEFAULTS

__all__ = ["Address", "AsJson", "StoreAddress", "command_settings", "with_headrace"]

T = TypeVar("T")

Address: TypeAlias = Annotated[
    str | None, typer.Option("--log", help="embedded:FOLDER or kafka://HOST:PORT; else the settings say.")
]
StoreAddress: TypeAlias = Annotated[
    str | None, typer.Option("--store", help="cassandra://HOST/KEYSPACE; the embedded log brings its own.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command_settings() -> HeadraceSettings:
    """Return the settings of a command. Unless they say so it makes no keyspace: a misspelt name is an error."""
    settings = HeadraceSettings.load()
    (create,) = [each for each in settings.describe() if each.key == "store.cassandra.create_keyspace"]
    if create.source != DEFAULTS:
        return settings
    cassandra = settings.store.cassandra.model_copy(update={"create_keyspace": False})
    return settings.model_copy(update={"store": settings.store.model_copy(update={"cassandra": cassandra})})


def with_headrace(address: str | None, store: str | None, use: Callable[[Headrace], Awaitable[T]]) -> T:
    """Open Headrace, do something with it, and close it again."""

    async def run() -> T:
        async with connect(address, store=store, settings=command_settings()) as hr:
            return await use(hr)

    return asyncio.run(run())
