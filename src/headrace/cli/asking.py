"""What commands share: the options that say where, and running a coroutine there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import typer

from headrace.app import Headrace, connect

__all__ = ["Address", "AsJson", "StoreAddress", "with_headrace"]

T = TypeVar("T")

Address: TypeAlias = Annotated[
    str | None, typer.Option("--log", help="embedded:FOLDER or kafka://HOST:PORT; else the settings say.")
]
StoreAddress: TypeAlias = Annotated[
    str | None, typer.Option("--store", help="cassandra://HOST/KEYSPACE; the embedded log brings its own.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_headrace(address: str | None, store: str | None, use: Callable[[Headrace], Awaitable[T]]) -> T:
    """Open Headrace, do something with it, and close it again."""

    async def run() -> T:
        async with connect(address, store=store) as hr:
            return await use(hr)

    return asyncio.run(run())
