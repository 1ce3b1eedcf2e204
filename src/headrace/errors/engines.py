"""Errors of command engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "CommandExpired",
    "CommandFailed",
    "CommandIdReused",
    "CommandTooLarge",
    "CommandTooLate",
    "EventsMissing",
    "FoldFailed",
    "InputRecordsLost",
    "OutcomeUnknown",
    "RebuildRefused",
    "RejectedCommand",
    "ReplyNotReadable",
    "UnknownCommand",
    "UpcastFailed",
    "WrongEngineTopic",
    "WrongVersion",
]


@dataclass(eq=False)
class UnknownCommand(Refused):
    """An engine was sent a command or an event that it has no handler for."""

    engine: str
    kind: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"engine {self.engine!r} has no handler for {self.kind}; it has handlers for {known}"


@dataclass(eq=False)
class CommandFailed(Refused):
    """A handler of the application raised an error, or made something that can't be stored. Nothing was done."""

    engine: str
    aggregate: str
    command: str
    stage: str
    reason: str
    says: ClassVar[str] = (
        "command {command} for {aggregate!r} of engine {engine!r} failed in its {stage}, and nothing was done: "
        "{reason}; correct the handler or the command, and send it with another command id"
    )
    says_of_state: ClassVar[str] = (
        "command {command} for {aggregate!r} of engine {engine!r} was not done, because the aggregate's state can't be "
        "read: {reason}; if the class of the state has changed, give new fields defaults, or make the states again: "
        "headrace engine rebuild MODULE:NAME. Then send the command again"
    )

    @property
    def is_of_state(self) -> bool:
        """True if the stored state can't be read: the command was not tried, and its id is not spent."""
        return self.stage == "state"

    def __str__(self) -> str:
        return (self.says_of_state if self.is_of_state else self.says).format_map(vars(self))


@dataclass(eq=False)
class CommandTooLarge(Refused):
    """A part of what a command wants to write, or its reply, is larger than it may be. Nothing was done."""

    engine: str
    aggregate: str
    part: str
    size_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        limit = "EngineLimits.reply_bytes" if self.part == "reply" else "max_record_bytes of the topic"
        return (
            f"a command for {self.aggregate!r} of engine {self.engine!r} was not done: its {self.part} takes "
            f"{self.size_bytes} bytes, {self.limit_bytes} are allowed; make it smaller, or raise {limit}"
        )


@dataclass(eq=False)
class CommandIdReused(Refused):
    """A command id names one command: its retries are equal to it, and no other command has it."""

    aggregate: str
    command_id: str
    says: ClassVar[str] = (
        "command id {command_id!r} was used for another command of {aggregate!r}, and nothing was done; "
        "give every command an id of its own, and repeat it only unchanged"
    )


@dataclass(eq=False)
class CommandTooLate(Refused):
    """A retry that came so late that its command id may have been forgotten; this attempt did nothing."""

    aggregate: str
    command_id: str
    since: str
    forgotten: str
    says: ClassVar[str] = (
        "command id {command_id!r} of {aggregate!r} was first sent after batch {since}, and ids up to batch "
        "{forgotten} were forgotten; this attempt did nothing. If no other attempt was made, send it again without "
        "`since`; else look at the aggregate to find out what became of it"
    )


@dataclass(eq=False)
class UpcastFailed(Refused):
    """An event of an old version that an engine's upcasters do not make into an event of its present classes."""

    engine: str
    place: str
    event: str
    version: int
    reason: str
    says: ClassVar[str] = (
        "engine {engine!r} can't read version {version} of {event} ({place}): {reason}; "
        "declare or correct its upcaster (@engine.upcast)"
    )


@dataclass(eq=False)
class FoldFailed(Refused):
    """An event of a journal that an engine's event handler, or the codec of its state, does not take."""

    engine: str
    aggregate: str
    seq_nr: int
    event: str
    reason: str
    says: ClassVar[str] = (
        "event {seq_nr} of {aggregate!r}, {event}, can't be applied by engine {engine!r}: {reason}; "
        "correct the event handler, or declare an upcaster"
    )


@dataclass(eq=False)
class EventsMissing(Refused):
    """A journal does not hold all events from number 1 on, so that no state can be made from it."""

    engine: str
    aggregate: str
    expected: int
    found: int
    says: ClassVar[str] = (
        "the journal of {aggregate!r} in engine {engine!r} has event {found} where event {expected} should be, so its "
        "state can't be made from it; events were deleted or lost, see `headrace journal history`"
    )


@dataclass(eq=False)
class RebuildRefused(Refused):
    """An engine's state can't be rebuilt as things are. Nothing was written, unless `reason` says so."""

    engine: str
    reason: str
    next_step: str
    says: ClassVar[str] = "the state of engine {engine!r} is not rebuilt: {reason}; {next_step}"


@dataclass(eq=False)
class WrongVersion(Refused):
    """The aggregate is not at the version that the command expects; nothing was done."""

    aggregate: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "a command for {aggregate!r} expects version {expected}, it is at {actual}; read its state and decide again"
    )


@dataclass(eq=False)
class RejectedCommand(Refused):
    """The application of an engine does not accept a command, as the gateway answers it; nothing was done."""

    code: str
    message: str
    details: object

    def __str__(self) -> str:
        return self.message or f"the command was rejected: {self.code}"


@dataclass(eq=False)
class CommandExpired(Unavailable):
    """A command's deadline passed before it was handled."""

    engine: str
    aggregate: str
    timeout_s: float
    says: ClassVar[str] = (
        "a command for {aggregate!r} of engine {engine!r} was not handled within {timeout_s:g} s; "
        "nothing was done, send it again"
    )


@dataclass(eq=False)
class OutcomeUnknown(Unavailable):
    """A command was on its way into the log when its time was up, or the log can't tell what became of it."""

    engine: str
    aggregate: str
    reason: str
    outcome_known: bool = False
    says: ClassVar[str] = (
        "a command for {aggregate!r} of engine {engine!r} may or may not have been done: {reason}; "
        "send it again with the same command id, or look at the aggregate"
    )


@dataclass(eq=False)
class ReplyNotReadable(Unavailable):
    """A command or a message was answered, and the caller can't read the answer: most likely it was done."""

    what: str
    reason: str
    outcome_known: bool = False
    says: ClassVar[str] = (
        "{what} was handled, and its reply can't be read here: {reason}; it may have been done. Look at what became of "
        "it, and see that this program has the classes and upcasters of the node that answered"
    )


@dataclass(eq=False)
class WrongEngineTopic(Misconfigured):
    """A topic that an engine can't use: another engine's, or one with journals that it does not know."""

    engine: str
    topic: str
    problem: str
    next_step: str
    says: ClassVar[str] = "engine {engine!r} can't use topic {topic!r}: {problem}; {next_step}"


@dataclass(eq=False)
class InputRecordsLost(Misconfigured):
    """An input topic ends before what an engine or a keyspace has read of it: acknowledged records were lost."""

    topic: str
    partition: int
    first: int
    last: int
    says: ClassVar[str] = (
        "offsets {first} to {last} of {topic}[{partition}] were read and are gone from the log; records that are "
        "written there now would be taken for done, so none is read. Restore the topic, or delete it and create it "
        "again: then it is read from its start"
    )
