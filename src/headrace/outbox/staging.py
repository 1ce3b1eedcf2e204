"""Messages waiting in an ORM session for its commit.

They are inserted after the session's own flush, last before the commit: by then the session has the locks of the rows
it changed, so of two transactions that change the same row the one that commits first also gets the lower ids.

A commit flushes, and listeners of the application publish in that flush, before it and after it. So messages are
inserted at two moments: in `before_commit`, flushing and inserting until nothing is staged any more; and right before
the connection commits, for what listeners behind ours have published since. After that there is nowhere to put a
message, and publishing one raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, groupby
from operator import itemgetter
from typing import Literal, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import event
from sqlalchemy.engine import Connection, NestedTransaction
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from headrace.errors import PublishedTooLate
from headrace.outbox.insert import insert, need_transaction
from headrace.outbox.messages import EncodedMessage
from headrace.outbox.tables import DEFAULT_PREFIX, kafka_messages
from headrace.outbox.wake import announce

__all__ = ["stage", "staged"]

_NAME = "headrace.outbox"
# As many rounds as SQLAlchemy allows for flushes that dirty the session again.
_MOST_ROUNDS = 100
_CLAUSE = {"clause": kafka_messages}


class _Where(Enum):
    AROUND = "around"
    """In the savepoint, or the transaction, around one that was released."""


_Savepoint: TypeAlias = NestedTransaction | Literal[_Where.AROUND] | None


@dataclass(slots=True)
class _Waiting:
    """A message with its tables' prefix, the session's savepoints and transaction, and the connection's savepoint.

    The session does not know of the latter if it was made by `session.connection().begin_nested()`.
    """

    within: tuple[SessionTransaction, ...]
    savepoint: _Savepoint
    prefix: str
    message: EncodedMessage


@dataclass(slots=True)
class _Staged:
    """A session's messages, and those of them that a savepoint of the connection may still take along."""

    messages: list[_Waiting] = field(default_factory=list)
    in_savepoints: list[_Waiting] = field(default_factory=list)
    is_inserted: bool = False

    def add(self, waiting: list[_Waiting], savepoint: NestedTransaction | None) -> None:
        """Add messages that were published in the connection's savepoint."""
        self.messages += waiting
        if savepoint is not None:
            self.in_savepoints += waiting

    def drop(self, is_undone: Callable[[_Waiting], bool]) -> None:
        """Drop those messages of which the claim is true."""
        self.messages = [each for each in self.messages if not is_undone(each)]
        self.in_savepoints = [each for each in self.in_savepoints if not is_undone(each)]

    def clear(self) -> None:
        """Drop all."""
        self.messages.clear()
        self.in_savepoints.clear()

    def settle(self, savepoint: NestedTransaction | None) -> None:
        """Put messages of savepoints that were released into this one; what is in none needs no look any more."""
        for each in self.in_savepoints:
            each.savepoint = savepoint if each.savepoint is _Where.AROUND else each.savepoint
        self.in_savepoints = [each for each in self.in_savepoints if each.savepoint is not None]

    def take(self) -> list[tuple[str, EncodedMessage]]:
        """Return the messages with their prefixes; they wait no longer."""
        taken = [(each.prefix, each.message) for each in self.messages]
        self.clear()
        return taken


_sessions: WeakKeyDictionary[Connection, WeakSet[Session]] = WeakKeyDictionary()
"""Sessions that have published on a connection in the transaction that it is in."""


def stage(session: Session, messages: Sequence[EncodedMessage], table_prefix: str = DEFAULT_PREFIX) -> None:
    """Keep the messages until the session commits; a savepoint that is rolled back takes its own along."""
    connection = _connection(session, messages)
    need_transaction(connection)
    within = tuple(_and_around(session.get_nested_transaction() or session.get_transaction()))
    waiting = session.info.setdefault(_NAME, _Staged())
    savepoint = connection.get_nested_transaction()
    waiting.add([_Waiting(within, savepoint, table_prefix, message) for message in messages], savepoint)
    _insert_before_commit_of(connection, session)


def staged(session: Session) -> list[EncodedMessage]:
    """Return what waits in the session."""
    waiting = _staged(session)
    return [] if waiting is None else [each.message for each in waiting.messages]


def _staged(session: Session) -> _Staged | None:
    return cast("_Staged | None", session.info.get(_NAME))


def _connection(session: Session, messages: Sequence[EncodedMessage]) -> Connection:
    """Return the session's connection; it begins the transaction, as any other use would."""
    try:
        return session.connection(bind_arguments=_CLAUSE)
    except (PendingRollbackError, UnboundExecutionError):
        raise
    except InvalidRequestError as error:
        if not session.in_transaction():
            raise  # nothing was begun, so nothing is too late: as with autobegin=False
        raise PublishedTooLate(messages[0].topic, len(messages), str(error)) from error


