"""Connection options of the relay's engines: driver URLs, time-outs, and cutting connections that don't answer."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import Connection, Dialect

from headrace.errors import BadArgument

__all__ = ["READS", "HangUps", "blocking_url", "prepare", "session_options"]

Translation: TypeAlias = Callable[[str], dict[str, str]]


def _nothing(_value: str) -> dict[str, str]:
    return {}


def _ssl_mode(value: str) -> dict[str, str]:
    return {
        "sslmode": {"true": "require", "1": "require", "false": "disable", "0": "disable"}.get(value.lower(), value)
    }


def _connect_timeout(value: str) -> dict[str, str]:
    return {"connect_timeout": str(max(2, math.ceil(float(value))))}  # libpq counts in seconds, from 2


def _direct_tls(value: str) -> dict[str, str]:
    return {"sslnegotiation": "direct"} if value.lower() in ("true", "1") else {}


_OF_STATEMENTS = (
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "statement_cache_size",
)
_ASYNCPG: dict[str, Translation] = {
    **dict.fromkeys((*_OF_STATEMENTS, "async_fallback", "gsslib"), _nothing),
    "ssl": _ssl_mode,
    "timeout": _connect_timeout,
    "direct_tls": _direct_tls,
}
_AIOMYSQL: dict[str, Translation] = dict.fromkeys(("auth_plugin", "echo", "loop", "maxsize", "minsize"), _nothing)
_TRANSLATIONS: Mapping[str, Mapping[str, Translation]] = {
    "asyncpg": _ASYNCPG,
    "aiomysql": _AIOMYSQL,
    "asyncmy": _AIOMYSQL,
}


def blocking_url(url: URL, drivername: str) -> URL:
    """Return the URL with the driver, and its query in the driver's words. Raises BadArgument for a bad value."""
    translations = _TRANSLATIONS.get(url.drivername.partition("+")[2], {})
    query: dict[str, str | tuple[str, ...]] = {}
    for name, value in url.query.items():
        if name in translations and isinstance(value, str):
            query.update(_translated(name, value, translations[name]))
        else:
            query[name] = value
    return url.set(drivername=drivername, query=query)


def _translated(name: str, value: str, translate: Translation) -> dict[str, str]:
    try:
        return translate(value)
    except ValueError as error:
        raise BadArgument(name, value, "the database's address needs a number there") from error


READS = "headrace_reads"
"""The execution option of a connection that writes nothing."""

_CONNECT_S = 10
_BUSY_TIMEOUT_MS = 30_000
# When a server's machine is gone nothing resets its connections; the kernel's own keepalive asks after two hours.
_KEEPALIVES = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
# MySQL's driver has no such setting. No statement of ours takes that long, but a count of a huge backlog comes near.
_SILENCE_S = 300


def session_options(url: URL, *, patience_s: float | None) -> dict[str, Any]:
    """Return what create_engine needs to be told. What the URL's query asks for wins over it."""
    backend = url.get_backend_name()
    if backend == "postgresql":
        ours = {"connect_timeout": _CONNECT_S, "application_name": "headrace-outbox", **_KEEPALIVES}
        # A pooler in transaction mode gives each transaction another connection of the server, which knows nothing
        # of statements that were prepared on the last one.
        return {"connect_args": {**_unasked(url, ours), "prepare_threshold": None, **_binary()}}
    if backend in ("mysql", "mariadb"):
        # REPEATABLE READ would lock gaps, and with them the inserts of applications.
        waits = {"connect_timeout": _CONNECT_S, **({} if patience_s is None else {"read_timeout": _SILENCE_S})}
        # Beyond half of its patience a server may have hung up on a connection that nobody used.
        recycle = {} if patience_s is None else {"pool_recycle": _whole_s(patience_s) / 2}
        return {"isolation_level": "READ COMMITTED", "connect_args": _unasked(url, waits), **recycle}
    return {"connect_args": {"check_same_thread": False}}


def prepare(engine: Engine, *, relaxed: bool, patience_s: float | None) -> None:
    """Have each session, or each transaction, of the engine told what can't be said while it connects."""
    backend = engine.url.get_backend_name()
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    elif backend == "postgresql":
        settings = _settings(relaxed=relaxed, patience_s=patience_s)
        if settings:
            event.listen(engine, "begin", partial(_begin_postgresql, _set_local(settings)))
    elif patience_s is not None:
        event.listen(engine, "connect", partial(_prepare_mysql, _whole_s(patience_s)))


def _unasked(url: URL, ours: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ours.items() if name not in url.query}


def _settings(*, relaxed: bool, patience_s: float | None) -> dict[str, str]:
    settings = {"synchronous_commit": "off"} if relaxed else {}
    if patience_s is not None:
        settings["idle_in_transaction_session_timeout"] = f"{_whole_s(patience_s)}s"
    return settings


def _set_local(settings: dict[str, str]) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())


def _begin_postgresql(set_local: str, connection: Connection) -> None:
    # For the transaction, not for the session: a pooler refuses settings at the start, and hands the session to others.
    if not connection.get_execution_options().get(READS):
        connection.exec_driver_sql(set_local).close()


def _whole_s(patience_s: float) -> int:
    return max(2, math.ceil(patience_s))  # MySQL counts in seconds


def _binary() -> dict[str, Any]:
    from psycopg import Cursor, pq

    class BinaryCursor(Cursor[Any]):
        """Takes rows as they are; as text a batch costs twice the time to read."""

        def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the driver's own
            super().__init__(*arguments, **named)
            self.format = pq.Format.BINARY

    return {"cursor_factory": BinaryCursor}


def _prepare_mysql(silence_s: int, connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own
    # It knows no time-out for transactions alone that MySQL and MariaDB share.
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION wait_timeout = {silence_s}")


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, see below
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when somebody wrote in between.
    if not connection.get_execution_options().get(READS):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class HangUps:
    """Knows the drivers' connections of engines that are open now."""

    def __init__(self) -> None:
        self._open: set[Any] = set()

    def watch(self, engine: Engine) -> None:
        """Keep an eye on the engine's connections."""
        if engine.dialect.driver == "pymysql":
            event.listen(engine, "do_connect", self._connect_pymysql)
        event.listen(engine, "connect", lambda connection, _record: self._open.add(connection))
        event.listen(engine, "close", lambda connection, _record: self._open.discard(connection))

    def all(self) -> None:
        """Cut them all."""
        for connection in list(self._open):
            with contextlib.suppress(Exception):  # a connection that is closed already needs no cutting
                _cut(connection)

    def _connect_pymysql(self, dialect: Dialect, _record: object, given: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401
        """Connect, and be known before: PyMySQL waits for the server's greeting as long as for any answer."""
        connection = dialect.connect(*given, **named, defer_connect=True)
        self._open.add(connection)
        try:
            cast("Any", connection).connect()
        except BaseException:
            self._open.discard(connection)
            raise
        return connection


def _cut(connection: Any) -> None:  # noqa: ANN401 - the driver's own
    if isinstance(connection, sqlite3.Connection):
        connection.interrupt()
        return
    # The socket is cut, not the connection, which belongs to the thread that waits. psycopg tells its number only.
    known = getattr(connection, "_sock", None)
    if known is not None:
        known.shutdown(socket.SHUT_RDWR)
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
