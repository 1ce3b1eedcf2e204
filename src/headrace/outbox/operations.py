"""Operations of the command line on an outbox: look, change, run a relay. Drivers' errors become our own here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from sqlalchemy.engine import Connection

from headrace.config import HeadraceSettings, OutboxSettings
from headrace.observe import serve
from headrace.outbox.dead import dead_messages, missing_ids, purge, replay
from headrace.outbox.engines import Database, named_errors
from headrace.outbox.relay import checked_threads, opened_relay
from headrace.outbox.rows import sent_messages
from headrace.outbox.schema import migrate, need_newest, schema_version
from headrace.outbox.stats import status
from headrace.outbox.tables import DEFAULT_PREFIX
from headrace.runtime import shutdown_on_signals

__all__ = [
    "ask",
    "change",
    "check",
    "dead_messages",
    "make_tables",
    "missing_ids",
    "need_tables",
    "purge",
    "relay_until_stopped",
    "replay",
    "sent_messages",
    "status",
]

T = TypeVar("T")


def check(settings: OutboxSettings) -> None:
    """Raise BadArgument unless a relay could work with the settings."""
    checked_threads(settings)


def make_tables(url: str, *, to: str, table_prefix: str = DEFAULT_PREFIX) -> str | None:
    """Bring the tables to a version; returns it."""
    return migrate(url, to=to, table_prefix=table_prefix)


def ask(url: str, question: Callable[[Connection], T], *, table_prefix: str = DEFAULT_PREFIX) -> T:
    """Ask the database something."""
    return _use(url, table_prefix, Database.reading, question)


def change(url: str, do: Callable[[Connection], T], *, table_prefix: str = DEFAULT_PREFIX) -> T:
    """Change something, in one transaction."""
    return _use(url, table_prefix, Database.writing, do)


def need_tables(url: str, *, table_prefix: str = DEFAULT_PREFIX) -> None:
    """Raise MissingTables or OutdatedTables, with what to run, unless the tables are there and new enough."""
    need_newest(url, schema_version(url, table_prefix=table_prefix), table_prefix=table_prefix)


async def relay_until_stopped(
    url: str, log_address: str, settings: HeadraceSettings, *, report: Callable[[str], None]
) -> None:
    """Run a relay until the first signal; the second ends the process."""
    port = settings.observe.metrics_port
    async with shutdown_on_signals() as stop:
        with nullcontext() if port is None else serve(port):
            async with opened_relay(url, log_address, settings=settings.outbox, log_settings=settings.log) as relay:
                report(f"relaying with {len(relay.workers)} worker{'s' if len(relay.workers) != 1 else ''}")
                await stop.wait()
                report("stopping: what is in hand is finished first; another signal does not wait for it")
        report("stopped")


def _use(
    url: str,
    table_prefix: str,
    enter: Callable[[Database], AbstractContextManager[Connection]],
    use: Callable[[Connection], T],
) -> T:
    need_tables(url, table_prefix=table_prefix)
    opened = Database(url, threads=1, table_prefix=table_prefix)
    try:
        with named_errors(url, "using"), enter(opened) as connection:
            return use(connection)
    finally:
        asyncio.run(opened.close())
