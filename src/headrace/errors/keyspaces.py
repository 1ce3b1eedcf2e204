"""Errors of keyspaces, and of the states by key that they and engines keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "AskCycle",
    "KeyPresent",
    "MessageIdReused",
    "NotReadable",
    "NotStorable",
    "NotUnique",
    "ReplyNotKept",
    "RequestFailed",
    "StateAhead",
    "StateBroken",
    "StateConflict",
    "StateDiskFull",
    "StateLocked",
    "StateOffline",
    "StateOutOfFiles",
    "StateReadOnly",
    "StateRedeclared",
    "StateStale",
    "SubscriptionEnded",
    "UnknownMessage",
    "WritesInRead",
    "WrongStateTopic",
]


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


@dataclass(eq=False)
class NotStorable(Refused):
    """A key or a value of another type than its state has, or outside of what can be written."""

    what: str
    value: str
    reason: str
    says: ClassVar[str] = "{what} {value} can't be written: {reason}"


@dataclass(eq=False)
class NotReadable(Refused):
    """Bytes that a state did not write, or that were damaged since."""

    what: str
    data: str
    reason: str
    says: ClassVar[str] = (
        "{data} can't be read as {what}: {reason}; see whether the state was declared with another type before, or who "
        "else writes to its topic"
    )


@dataclass(eq=False)
class KeyPresent(Refused):
    """An insert found a value."""

    state: str
    key: str
    says: ClassVar[str] = "cannot insert {key} into state {state!r}: it has a value already; put or update replaces it"


@dataclass(eq=False)
class NotUnique(Refused):
    """Another key of the partition has the value that must be unique."""

    state: str
    index: str
    value: str
    key: str
    holder: str
    says: ClassVar[str] = (
        "cannot write {key} to state {state!r}: {index} {value} belongs to {holder}; choose another, or delete that one"
    )


@dataclass(eq=False)
class StateReadOnly(Refused):
    """A write to a copy: nothing was written."""

    state: str
    reason: str
    says: ClassVar[str] = "cannot write to state {state!r}: {reason}"


@dataclass(eq=False)
class StateOffline(Unavailable):
    """The partition's state is not whole yet, or not settled."""

    state: str
    reason: str
    says: ClassVar[str] = "state {state!r} is offline: {reason}; ask again later, or ask another replica"


@dataclass(eq=False)
class StateConflict(Unavailable):
    """A unit of work has read a key that was changed before it could commit; nothing of it was written."""

    state: str
    key: str
    says: ClassVar[str] = "{key} of state {state!r} changed meanwhile; nothing was written, do the work again"


@dataclass(eq=False)
class StateStale(Unavailable):
    """This copy is older than the read allows, or has not come as far as the read asks for."""

    state: str
    reason: str
    says: ClassVar[str] = "this copy of state {state!r} is too old: {reason}; ask the owner, or allow more"


@dataclass(eq=False)
class SubscriptionEnded(Unavailable):
    """The changes that follow could have holes; what was delivered is right."""

    state: str
    after: int | None
    reason: str

    def __str__(self) -> str:
        resume = "subscribe again" if self.after is None else f"resume after offset {self.after}"
        return f"the subscription to state {self.state!r} ended: {self.reason}; {resume}"


@dataclass(eq=False)
class StateBroken(Misconfigured):
    """The folder of a state's store can't be read or written."""

    folder: str
    reason: str
    says: ClassVar[str] = (
        "the state in {folder} can't be used: {reason}; nothing is lost, the log has it all: "
        "stop this node, move the folder away, and start again to have it rebuilt"
    )


@dataclass(eq=False)
class StateLocked(Misconfigured):
    """The folder of a state's store is open elsewhere."""

    folder: str
    says: ClassVar[str] = (
        "the state in {folder} is in use by another process; stop that one, or give each node a folder of its own"
    )


@dataclass(eq=False)
class StateDiskFull(Misconfigured):
    """The folder of a state's store can't grow."""

    folder: str
    reason: str
    says: ClassVar[str] = (
        "the state in {folder} can't be written: {reason}; what was committed is in the log: "
        "free some space (or raise the limit of the file's size), then start this node again"
    )


@dataclass(eq=False)
class StateOutOfFiles(Misconfigured):
    """A file of a state's store can't be opened, because the process has too many open."""

    folder: str
    reason: str
    says: ClassVar[str] = (
        "the state in {folder} can't be used: {reason}; the folder is whole: raise the limit of open files "
        "(ulimit -n), then start this node again"
    )


@dataclass(eq=False)
class StateAhead(Misconfigured):
    """The store has applied records that the log does not have any more: the log lost acknowledged data."""

    topic: str
    partition: int
    stored: int
    end: int
    says: ClassVar[str] = (
        "the state of {topic}[{partition}] was applied up to offset {stored}, but the log ends at {end}: the log lost "
        "acknowledged records; nothing was wiped. Restore the log, or, to accept the loss, move the state's folder away"
    )


@dataclass(eq=False)
class StateRedeclared(Misconfigured):
    """A state is declared with another type of keys, or another kind of values, than it was written with."""

    keyspace: str
    state: str
    what: str
    stored: str
    declared: str
    says: ClassVar[str] = (
        "state {state!r} of keyspace {keyspace!r} has {what} of kind {stored}, and is declared with {declared} now: "
        "what is stored could not be read, and new values would be mixed with it. Nothing was changed. Declare it as "
        "before, or give the new state another name and fill it from the old one"
    )


@dataclass(eq=False)
class WrongStateTopic(Misconfigured):
    """The changelog of a state can't be changed into what the state declares."""

    topic: str
    problem: str
    next_step: str
    says: ClassVar[str] = "topic {topic!r} can't be the changelog of this state: {problem}; {next_step}"
