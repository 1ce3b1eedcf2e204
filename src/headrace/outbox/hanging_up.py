"""Cutting connections whose server does not answer: threads that wait for them go on, with an error."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from typing import Any, cast

from sqlalchemy import Engine, event
from sqlalchemy.engine import Dialect

__all__ = ["HangUps"]


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
