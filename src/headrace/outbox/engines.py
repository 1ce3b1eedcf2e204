"""The relay's database: an engine with the right driver for a URL, named errors, and short transactions in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import URL, CursorResult, Engine, create_engine, event, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Dialect as DriverDialect
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import BadArgument, FileUnusable, MissingExtra, OperationFailed, Unreachable
from headrace.observe import get_logger
from headrace.outbox.dialects import READS, Dialect, dialect_of
from headrace.outbox.dialects.dialect import Translation
from headrace.outbox.tables import DEFAULT_PREFIX, PREFIX_OPTION, checked_prefix, prefix_of, renamed

__all__ = ["Database", "DatabaseAddress", "engine_for", "execute", "named_errors", "storable", "url_of"]

T = TypeVar("T")
DatabaseAddress: TypeAlias = str | URL | Engine | AsyncEngine
Rows: TypeAlias = CursorResult[*tuple[Any, ...]]

_logger = get_logger(__name__)

_MOST_CHARACTERS = 2000


def url_of(database: DatabaseAddress) -> URL:
    """Return the URL behind what was given, for the blocking driver that the outbox uses. Raises BadArgument.

    Arguments in its query that only the application's own driver knows are translated or left out.
    """
    url = _given_url(database)
    backend = url.get_backend_name()
    dialect = dialect_of(backend)  # refuses databases that are not supported
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        rule = "a relay reads a file, as in sqlite:///shop.db; a database in memory belongs to one connection"
        raise BadArgument("database", str(url), rule)
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


def execute(connection: Connection, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
    """Run one statement, its parameters written :name."""
    return connection.execute(text(renamed(sql, prefix_of(connection))), dict(parameters or {}))


def storable(message: str) -> str:
    """Return an error's message, cut, with characters that a database refuses written as escapes.

    Errors quote the data they are about: PostgreSQL takes no NUL, and half of a surrogate pair has no UTF-8.
    """
    return message[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode().replace("\0", "\\x00")


class Database:
    """Connections to one database, and the threads that use them.

    `write` waits for the disk at its commit; `write_relaxed` does not where the server lets a session choose.
    With `patience_s` the server ends a transaction in which nothing happens for longer, see `engine_for`.
    """

    def __init__(
        self,
        database: DatabaseAddress,
        *,
        threads: int = 4,
        patience_s: float | None = None,
        table_prefix: str = DEFAULT_PREFIX,
    ) -> None:
        make = partial(engine_for, database, pool_size=threads, patience_s=patience_s, table_prefix=table_prefix)
        self._engine = make()
        self._relaxed = make(relaxed=True) if self._engine.dialect.name == "postgresql" else self._engine
        self.dialect: Dialect = dialect_of(self._engine.dialect.name)
        self._connections = _OpenConnections(self.dialect)
        for engine in {self._engine, self._relaxed}:
            self._connections.watch(engine)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="headrace-outbox-sql")

    async def read(self, question: Callable[[Connection], T]) -> T:
        """Run a read, outside of any transaction."""
        return await self._in_thread(self._reading, question)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Run a change in one transaction."""
        return await self._in_thread(self._writing, self._engine, change)

    async def write_relaxed(self, change: Callable[[Connection], T]) -> T:
        """Run a change that may be lost when the server crashes right after it."""
        return await self._in_thread(self._writing, self._relaxed, change)

    async def close(self, *, timeout_s: float = 2.0) -> None:
        """Close connections and threads. Statements that run may end; after the time-out they are cut off."""
        closed = asyncio.get_running_loop().create_future()
        closing = threading.Thread(target=self._close, args=(closed,), name="headrace-outbox-close", daemon=True)
        closing.start()
        done, _ = await asyncio.wait([closed], timeout=timeout_s)
        if done:
            return
        _logger.warning("the database does not answer, its connections are cut", after_s=timeout_s)
        self._connections.cut_all()
        await asyncio.wait([closed], timeout=timeout_s)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reads, for blocking callers."""
        with self._engine.connect() as connection:
            yield connection.execution_options(**{READS: True}, **self.dialect.options_of_reads(connection))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction, for blocking callers."""
        with self._engine.begin() as connection:
            yield connection

    def _reading(self, question: Callable[[Connection], T]) -> T:
        with self.reading() as connection:
            return question(connection)

    def _writing(self, engine: Engine, change: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            return change(connection)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        # Shielded: a cancelled caller must not take the outcome of a statement that runs for one that never ran.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments))

    def _close(self, closed: asyncio.Future[None]) -> None:
        self._threads.shutdown(wait=True)
        self._engine.dispose()
        self._relaxed.dispose()
        with contextlib.suppress(RuntimeError):  # the loop did not wait for us
            closed.get_loop().call_soon_threadsafe(_set_done, closed)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _OpenConnections:
    """The drivers' connections of some engines that are open now, so that those which don't answer can be cut."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._open: set[Any] = set()

    def watch(self, engine: Engine) -> None:
        """Follow the engine's connections."""
        if engine.dialect.driver == "pymysql":
            event.listen(engine, "do_connect", self._connect_pymysql)
        event.listen(engine, "connect", lambda connection, _record: self._open.add(connection))
        event.listen(engine, "close", lambda connection, _record: self._open.discard(connection))

    def cut_all(self) -> None:
        """Cut every connection under the thread that waits for its answer."""
        for connection in list(self._open):
            with contextlib.suppress(Exception):  # a connection that is closed already needs no cutting
                self._dialect.cut(connection)

    def _connect_pymysql(self, dialect: DriverDialect, _record: object, given: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401
        """Connect, and know the connection before: PyMySQL waits for the server's first packet as for any answer."""
        connection = dialect.connect(*given, **named, defer_connect=True)
        self._open.add(connection)
        try:
            cast("Any", connection).connect()
        except BaseException:
            self._open.discard(connection)
            raise
        return connection
