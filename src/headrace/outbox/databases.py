"""The relay's database: short transactions in threads, seen from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import CursorResult, Engine, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Dialect as DriverDialect

from headrace.observe import get_logger
from headrace.outbox.dialects import READS, Dialect, dialect_of
from headrace.outbox.engines import DatabaseAddress, engine_for
from headrace.outbox.tables import DEFAULT_PREFIX, prefix_of, renamed

__all__ = ["Database", "execute", "storable"]

T = TypeVar("T")
_logger = get_logger(__name__)

Rows: TypeAlias = CursorResult[*tuple[Any, ...]]


def execute(connection: Connection, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
    """Run one statement, its parameters written :name."""
    return connection.execute(text(renamed(sql, prefix_of(connection))), dict(parameters or {}))


_MOST_CHARACTERS = 2000


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
        self._is_postgresql = self._engine.dialect.name == "postgresql"
        self._relaxed = make(relaxed=True) if self._is_postgresql else self._engine
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
        level = {"isolation_level": "AUTOCOMMIT"} if self._is_postgresql else {}
        with self._engine.connect().execution_options(**{READS: True}, **level) as connection:
            yield connection

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
