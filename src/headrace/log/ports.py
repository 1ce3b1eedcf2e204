"""The ports of a log: what every backend promises, and the choice of the backend that serves an address.

A backend implements these five protocols and passes `headrace.testing.conformance.log`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, Protocol, cast

from headrace.config import LogSettings
from headrace.model import Batch, Bounds, NewRecord, Position, Record, Topic, TopicConfig, TopicPartition
from headrace.runtime import load_backend

__all__ = ["Admin", "Groups", "Listener", "Log", "Member", "Retention", "StartAt", "TransactionalProducer", "open_log"]

StartAt = Literal["earliest", "latest"]


class Admin(Protocol):
    """Topics: create, configure, describe, grow, delete."""

    async def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        """Create a topic. Raises TopicExists, or BadArgument for a topic that the log can't have."""
        ...

    async def configure(self, topic: str, config: TopicConfig) -> Topic:
        """Replace the topic's whole configuration by `config`. Raises ImpossibleTopicChange."""
        ...

    async def describe(self, topic: str) -> Topic:
        """Return the topic as it is now. Raises UnknownTopic."""
        ...

    async def topics(self) -> Sequence[str]:
        """List the names of all topics, sorted; the log's internal ones are left out."""
        ...

    async def delete(self, topic: str) -> None:
        """Remove the topic with all its records. Raises UnknownTopic."""
        ...

    async def add_partitions(self, topic: str, *, total: int) -> Topic:
        """Give the topic more partitions. Keys move to other partitions, so the caller must be prepared for that."""
        ...


class Retention(Protocol):
    """Removal of old records."""

    async def truncate(self, at: TopicPartition, *, before: int) -> int:
        """Remove the records below `before`; returns the partition's new start. Raises OffsetOutOfRange."""
        ...

    async def release(self, at: TopicPartition, *, below: int) -> None:
        """Allow the removal of records below the offset (see TopicConfig.keep_until_released). Never goes back."""
        ...

    async def enforce(self) -> None:
        """Apply retention and compaction now, if the backend does that itself; brokers do it at their own times."""
        ...


class TransactionalProducer(Protocol):
    """The owner of a transactional id; taking the id fenced all earlier owners.

    Promises: what is appended between begin and commit becomes visible together, or never.
    Does not promise: anything about a commit that raised with `outcome_known` False. Such a commit was sent and not
    acknowledged, whatever the error's type, Fenced included. Take the id again to settle it, then read what is there.
    Does not promise: that one producer lasts. After a commit that was not acknowledged, or a connection that broke
    while a transaction ended, `begin` raises TransactionFailed: the log may still hold a late request of the last
    transaction, which would end the next one half-way. Take the id again then.
    """

    transactional_id: str

    async def begin(self) -> None:
        """Open a transaction.

        Raises TransactionMisused if one is open, Fenced if the id was taken over, TransactionFailed if the id must be
        taken again first. A take-over that is not known yet shows later, at the commit at the latest.
        """
        ...

    async def append(self, records: Sequence[NewRecord]) -> None:
        """Add records to the open transaction. Records that can't be written are refused here; SoundRecords, for which
        their maker vouches, may be refused at the commit instead, after which no transaction is open."""
        ...

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction. The member must own the partitions."""
        ...

    async def commit(self) -> Sequence[Position]:
        """Commit the transaction; returns the positions of its records, in the order of the appends.

        Raises Fenced or TransactionFailed; with `outcome_known` False the transaction may have been committed.
        """
        ...

    async def abort(self) -> None:
        """Abort the transaction. The offsets of its records stay unused."""
        ...

    async def close(self) -> None:
        """Abort an open transaction and close the connection; the id stays taken until another owner takes it."""
        ...


class Listener(Protocol):
    """Callbacks about a member's partitions, called from inside `Member.poll`."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """The member owns these partitions now, in addition to those it has."""
        ...

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The member loses these partitions when this returns; commits of them still count."""
        ...

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """The member has lost these partitions already; commits of them are refused."""
        ...


class Member(Protocol):
    """A member of a group. A partition belongs to one member of its group at a time.

    `generation` grows each time the member's assignment changes.
    """

    group: str
    member_id: str

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns, as of the last poll."""
        ...

    @property
    def generation(self) -> int:
        """How often the assignment has changed."""
        ...

    async def poll(self, *, max_records: int = 1000, timeout_s: float = 1.0) -> Sequence[Record]:
        """Take part in the group and return the next records of the assignment; none if the time is up.

        A stored record that can't be decoded raises UnreadableRecord, at each poll until the member commits an
        offset behind it and so goes past it. A poll that is cancelled takes nothing away from the next one.
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets to continue from (each one after the last handled record). Raises NotOwner."""
        ...

    async def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Stop fetching these partitions, or fetch them again; the member keeps them."""
        ...

    async def leave(self) -> None:
        """Call `revoked`, give all partitions back, and leave the group."""
        ...


class Groups(Protocol):
    """Consumer groups."""

    async def join(
        self,
        group: str,
        topics: Sequence[str],
        *,
        listener: Listener | None = None,
        start_at: StartAt = "earliest",
        session_timeout_s: float = 45.0,
    ) -> Member:
        """Join a group. A partition without a committed offset starts at `start_at`."""
        ...

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the committed offsets; partitions without one are left out."""
        ...


class Log(Protocol):
    """Topics of ordered, partitioned, append-only records.

    Promises: records of one partition are read in the order of their offsets by every reader, and readers
    see committed records only. An acknowledged append survives the death of any process.
    Does not promise: an order between partitions; consecutive offsets; that a record is there only once after an append
    to its topic has timed out: the driver may then send what was on its way again. Journals and transactions bear that.
    """

    @property
    def admin(self) -> Admin:
        """Topics."""
        ...

    @property
    def retention(self) -> Retention:
        """Removal of old records."""
        ...

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        ...

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records, acknowledged by all in-sync replicas; returns their positions, in order.

        Records of one partition keep their order. Everything is checked before anything is written.
        An append is not atomic over several partitions; a transaction is. Keys, values and header values are bytes or
        None; views and arrays of bytes are refused, because they could change while they are written.
        Raises BadArgument, UnknownTopic, UnknownPartition, RecordTooLarge, TimestampTooFarAhead, Unreachable, TimedOut.
        """
        ...

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        """Yield batches from `start` until the position is at or past `end`; without `end`, forever.

        A bounded read that makes no progress for `timeout_s` raises TimedOut: an open transaction may be in
        the way. Raises OffsetOutOfRange, also when retention overtakes the reader.
        A record that can't be decoded raises UnreadableRecord after all records before it; a new read from its
        offset + 1 goes past it.
        A read without `end` raises UnknownTopic when its topic is deleted, also if a topic of the same name was created
        since. Brokers do not notify readers: for some seconds it may yield records of the new topic before it ends.
        """
        ...

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return the bounds of what the partition holds now."""
        ...

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        """Return the lowest offset with that timestamp or a later one; None if there is none yet."""
        ...

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        """Take over the id: earlier owners are fenced, and their open transactions are aborted.

        A transaction that stays open longer than `timeout_s` is aborted by the log.
        """
        ...

    async def close(self) -> None:
        """Close everything; waiting readers get Closed."""
        ...


async def open_log(address: str, *, settings: LogSettings | None = None) -> Log:
    """Open the log at `address`: `embedded:./folder`, `kafka://host:9092`, or what an installed package serves.

    A backend is an entry point of the group `headrace.log`, named by its scheme: an async function of the
    address and the settings.
    """
    open_backend = load_backend("log", address)
    return cast("Log", await open_backend(address, settings or LogSettings()))
