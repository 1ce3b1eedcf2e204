"""Errors of the log: topics, partitions, records, groups and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "BadToken",
    "Fenced",
    "ImpossibleTopicChange",
    "NotOwner",
    "OffsetOutOfRange",
    "RecordTooLarge",
    "TimestampTooFarAhead",
    "TokenAhead",
    "TokenOfOtherTopic",
    "TopicExists",
    "TransactionFailed",
    "TransactionMisused",
    "UnknownPartition",
    "UnknownTopic",
    "UnreadableRecord",
    "WrongPartitionCount",
]

_COMMIT_UNKNOWN = "it may or may not have been committed; take the id again, then read what is there"


@dataclass(eq=False)
class UnknownTopic(Refused):
    """The topic does not exist."""

    topic: str
    says: ClassVar[str] = (
        "there is no topic {topic!r}; create it first (log.admin.create, or `headrace topic create {topic}`, "
        "for journals `headrace topic create {topic} --journal`)"
    )


@dataclass(eq=False)
class TopicExists(Refused):
    """A topic of that name exists already."""

    topic: str
    says: ClassVar[str] = "topic {topic!r} exists already; use it, configure it, or choose another name"


@dataclass(eq=False)
class UnknownPartition(Refused):
    """The topic has no such partition."""

    topic: str
    partition: int
    partitions: int
    says: ClassVar[str] = "topic {topic!r} has no partition {partition}; it has {partitions}, numbered from 0"


@dataclass(eq=False)
class OffsetOutOfRange(Refused):
    """The log does not hold that offset; `start` and `end` (exclusive) are what it holds."""

    topic: str
    partition: int
    offset: int
    start: int
    end: int

    def __str__(self) -> str:
        where = f"offset {self.offset} of {self.topic}[{self.partition}]"
        held = f"the log holds [{self.start}, {self.end})"
        if self.offset < self.start:
            lost = f"{self.start - self.offset} records from {self.offset} to {self.start - 1} are gone"
            return f"{where} is out of range: {held}; {lost}, start at {self.start} or restore them"
        return f"{where} is out of range: {held}; nothing was ever written there, start at {self.end} or lower"


@dataclass(eq=False)
class UnreadableRecord(Refused):
    """The log holds something at an offset that is not a record; all records before it were returned, none after it."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.topic}[{self.partition}] holds no readable record: {self.reason}; "
            f"go on at {self.offset + 1} to leave it out (a member of a group commits that offset)"
        )


@dataclass(eq=False)
class RecordTooLarge(Refused):
    """A record is larger than its topic allows."""

    topic: str
    size_bytes: int
    limit_bytes: int
    says: ClassVar[str] = (
        "a record of {size_bytes} bytes does not fit topic {topic!r}, which takes {limit_bytes}; "
        "split it, or raise max_record_bytes of the topic"
    )


@dataclass(eq=False)
class TimestampTooFarAhead(Refused):
    """A record's timestamp is further in the future than its topic allows."""

    topic: str
    timestamp_ms: int | None
    bound_ms: int
    says: ClassVar[str] = (
        "a record for topic {topic!r} is stamped {timestamp_ms}, more than {bound_ms} ms ahead of the log's clock; "
        "check this machine's clock"
    )


@dataclass(eq=False)
class Fenced(Refused):
    """This owner of a transactional id is not its owner any more, and must stop.

    A successor took the id over, or the log ended a transaction that was open for too long. Nothing of what this
    owner still had open was written, unless `outcome_known` is False: then a commit was on its way, and may have come
    first.
    """

    transactional_id: str
    outcome_known: bool = True

    def __str__(self) -> str:
        ended = "nothing it had open was written" if self.outcome_known else _COMMIT_UNKNOWN
        return (
            f"transactional id {self.transactional_id!r} was taken over by a newer owner, or its transaction was open "
            f"for too long; this owner must stop: {ended}"
        )


@dataclass(eq=False)
class BadToken(Refused):
    """A text that is no consistency token of this log."""

    reason: str
    says: ClassVar[str] = (
        "the consistency token can't be used: {reason}; pass on, unchanged, what an append, a command or a write gave"
    )


@dataclass(eq=False)
class TokenOfOtherTopic(Refused):
    """A consistency token names a topic by an id that the topic of this name does not have.

    `found_topic_id` is empty if there is no topic of this name.
    """

    topic: str
    topic_id: str
    found_topic_id: str

    def __str__(self) -> str:
        found = f"that topic has the id {self.found_topic_id!r}" if self.found_topic_id else "there is no such topic"
        return (
            f"the consistency token is of topic {self.topic!r} with the id {self.topic_id!r}, and {found} here: the "
            "topic was deleted since, or the token is of another cluster; take the token of a newer write"
        )


@dataclass(eq=False)
class TokenAhead(Refused):
    """A consistency token names a record that the log does not have: acknowledged records were lost, or it was made up.

    `end` is the offset that the next record gets.
    """

    topic: str
    partition: int
    offset: int
    end: int
    says: ClassVar[str] = (
        "the consistency token names offset {offset} of {topic}[{partition}], which ends at {end}: the log has lost "
        "records, or never had this one; read without the token to see what is there"
    )


@dataclass(eq=False)
class NotOwner(Refused):
    """This member does not own the partitions that it tried to commit."""

    group: str
    detail: str
    says: ClassVar[str] = "group {group!r} refused the commit: {detail}; the new owner starts from the last commit"


@dataclass(eq=False)
class TransactionMisused(Refused):
    """The calls of a transaction came in the wrong order."""

    transactional_id: str
    problem: str
    says: ClassVar[str] = "transaction {transactional_id!r}: {problem}"


@dataclass(eq=False)
class TransactionFailed(Unavailable):
    """A transaction failed. With `outcome_known` nothing of it was committed, and it can be tried again.

    Otherwise its commit was sent and not acknowledged. Take the id again, which settles the outcome; then read what was
    committed.
    """

    transactional_id: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        ended = "nothing of it was committed" if self.outcome_known else _COMMIT_UNKNOWN
        return f"transaction {self.transactional_id!r} failed: {self.reason}; {ended}"


@dataclass(eq=False)
class ImpossibleTopicChange(Misconfigured):
    """The log can't change the topic as requested."""

    topic: str
    change: str
    next_step: str
    says: ClassVar[str] = "topic {topic!r} can't be changed: {change}; {next_step}"


@dataclass(eq=False)
class WrongPartitionCount(Misconfigured):
    """The topic does not have the requested number of partitions."""

    topic: str
    expected: int
    actual: int

    def __str__(self) -> str:
        known = f"topic {self.topic!r} has {self.actual} partitions, {self.expected} were requested"
        if self.expected > self.actual:
            return f"{known}; run: headrace topic grow {self.topic} --partitions {self.expected}"
        return f"{known}; partitions can't be removed: ask for {self.actual}, or copy into a new topic"
