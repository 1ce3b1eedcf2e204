"""The SQL transaction that an application's handler works in: only its owner may end it.

The owner stores in it that the event is done. If a handler commits on its own, that is stored although the rest of the
work is not; if it rolls back, the work is gone although the owner believes it stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event

from headrace.errors import TransactionEnded

__all__ = ["HandlerTransaction"]


class HandlerTransaction:
    """Refuses commits and rollbacks of a connection while a handler is called. Savepoints are the handler's own."""

    def __init__(self, connection: Connection) -> None:
        self._is_handling = False
        self._refused: TransactionEnded | None = None
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Watch a call of a handler. Raises TransactionEnded, also if the handler caught the refusal."""
        self._is_handling = True
        try:
            yield
        except Exception as error:
            if self._refused is not None and error is not self._refused:  # what follows from the refusal
                raise self._refused from error
            raise
        finally:
            self._is_handling = False
        if self._refused is not None:  # SQLAlchemy takes the transaction for ended, whatever the database says
            raise self._refused

    def _on_commit(self, connection: Connection) -> None:
        self._refuse(connection, "committed")

    def _on_rollback(self, connection: Connection) -> None:
        self._refuse(connection, "rolled back")

    def _refuse(self, connection: Connection, how: str) -> None:
        if self._is_handling:
            self._refused = self._refused or TransactionEnded(how)
            # SQLAlchemy forgets a transaction whose end fails, and would leave it open in the database.
            connection.dialect.do_rollback(connection.connection)
            raise self._refused
