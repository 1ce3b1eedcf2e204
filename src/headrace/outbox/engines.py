"""Engines of the relay's own: the right driver for a URL, and transactions as short as they can be."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import BadArgument, MissingExtra, OperationFailed, Unreachable
from headrace.outbox.dialects import speech_of

__all__ = ["READS", "DatabaseAddress", "engine_for", "named_errors", "url_of"]

DatabaseAddress: TypeAlias = str | URL | Engine | AsyncEngine

READS = "headrace_reads"
"""The execution option of a connection that writes nothing."""

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "psycopg", "postgres"),
    "mysql": ("mysql+pymysql", "pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "pymysql", "mysql"),
    "sqlite": ("sqlite", "sqlite3", "outbox"),
}
_BUSY_TIMEOUT_MS = 30_000


def url_of(database: DatabaseAddress) -> URL:
    """Return the URL behind what was given, with the blocking driver that the outbox uses."""
    url = database.url if isinstance(database, Engine | AsyncEngine) else _parsed(database)
    backend = url.get_backend_name()
    speech_of(backend)  # refuses databases that are not supported
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadArgument("database", str(url), "a relay reads a file; a database in memory belongs to one connection")
    return url.set(drivername=_DRIVERS[backend][0])


@contextmanager
def named_errors(database: DatabaseAddress, operation: str) -> Iterator[None]:
    """Give the drivers' errors names: Unreachable, or OperationFailed for what the database refused."""
    try:
        yield
    except DBAPIError as error:
        given = database.url if isinstance(database, Engine | AsyncEngine) else _parsed(database)
        reason, shown = str(error.orig).strip(), given.render_as_string(hide_password=True)
        if isinstance(error, OperationalError | InterfaceError):
            raise Unreachable(shown, reason) from error
        raise OperationFailed(f"{operation} {shown}", reason) from error


def _parsed(address: str | URL) -> URL:
    try:
        return make_url(address)
    except ArgumentError as error:
        shown = str(address).rpartition("@")[2]  # what stands before may be a password
        rule = "an address looks like postgresql://user@host/name, mysql://user@host/name or sqlite:///file.db"
        raise BadArgument("database", shown, rule) from error


def engine_for(database: DatabaseAddress, *, pool_size: int = 5, relaxed: bool = False) -> Engine:
    """Make an engine. A `relaxed` one does not wait for the disk, where that is the session's to decide.

    Leases may be relaxed: one that a crash of the server forgets is fenced by the holder's uuid all the same.
    """
    url = url_of(database)
    backend = url.get_backend_name()
    try:
        engine = create_engine(url, pool_size=pool_size, max_overflow=0, **_options(backend, relaxed=relaxed))
    except ModuleNotFoundError as missing:
        _, module, extra = _DRIVERS[backend]
        raise MissingExtra(module, extra) from missing
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _options(backend: str, *, relaxed: bool) -> dict[str, Any]:
    if backend == "postgresql":
        return {"connect_args": {"connect_timeout": 10, "application_name": "headrace-outbox", **_postgresql(relaxed)}}
    if backend in ("mysql", "mariadb"):
        # REPEATABLE READ would lock gaps, and with them the inserts of applications.
        return {"isolation_level": "READ COMMITTED", "connect_args": {"connect_timeout": 10}}
    return {"connect_args": {"check_same_thread": False}}


def _postgresql(relaxed: bool) -> dict[str, Any]:
    from psycopg import Cursor, pq

    class BinaryCursor(Cursor[Any]):
        """Takes rows as they are; as text a batch costs twice the time to read."""

        def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the driver's own
            super().__init__(*arguments, **named)
            self.format = pq.Format.BINARY

    return {"cursor_factory": BinaryCursor, "options": "-c synchronous_commit=off" if relaxed else ""}


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, see below
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when somebody wrote in between.
    if not connection.get_execution_options().get(READS):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
