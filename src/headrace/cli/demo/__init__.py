"""`headrace demo`: all parts at work, in a temporary folder, one scene after the other."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    address: Annotated[
        str | None, typer.Option("--log", help="The log to run on. Default: a temporary folder.")
    ] = None,
    store: Annotated[str | None, typer.Option("--store", help="The store of a log that is not embedded.")] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Show the pipeline too; it starts Spark.")] = True,
    serve: Annotated[
        bool, typer.Option("--serve", help="Skip the scenes: keep all parts busy, and serve the console until Ctrl-C.")
    ] = False,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where --serve listens; port 0: any free one.")
    ] = "127.0.0.1:8080",
) -> None:
    """See log, journals, tags, keyspaces, a bank, outbox and pipeline at work, with processes that are killed.

    Example: headrace demo --no-spark
    """
    # The scenes import every room, which other commands should not wait for.
    from headrace.cli.demo.pipeline_part import show_pipeline
    from headrace.cli.demo.voice import console

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        # On an existing log the demo uses topics of its own.
        suffix = f"-demo-{os.getpid()}" if address else ""
        place = address or f"embedded:{folder}/log"
        if serve:
            from headrace.cli.demo.console_part import serve_console

            asyncio.run(serve_console(place, store, suffix, Path(folder), listen))
            return
        asyncio.run(_run(place, store, suffix))
        if spark and (store is not None or place.startswith("embedded:")):
            show_pipeline(place, store, suffix)
    console.print(f"\nAll of it took {time.monotonic() - started:.1f} s.")
    console.print("To watch it at work in a browser: headrace demo --serve")


async def _run(address: str, store: str | None, suffix: str) -> None:
    from headrace.app import connect
    from headrace.cli.demo.bank_part import show_bank
    from headrace.cli.demo.journal_part import show_journal, show_tags
    from headrace.cli.demo.keyspace_part import show_keyspace
    from headrace.cli.demo.log_part import show_log, show_outbox

    async with connect(address, store=store) as hr:
        has_store = store is not None or address.startswith("embedded:")
        await show_log(hr.log, address, suffix)
        if has_store:
            await show_journal(hr, suffix)
            await show_tags(hr, suffix)
        await show_keyspace(hr, address, suffix)
        if has_store:
            await show_bank(hr, address, store, suffix)
        await show_outbox(hr.log, suffix)
