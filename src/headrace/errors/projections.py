"""Errors of projections, and of handlers that work in a SQL transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "DeadLettersFull",
    "HandlerCommitted",
    "HandlerFailed",
    "OffsetAhead",
    "ProjectionChanged",
    "ProjectionRebuilding",
    "SlotsMoved",
    "TransactionEnded",
    "TransactionLost",
]


@dataclass(eq=False)
class SlotsMoved(Refused):
    """A projection's offsets have changed since this worker stored them; its current work was not stored."""

    projection: str
    says: ClassVar[str] = (
        "offsets of projection {projection!r} were moved by another worker or a command; "
        "load them again and continue from there"
    )


@dataclass(eq=False)
class TransactionEnded(Refused):
    """A handler tried to end the transaction that also stores that its event is done."""

    how: str
    says: ClassVar[str] = (
        "the handler {how} the transaction that also stores that its event is done; that is not allowed, and nothing "
        "of it is stored. Return from the handler to commit, raise an error to roll back, and use "
        "connection.begin_nested() to undo a part of the work"
    )


@dataclass(eq=False)
class TransactionLost(Refused):
    """The transaction that a handler was called in had ended, or was spoiled, when the handler returned."""

    handler: str
    was_committed: bool

    def __str__(self) -> str:
        what = _COMMITTED if self.was_committed else _ROLLED_BACK
        return f"handler {self.handler!r} ended the transaction that it is called in, past SQLAlchemy: {what}"


_COMMITTED = (
    "what it had written up to there was committed, and what came after was rolled back; leave out the COMMIT of the "
    "driver or of a procedure, and on MariaDB and MySQL statements like CREATE or ALTER"
)
_ROLLED_BACK = (
    "all that it had written was rolled back; use connection.begin_nested() around what may fail if it catches the "
    "error, and leave out the ROLLBACK of the driver or of a procedure"
)


@dataclass(eq=False)
class HandlerCommitted(Misconfigured):
    """A projection's handler committed in the middle of a batch; nobody knows which of its events are stored."""

    projection: str
    handler: str
    says: ClassVar[str] = (
        "handler {handler!r} of projection {projection!r} committed its transaction past SQLAlchemy, in the middle of "
        "a batch (by a COMMIT through the driver or in a procedure, or on MariaDB and MySQL by a statement like CREATE "
        "or ALTER): what it had written up to there is stored, the rest of the batch is not. The projection stands "
        "still; fix the handler, then run: headrace projection rebuild (or: headrace projection offset set)"
    )


@dataclass(eq=False)
class HandlerFailed(Unavailable):
    """A projection's handler raised. Earlier events are done; the projection has stopped before this one."""

    projection: str
    tag: str
    topic: str
    id: str
    seq_nr: int
    tag_offset: str
    attempts: int
    reason: str
    says: ClassVar[str] = (
        "projection {projection!r} can't handle event {seq_nr} of {id!r} in {topic!r} (tag {tag!r}, offset "
        "{tag_offset}), attempts: {attempts}: {reason}; fix the handler, choose a recovery, or pass the event with: "
        "headrace projection offset skip"
    )


@dataclass(eq=False)
class ProjectionRebuilding(Unavailable):
    """A rebuild holds a projection's offsets and has not finished."""

    projection: str
    says: ClassVar[str] = (
        "projection {projection!r} is being rebuilt; its workers continue after the reset. "
        "If no rebuild is running, the last one was interrupted: run headrace projection rebuild again"
    )


@dataclass(eq=False)
class ProjectionChanged(Misconfigured):
    """A projection's tag has changed, so its stored offsets can't be used."""

    projection: str
    stored: str
    defined: str
    says: ClassVar[str] = (
        "projection {projection!r} has run with tag {stored!r} and is defined with {defined!r}; give it another name, "
        "or start it again under the new tag with: headrace projection rebuild (or: headrace projection offset clear)"
    )


@dataclass(eq=False)
class OffsetAhead(Misconfigured):
    """A stored offset is further in the future than the log accepts records."""

    projection: str
    tag_offset: str
    ahead_s: float
    says: ClassVar[str] = (
        "projection {projection!r} is at {tag_offset}, {ahead_s:g} s ahead of this machine's clock: it would skip "
        "all events until then; check the clock, or run: headrace projection offset set"
    )


@dataclass(eq=False)
class DeadLettersFull(Misconfigured):
    """A projection without a database has as many dead letters as the store allows."""

    projection: str
    limit: int
    says: ClassVar[str] = (
        "projection {projection!r} has {limit} dead letters, which is the limit without a database; "
        "run: headrace projection dead-letters replay, or purge"
    )
