"""Messages waiting in an ORM session for its commit.

They are inserted after the session's own flush, last before the commit: by then the session has the locks of the rows
it changed, so of two transactions that change the same row the one that commits first also gets the lower ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from headrace.outbox.inserting import insert
from headrace.outbox.messages import EncodedMessage
from headrace.outbox.tables import kafka_messages
from headrace.outbox.waking import announce

__all__ = ["stage", "staged"]

_NAME = "headrace.outbox"


@dataclass(slots=True)
class _Staged:
    """A session's messages, each with the savepoints and the transaction it was published in."""

    messages: list[tuple[tuple[SessionTransaction, ...], EncodedMessage]] = field(default_factory=list)
    is_inserted: bool = False


def stage(session: Session, messages: Sequence[EncodedMessage]) -> None:
    """Keep the messages until the session commits; a savepoint that is rolled back takes its own along."""
    at = session.get_nested_transaction() or session.get_transaction()
    if at is None:
        session.connection(bind_arguments={"clause": kafka_messages})  # begins, as any other use would
        at = cast("SessionTransaction", session.get_transaction())
    within = tuple(_and_around(at))
    _staged(session).messages.extend((within, message) for message in messages)


def staged(session: Session) -> list[EncodedMessage]:
    """Return what waits in the session."""
    return [message for _, message in _staged(session).messages]


def _staged(session: Session) -> _Staged:
    found = session.info.get(_NAME)
    if found is None:
        found = session.info[_NAME] = _Staged()
        event.listen(session, "before_commit", _insert)
        event.listen(session, "after_commit", _announce)
        event.listen(session, "after_soft_rollback", _drop)
        event.listen(session, "after_transaction_end", _forget)
    return cast("_Staged", found)


def _insert(session: Session) -> None:
    waiting = _staged(session)
    if session.in_nested_transaction() or not waiting.messages:
        return  # a savepoint's release commits nothing
    session.flush()
    messages = [message for _, message in waiting.messages]
    insert(session.connection(bind_arguments={"clause": kafka_messages}), messages)
    waiting.messages.clear()
    waiting.is_inserted = True


def _announce(session: Session) -> None:
    waiting = _staged(session)
    if waiting.is_inserted and not session.in_nested_transaction():
        waiting.is_inserted = False
        announce(session.get_bind(clause=kafka_messages).engine.url)


def _drop(session: Session, rolled_back: SessionTransaction) -> None:
    waiting = _staged(session)
    waiting.messages = [each for each in waiting.messages if rolled_back not in each[0]]
    if rolled_back.parent is None:
        waiting.is_inserted = False


def _forget(session: Session, ended: SessionTransaction) -> None:
    """Drop all when a session is closed without a commit, which is no rollback to its events."""
    if ended.parent is None:
        _staged(session).messages.clear()


def _and_around(at: SessionTransaction | None) -> Iterator[SessionTransaction]:
    while at is not None:
        yield at
        at = at.parent