def _insert_before_commit_of(connection: Connection, session: Session) -> None:
    _sessions.setdefault(connection, WeakSet()).add(session)
    if not event.contains(connection.engine, "commit", _insert_rest):
        event.listen(connection.engine, "commit", _insert_rest)
        event.listen(connection.engine, "prepare_twophase", lambda connection, _xid: _insert_rest(connection))
        event.listen(connection.engine, "savepoint", lambda connection, *_: _now_within(connection))
        event.listen(connection.engine, "release_savepoint", lambda connection, *_: _released(connection))
        event.listen(connection.engine, "rollback_savepoint", lambda connection, *_: _rolled_back(connection))


def _now_within(connection: Connection) -> tuple[NestedTransaction | None, list[_Staged]]:
    """Return the connection's savepoint and what waits on it; messages of one that was released are in this one."""
    savepoint = connection.get_nested_transaction()
    found = [waiting for session in _sessions.get(connection, ()) if (waiting := _staged(session)) is not None]
    for waiting in found:
        waiting.settle(savepoint)
    return savepoint, found


def _released(connection: Connection) -> None:
    savepoint, found = _now_within(connection)
    for each in chain.from_iterable(waiting.in_savepoints for waiting in found):
        each.savepoint = _Where.AROUND if each.savepoint is savepoint else each.savepoint


def _rolled_back(connection: Connection) -> None:
    savepoint, found = _now_within(connection)
    for waiting in found:
        waiting.drop(lambda each: each.savepoint is savepoint)


def _before_commit(session: Session) -> None:
    waiting = _staged(session)
    if waiting is None or session.in_nested_transaction():
        return  # a savepoint's release commits nothing
    for _ in range(_MOST_ROUNDS):
        session.flush()
        if not waiting.messages:
            return
        _insert(waiting, session.connection(bind_arguments=_CLAUSE))
    left = staged(session)
    reason = f"listeners go on publishing, after {_MOST_ROUNDS} rounds of flushing and inserting"
    raise PublishedTooLate(left[0].topic if left else "", len(left), reason)


def _insert_rest(connection: Connection) -> None:
    """Insert what was published since `before_commit`, by listeners behind ours and in SQLAlchemy's last flushes."""
    for session in list(_sessions.get(connection, ())):
        waiting = _staged(session)
        if waiting is not None and waiting.messages and not session.in_nested_transaction():
            _insert(waiting, connection)


def _insert(waiting: _Staged, connection: Connection) -> None:
    for prefix, messages in groupby(waiting.take(), key=itemgetter(0)):
        insert(connection, [message for _, message in messages], prefix)
    waiting.is_inserted = True


def _after_commit(session: Session) -> None:
    waiting = _staged(session)
    if waiting is None or session.in_nested_transaction():
        return
    if waiting.messages:
        _insert_into_outer(session, waiting)
    if waiting.is_inserted:
        waiting.is_inserted = False
        announce(session.get_bind(clause=kafka_messages).engine.url)


def _insert_into_outer(session: Session, waiting: _Staged) -> None:
    """Insert the rest into a transaction that is not the session's, whose commit is still to come."""
    bind = session.get_bind(clause=kafka_messages)
    if not isinstance(bind, Connection) or not bind.in_transaction():
        left = waiting.take()
        raise PublishedTooLate(left[0][1].topic, len(left), "it was committed without them")
    _insert(waiting, bind)


def _after_rollback(session: Session, rolled_back: SessionTransaction) -> None:
    waiting = _staged(session)
    if waiting is None:
        return
    waiting.drop(lambda each: rolled_back in each.within)
    if rolled_back.parent is None:
        waiting.is_inserted = False


def _after_end(session: Session, ended: SessionTransaction) -> None:
    """Drop all when a session is closed without a commit, which is no rollback to its events."""
    waiting = _staged(session)
    if waiting is not None and ended.parent is None:
        waiting.clear()


def _and_around(at: SessionTransaction | None) -> Iterator[SessionTransaction]:
    while at is not None:
        yield at
        at = at.parent


# For all sessions: a listener that publishes for the first time during a commit can't add listeners to that commit.
event.listen(Session, "before_commit", _before_commit)
event.listen(Session, "after_commit", _after_commit)
event.listen(Session, "after_soft_rollback", _after_rollback)
event.listen(Session, "after_transaction_end", _after_end)
