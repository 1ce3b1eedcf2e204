"""Engines of the relay's own: the right driver for a URL, its connection options, and names for its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import BadArgument, FileUnusable, MissingExtra, OperationFailed, Unreachable
from headrace.outbox.dialects import dialect_of
from headrace.outbox.dialects.dialect import Translation
from headrace.outbox.tables import DEFAULT_PREFIX, PREFIX_OPTION, checked_prefix

__all__ = ["DatabaseAddress", "engine_for", "named_errors", "url_of"]

DatabaseAddress: TypeAlias = str | URL | Engine | AsyncEngine


def url_of(database: DatabaseAddress) -> URL:
    """Return the URL behind what was given, for the blocking driver that the outbox uses. Raises BadArgument.

    Arguments in its query that only the application's own driver knows are translated or left out.
    """
    url = _given_url(database)
    backend = url.get_backend_name()
    dialect = dialect_of(backend)  # refuses databases that are not supported
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadArgument("database", str(url), "a relay reads a file; a database in memory belongs to one connection")
    translations = dialect.translations.get(url.drivername.partition("+")[2], {})
    query: dict[str, str | tuple[str, ...]] = {}
    for name, value in url.query.items():
        if name in translations and isinstance(value, str):
            query.update(_translated(name, value, translations[name]))
        else:
            query[name] = value
    return url.set(drivername=f"{backend}+{dialect.driver}" if dialect.driver else backend, query=query)


def _translated(name: str, value: str, translate: Translation) -> dict[str, str]:
    try:
        return translate(value)
    except ValueError as error:
        raise BadArgument(name, value, "the database's address needs a number there") from error


def _given_url(database: DatabaseAddress) -> URL:
    if isinstance(database, Engine | AsyncEngine):
        return database.url
    try:
        return make_url(database)
    except ArgumentError as error:
        shown = str(database).rpartition("@")[2]  # what stands before may be a password
        rule = "an address looks like postgresql://user@host/name, mysql://user@host/name or sqlite:///file.db"
        raise BadArgument("database", shown, rule) from error


@contextmanager
def named_errors(database: DatabaseAddress, operation: str) -> Iterator[None]:
    """Give the drivers' errors names: Unreachable, FileUnusable, or OperationFailed for what the database refused."""
    try:
        yield
    except DBAPIError as error:
        given = _given_url(database)
        backend = given.get_backend_name()
        reason, shown = str(error.orig).strip(), given.render_as_string(hide_password=True)
        if isinstance(error, OperationalError | InterfaceError) and not _is_about_sql(backend, error):
            raise (FileUnusable if backend == "sqlite" else Unreachable)(shown, reason) from error
        raise OperationFailed(f"{operation} {shown}", reason) from error


def _is_about_sql(backend: str, error: DBAPIError) -> bool:
    """Return True if a database that was reached refused a statement, as the creation of a table that exists."""
    return error.orig is not None and dialect_of(backend).is_about_sql(error.orig)


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
    With `patience_s` a server ends a transaction in which nothing happens for that long. Otherwise the transaction of
    a process that is frozen, or of a machine that is gone, would keep its locks, and hold up all who wait for the rows.
    """
    url = url_of(database)
    dialect = dialect_of(url.get_backend_name())
    try:
        options = dialect.session_options(url, patience_s=patience_s)
        names = {PREFIX_OPTION: checked_prefix(table_prefix)}
        engine = create_engine(url, pool_size=pool_size, max_overflow=0, execution_options=names, **options)
    except ModuleNotFoundError as missing:
        raise MissingExtra(dialect.driver or dialect.name, dialect.extra) from missing
    dialect.prepare(engine, relaxed=relaxed, patience_s=patience_s)
    return engine
