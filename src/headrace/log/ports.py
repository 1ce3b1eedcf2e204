"""What a log is, whoever keeps it.

A backend implements these five protocols and passes `headrace.testing.conformance.log`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from headrace.model import Batch, Bounds, NewRecord, Position, Record, Topic, TopicConfig, TopicPartition

__all__ = ["Admin", "Groups", "Listener", "Log", "Member", "Retention", "StartAt", "TransactionalProducer"]

StartAt = Literal["earliest", "latest"]


class Admin(Protocol):
    """Topics: making, changing, looking at, removing."""

    async def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        """Make a topic. Raises TopicExists, or BadArgument for what the log can't make."""
        ...

    async def configure(self, topic: str, config: TopicConfig) -> Topic:
        """Set the topic's configuration to `config`, whole. Raises ImpossibleTopicChange."""
        ...

    async def describe(self, topic: str) -> Topic:
        """Say what the topic is now. Raises UnknownTopic."""
        ...

    async def topics(self) -> Sequence[str]:
        """List the names of all topics, sorted; the log's internal ones are left out."""
        ...

    async def delete(self, topic: str) -> None:
        """Remove the topic with all it holds. Raises UnknownTopic."""
        ...

    async def add_partitions(self, topic: str, *, total: int) -> Topic:
        """Give the topic more partitions. Keys move, so this is for those who know how to move with them."""
        ...


class Retention(Protocol):
    """What may be thrown away."""

    async def truncate(self, at: TopicPartition, *, before: int) -> int:
        """Remove what lies below `before`; returns the log's new start. Raises OffsetOutOfRange."""
        ...

    async def release(self, at: TopicPartition, *, below: int) -> None:
        """Say that all below the offset is safe elsewhere (see TopicConfig.keep_until_released). Never goes back."""
        ...

    async def enforce(self) -> None:
        """Apply retention and compaction now, where that is ours to do; a broker does it in its own time."""
        ...


class TransactionalProducer(Protocol):
    """One owner of a transactional id; taking the id fenced all owners before.

    Promises: what is appended between begin and commit becomes visible at once, or never.
    Does not promise: anything about a commit that raised with `outcome_known` False. Such a commit was sent and not
    acknowledged, whatever the error's type, Fenced included; taking the id again settles it, and then reading tells.
    Does not promise: that one producer lasts. After a commit that was not acknowledged, or a connection that broke
    while a transaction ended, `begin` raises TransactionFailed: the log may still hold a late request of the last
    transaction, which would end the next one half-way. Take the id again then.
    """

    transactional_id: str

    async def begin(self) -> None:
        """Open a transaction.

        Raises TransactionMisused if one is open, Fenced if the id was taken over, TransactionFailed if the id must be
        taken again first.
        """
        ...

    async def append(self, records: Sequence[NewRecord]) -> None:
        """Add records to the open transaction. What can be refused is refused here."""
        ...

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction. The member must own the partitions."""
        ...

    async def commit(self) -> Sequence[Position]:
        """Make it visible; returns where each record landed, in the order of the appends.

        Raises Fenced or TransactionFailed, each with `outcome_known`: False means that it may have been committed.
        """
        ...

    async def abort(self) -> None:
        """Drop it. The offsets that it took stay unused."""
        ...

    async def close(self) -> None:
        """Abort what is open and let go of the connection; the id stays taken until somebody else takes it."""
        ...


class Listener(Protocol):
    """Told about a member's partitions, from inside `Member.poll`."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These are ours now, in addition to those we have."""
        ...

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """These go to somebody else as soon as this returns; commits of them still count."""
        ...

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """These went to somebody else already; commits of them are refused."""
        ...


class Member(Protocol):
    """A member of a group. A partition belongs to one member of its group at a time.

    `generation` grows each time the member's assignment changes.
    """

    group: str
    member_id: str

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns, as of the last poll."""
        ...

    @property
    def generation(self) -> int:
        """How often the assignment has changed."""
        ...

    async def poll(self, *, max_records: int = 1000, timeout_s: float = 1.0) -> Sequence[Record]:
        """Take part in the group and return the next records of the assignment; empty when time is up.

        A stored record that can't be decoded raises UnreadableRecord, at each poll until the member commits an
        offset behind it and so goes past it. A poll that is cancelled takes nothing away from the next one.
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store where to go on (the offset after the last one done). Raises NotOwner."""
        ...

    async def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Stop (or go on) fetching these; ownership is kept."""
        ...

    async def leave(self) -> None:
        """Give everything back now, `revoked` included, and leave."""
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
        """Become a member. `start_at` says where a partition starts that has no committed offset."""
        ...

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the committed offsets; partitions without one are left out."""
        ...


class Log(Protocol):
    """Topics of ordered, partitioned, append-only records.

    Promises: records of one partition are read in the order of their offsets, whoever reads, and every reader
    sees committed records only. An acknowledged append survives the death of any process.
    Does not promise: an order between partitions; consecutive offsets.
    """

    @property
    def admin(self) -> Admin:
        """Topics."""
        ...

    @property
    def retention(self) -> Retention:
        """What may be thrown away."""
        ...

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        ...

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records, acknowledged by all in-sync replicas; returns where each landed, in order.

        Records of one partition keep their order. Everything is checked before anything is written.
        Not atomic over partitions: a transaction is. Keys, values and header values are bytes or None; views and
        arrays of bytes are refused, because they could change under the writer.
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
        """Yield batches from `start` until the position is at or past `end`; without `end`, for ever.

        A bounded read that makes no progress for `timeout_s` raises TimedOut: an open transaction may be in
        the way. Raises OffsetOutOfRange, also when retention overtakes the reader; UnreadableRecord, after all that
        lies before it, for a stored record that can't be decoded: a new read from its offset + 1 goes past it.
        A read without `end` raises UnknownTopic when its topic is deleted, also if another one of that name was made
        since. A broker does not tell: for some seconds after that it may give records of the new topic before it ends.
        """
        ...

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Say what the partition holds now."""
        ...

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        """Return the lowest offset whose timestamp is not below; None if there is none yet."""
        ...

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        """Take over the id: earlier owners are fenced, what they left open is aborted.

        A transaction that stays open longer than `timeout_s` is aborted by the log.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; waiting readers get Closed."""
        ...
