"""Engines of the relay's own: the right driver for a URL, and transactions as short as they can be."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import BadArgument, FileUnusable, MissingExtra, OperationFailed, Unreachable
from headrace.outbox.connections import blocking_url, prepare, session_options
from headrace.outbox.dialects import dialect_of
from headrace.outbox.table_names import DEFAULT_PREFIX, PREFIX_OPTION, checked_prefix

__all__ = ["DatabaseAddress", "engine_for", "named_errors", "url_of"]

DatabaseAddress: TypeAlias = str | URL | Engine | AsyncEngine

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "psycopg", "postgres"),
    "mysql": ("mysql+pymysql", "pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "pymysql", "mysql"),
    "sqlite": ("sqlite", "sqlite3", "outbox"),
}
_MYSQL_TABLE_EXISTS = 1050


def url_of(database: DatabaseAddress) -> URL:
    """Return the URL behind what was given, with the blocking driver that the outbox uses."""
    url = database.url if isinstance(database, Engine | AsyncEngine) else _parsed(database)
    backend = url.get_backend_name()
    dialect_of(backend)  # refuses databases that are not supported
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadArgument("database", str(url), "a relay reads a file; a database in memory belongs to one connection")
    return blocking_url(url, _DRIVERS[backend][0])


@contextmanager
def named_errors(database: DatabaseAddress, operation: str) -> Iterator[None]:
    """Give the drivers' errors names: Unreachable, FileUnusable, or OperationFailed for what the database refused."""
    try:
        yield
    except DBAPIError as error:
        given = database.url if isinstance(database, Engine | AsyncEngine) else _parsed(database)
        reason, shown = str(error.orig).strip(), given.render_as_string(hide_password=True)
        if isinstance(error, OperationalError | InterfaceError) and not _is_about_sql(error.orig):
            raise (FileUnusable if given.get_backend_name() == "sqlite" else Unreachable)(shown, reason) from error
        raise OperationFailed(f"{operation} {shown}", reason) from error


def _is_about_sql(error: BaseException | None) -> bool:
    """Say whether a database that was reached refused what it was told, as a table that exists already."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", None) == "SQLITE_ERROR"
    return error is not None and error.args[:1] == (_MYSQL_TABLE_EXISTS,)


def _parsed(address: str | URL) -> URL:
    try:
        return make_url(address)
    except ArgumentError as error:
        shown = str(address).rpartition("@")[2]  # what stands before may be a password
        rule = "an address looks like postgresql://user@host/name, mysql://user@host/name or sqlite:///file.db"
        raise BadArgument("database", shown, rule) from error


def engine_for(
    database: DatabaseAddress,
    *,
    pool_size: int = 5,
    relaxed: bool = False,
    patience_s: float | None = None,
    table_prefix: str = DEFAULT_PREFIX,
) -> Engine:
    """Make an engine. A `relaxed` one does not wait for the disk, where that is the session's to decide.

    Leases may be relaxed: one that a crash of the server forgets is fenced by the holder's uuid all the same.
    With `patience_s` a server ends a transaction in which nothing is said for so long. It would keep the locks of a
    process that is frozen, or of a machine that is gone, and with them whoever waits for the same rows.
    """
    url = url_of(database)
    backend = url.get_backend_name()
    try:
        options = session_options(url, patience_s=patience_s)
        names = {PREFIX_OPTION: checked_prefix(table_prefix)}
        engine = create_engine(url, pool_size=pool_size, max_overflow=0, execution_options=names, **options)
    except ModuleNotFoundError as missing:
        _, module, extra = _DRIVERS[backend]
        raise MissingExtra(module, extra) from missing
    prepare(engine, relaxed=relaxed, patience_s=patience_s)
    return engine
