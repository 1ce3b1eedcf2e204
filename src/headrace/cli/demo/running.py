"""The demo's order of scenes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from typing import Annotated

import typer

from headrace.app import connect
from headrace.cli.demo.journal_part import show_journal
from headrace.cli.demo.log_part import show_log
from headrace.cli.demo.telling import console

__all__ = ["demo"]


def demo(
    address: Annotated[
        str | None, typer.Option("--log", help="Where to run; else a new folder, thrown away at the end.")
    ] = None,
    store: Annotated[str | None, typer.Option("--store", help="The store of a log that is not embedded.")] = None,
) -> None:
    """See the log and its journals at work, with a transaction, a live reader and a process that is killed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        # On somebody's own log the demo keeps to topics of its own.
        suffix = f"-demo-{os.getpid()}" if address else ""
        asyncio.run(_run(address or f"embedded:{folder}/log", store, suffix))
    console.print(f"\nAll of it took {time.monotonic() - started:.1f} s.")


async def _run(address: str, store: str | None, suffix: str) -> None:
    async with connect(address, store=store) as hr:
        await show_log(hr.log, address, suffix)
        if store is not None or address.startswith("embedded:"):
            await show_journal(hr, suffix)
