"""What the console needs from the rest, handed in by whoever makes the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from headrace.cluster import ClusterView
from headrace.journal import Held, Moment
from headrace.model import Position

if TYPE_CHECKING:  # they need the extra `outbox`
    from headrace.outbox import DeadMessage, LaneStatus

__all__ = [
    "ConsoleOutbox",
    "ConsoleParts",
    "ConsoleQuarantine",
    "ConsoleTopics",
    "DeadChange",
    "JournalLine",
    "LogTopics",
    "PartitionOffsets",
    "TopicFacts",
]

DeadChange: TypeAlias = Literal["replay", "purge"]


class PartitionOffsets(msgspec.Struct, frozen=True):
    """One partition: the first offset that it has, the next one, and the first that is not replicated yet.

    `replicated` is None for a topic without journals: nothing replicates it.
    """

    partition: int
    start: int
    head: int
    replicated: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not replicated yet; None if nothing replicates the topic."""
        return None if self.replicated is None else max(0, self.head - self.replicated)


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    name: str
    is_journal: bool
    partitions: tuple[PartitionOffsets, ...]

    @property
    def head(self) -> int:
        """The sum of the partitions' next offsets, whose growth is the rate of the topic."""
        return sum(each.head for each in self.partitions)

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not replicated yet; None if nothing replicates the topic."""
        return sum(each.lag or 0 for each in self.partitions) if self.is_journal else None


class LogTopics(msgspec.Struct, frozen=True):
    """The topics of the log, in the order of their names; `left_out` is how many more there are."""

    topics: tuple[TopicFacts, ...]
    left_out: int = 0


class JournalLine(msgspec.Struct, frozen=True):
    """A journal in a list: its last number, and when it was last written to."""

    id: str
    seq_nr: int
    updated_ms: int | None = None
    is_held: bool = False


class ConsoleTopics(Protocol):
    """The log's topics, and the journals in them."""

    async def topics(self) -> LogTopics:
        """Return the topics as they are now."""
        ...

    async def journals(self, topic: str, *, limit: int) -> list[JournalLine]:
        """Return some journals of a topic, of those that the store has."""
        ...

    def history(self, topic: str, id_: str) -> AsyncIterator[Moment]:
        """Yield what happened to a journal, as far as the log has it."""
        ...


class ConsoleOutbox(Protocol):
    """The outbox of the database in the settings."""

    async def lanes(self) -> list[LaneStatus]:
        """Return what waits and what is dead, by topic and bucket."""
        ...

    async def dead(self, *, limit: int) -> list[DeadMessage]:
        """Return messages that could not be sent."""
        ...

    async def change_dead(self, change: DeadChange, topic: str, ids: Sequence[int] | None) -> int:
        """Replay or purge dead messages of a topic, all of them or those with these ids; return how many.

        Raises BadArgument, and changes nothing, if one of the ids is not there.
        """
        ...


class ConsoleQuarantine(Protocol):
    """Journals that are held because a record can't be decoded or stored."""

    async def held(self, topics: Sequence[str]) -> list[Held]:
        """Return the journals of these topics that are held."""
        ...

    async def decide(self, topic: str, id_: str, *, skip: bool, offset: int) -> Position:
        """Write the decision to decode the record again, or to skip it. Raises BadArgument if it is not held there."""
        ...


class ConsoleParts(Protocol):
    """Everything that the console shows and the gateway's other routes don't."""

    @property
    def topics(self) -> ConsoleTopics:
        """The log's topics."""
        ...

    @property
    def quarantine(self) -> ConsoleQuarantine:
        """The journals that are held."""
        ...

    @property
    def outbox(self) -> ConsoleOutbox | None:
        """The outbox; None if the settings name no database."""
        ...

    @property
    def node_id(self) -> str | None:
        """The node in this process; None if there is none."""
        ...

    @property
    def cluster(self) -> ClusterView | None:
        """What the node in this process knows of the cluster; None if there is no node."""
        ...
