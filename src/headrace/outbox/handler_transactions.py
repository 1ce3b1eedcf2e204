"""The SQL transaction that an application's handler works in: only its owner may end it.

The owner stores in it that the event is done. If a handler commits on its own, that is stored although the rest of the
work is not; if it rolls back, the work is gone although the owner believes it stored. A commit through SQLAlchemy is
refused before it happens, and a rollback is seen. What goes past it (the driver's cursor, a procedure of the database)
is noticed by a savepoint, which is gone when its transaction has ended.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from headrace.errors import BadArgument, TransactionEnded

__all__ = ["HandlerTransaction", "check_blocking", "check_done", "handler_name"]

_SAVEPOINT = "headrace_handler"

_BEFORE = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_ENDS = r"COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)"
# MariaDB and MySQL commit at these, but not for temporary tables; BEGIN NOT ATOMIC and DROP PREPARE are something else.
_COMMITS = (
    r"BEGIN(?!\s+NOT\b)|START\s+TRANSACTION|TRUNCATE|RENAME|GRANT|REVOKE|LOCK\s+TABLES?|"
    r"(?:CREATE|ALTER|DROP)(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b|\s+PREPARE\b)"
)
_ENDING = re.compile(rf"{_BEFORE}(?:{_ENDS})\b", re.IGNORECASE | re.DOTALL)
_ENDING_ON_MYSQL = re.compile(rf"{_BEFORE}(?:{_ENDS}|{_COMMITS})\b", re.IGNORECASE | re.DOTALL)
_QUOTED_CHARACTERS = 60


def handler_name(handler: Callable[..., Any]) -> str:
    """Return the name of a handler for messages, with its module."""
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', '')}:{name}"


_ASYNCHRONOUS = "it is asynchronous and its engine is not; give an AsyncEngine, or a plain function"


def check_blocking(name: str, function: Callable[..., Any]) -> None:
    """Raise BadArgument for a function whose code would never run: no event would be handled, and all would be known.

    That is a coroutine function where nobody would await it, and a generator.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadArgument(name, handler_name(function), "it is a generator function, whose code would never run")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise BadArgument(name, handler_name(function), _ASYNCHRONOUS)


def check_done(function: Callable[..., Any], returned: object) -> None:
    """Raise BadArgument if a function has returned work that is still to be awaited, where nobody would."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise BadArgument("handler", handler_name(function), _ASYNCHRONOUS)


class HandlerTransaction:
    """Keeps a handler from ending the transaction of its connection. Savepoints are the handler's own.

    With `may_define_tables` statements like CREATE are not refused where the database commits at them.
    """

    def __init__(self, connection: Connection, *, may_define_tables: bool = False) -> None:
        self._connection = connection
        self._is_handling = False
        self._ended: TransactionEnded | None = None
        self._is_refused = False
        commits_at_ddl = connection.dialect.name in {"mysql", "mariadb"} and not may_define_tables
        self._ending = _ENDING_ON_MYSQL if commits_at_ddl else _ENDING
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self._before_execute)

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Watch a call of a handler. Raises TransactionEnded, also if the handler caught the refusal."""
        self._is_handling = True
        try:
            yield
        except Exception as error:
            # An error of its own may be why a session rolled back: that one counts.
            if self._ended is not None and (self._is_refused or isinstance(error, InvalidRequestError)):
                raise self._ended from (None if error is self._ended else error)
            raise
        finally:
            self._is_handling = False
        if self._ended is not None:  # SQLAlchemy takes the transaction for ended, whatever the database says
            raise self._ended

    def mark(self) -> None:
        """Mark the transaction, before handlers are called. It must have written something, or SQLite has none."""
        self._connection.dialect.do_savepoint(self._connection, _SAVEPOINT)

    def is_lost(self, *, after_error: bool) -> bool:
        """Return True if the marked transaction has ended, or can't be committed; call it after the handlers.

        After an error of a handler the work since the mark is rolled back: that needs the same savepoint, and works
        in a transaction that PostgreSQL has given up.
        """
        if self._ended is not None:  # refused, or rolled back already
            return False
        dialect = self._connection.dialect
        end = dialect.do_rollback_to_savepoint if after_error else dialect.do_release_savepoint
        try:
            end(self._connection, _SAVEPOINT)
        except DBAPIError as error:
            if not error.connection_invalidated:
                return True
            if not after_error:
                raise
        return False

    def _on_commit(self, connection: Connection) -> None:
        if self._is_handling:
            # SQLAlchemy forgets a transaction whose commit fails, and would leave it open in the database.
            connection.dialect.do_rollback(connection.connection)
            self._refuse("committed")

    def _on_rollback(self, _connection: Connection) -> None:
        """Note a rollback. It is not refused: sessions roll back after an error, which must not be hidden."""
        if self._is_handling:
            self._ended = self._ended or TransactionEnded("rolled back")

    def _before_execute(self, _connection: Connection, _cursor: object, statement: str, *_others: object) -> None:
        if self._is_handling and self._ending.match(statement):
            quoted = " ".join(statement.split())[:_QUOTED_CHARACTERS]
            self._refuse(f"ended by {quoted!r}")

    def _refuse(self, how: str) -> NoReturn:
        self._ended = self._ended or TransactionEnded(how)
        self._is_refused = True
        raise self._ended
