"""Noticing that a Core connection committed messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.outbox.waking import announce

__all__ = ["announce_at_commit"]

_PUBLISHED = "headrace.outbox.published"
_COMMITTED = "headrace.outbox.committed"


def announce_at_commit(connection: Connection) -> None:
    """Wake relays when the connection's transaction, which has messages in it now, is committed."""
    connection.info[_PUBLISHED] = True
    if not event.contains(connection.engine, "commit", _committing):
        event.listen(connection.engine, "commit", _committing)
        event.listen(connection.engine, "rollback", _rolling_back)
        event.listen(connection.engine.pool, "checkin", _returned)


def _committing(connection: Connection) -> None:
    """Told a moment before the commit: a relay that looks too early looks again soon."""
    if connection.info.pop(_PUBLISHED, False):
        connection.info[_COMMITTED] = connection.engine.url
        announce(connection.engine.url)


def _rolling_back(connection: Connection) -> None:
    connection.info.pop(_PUBLISHED, None)


def _returned(_connection: Any, entry: ConnectionPoolEntry) -> None:  # noqa: ANN401 - the driver's own
    url = entry.info.pop(_COMMITTED, None)
    if url is not None:
        announce(url)
