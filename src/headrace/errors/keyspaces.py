"""Errors of keyspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Refused

__all__ = ["AskCycle", "MessageIdReused", "ReplyNotKept", "RequestFailed", "UnknownMessage", "WritesInRead"]


@dataclass(eq=False)
class UnknownMessage(Refused):
    """No handler of the keyspace takes messages of this type."""

    keyspace: str
    message: str
    known: str
    says: ClassVar[str] = "keyspace {keyspace!r} has no handler for {message}; it handles {known}"


@dataclass(eq=False)
class RequestFailed(Refused):
    """A handler raised an error of the application's own. Nothing that it had written was kept."""

    keyspace: str
    message: str
    kind: str
    reason: str
    says: ClassVar[str] = "{message} was not handled by keyspace {keyspace!r}: {kind}: {reason}; nothing was written"


@dataclass(eq=False)
class WritesInRead(Refused):
    """A handler that is marked as a read has written. A read may be done twice, so nothing was kept."""

    keyspace: str
    handler: str
    says: ClassVar[str] = (
        "handler {handler!r} of keyspace {keyspace!r} is marked read=True and wants to write; nothing was written: "
        "leave the mark away"
    )


@dataclass(eq=False)
class AskCycle(Refused):
    """A handler asked a key whose own handler waits for it: neither would ever end."""

    chain: str
    says: ClassVar[str] = "the requests go round in a circle: {chain}; tell one of them instead of asking it"


@dataclass(eq=False)
class MessageIdReused(Refused):
    """The same id came with another message before; nothing was done with this one."""

    keyspace: str
    message_id: str
    says: ClassVar[str] = "message id {message_id!r} was used in keyspace {keyspace!r} for another message"


@dataclass(eq=False)
class ReplyNotKept(Refused):
    """The message with this id was handled before. Its reply was too large to be kept."""

    keyspace: str
    message_id: str
    says: ClassVar[str] = "message {message_id!r} was handled by keyspace {keyspace!r} before; its reply was not kept"
