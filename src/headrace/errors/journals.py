"""Errors of journals: appends, reads, replication and the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "AppendIdReused",
    "IntegrityBroken",
    "JournalHeld",
    "JournalPurged",
    "JournalTopicExpires",
    "KeyspaceMissing",
    "LayoutLost",
    "NoStateYet",
    "ReadAgain",
    "RecordsExpireSoon",
    "RecordsLost",
    "ReplayTooOld",
    "ReplicationStalled",
    "RetentionTooLong",
    "SeveralStores",
    "SnapshotDamaged",
    "TargetDiffers",
    "TopicClaimed",
    "TopicShared",
    "VoidAppend",
    "WrongSeqNr",
]


@dataclass(eq=False)
class WrongSeqNr(Refused):
    """The journal is not at the expected number: another process wrote to it, or the caller is behind."""

    key: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "cannot append to {key!r}: expected seq_nr {expected}, journal is at {actual}; reload and decide again"
    )


@dataclass(eq=False)
class TopicShared(Refused):
    """A checked append to a shared topic: the topic's other readers would show events that were refused."""

    topic: str
    operation: str
    says: ClassVar[str] = (
        "{operation} is refused in topic {topic!r}: it is shared with services that don't know checked appends, "
        "and would show events that were refused; append without expected, from one writer for each journal"
    )


@dataclass(eq=False)
class VoidAppend(Refused):
    """The append was written after a record that makes it void; its events will never be read."""

    key: str
    reason: str
    says: ClassVar[str] = "the append to {key!r} is void: {reason}; reload and decide again"


@dataclass(eq=False)
class AppendIdReused(Refused):
    """An append id names one append: its retries carry the same events, and no other append carries it."""

    key: str
    append_id: str
    says: ClassVar[str] = (
        "append id {append_id!r} was used for other events of {key!r}; "
        "give every append an id of its own, and repeat it only with the same events"
    )


@dataclass(eq=False)
class TopicClaimed(Refused):
    """A command engine is the only writer of the topic's journals; others would make its events void."""

    topic: str
    engine: str
    operation: str
    says: ClassVar[str] = (
        "{operation} is refused in topic {topic!r}: engine {engine!r} is the only writer of its journals; "
        "send the engine a command instead"
    )


@dataclass(eq=False)
class TargetDiffers(Refused):
    """The target of a copy has an event that the source does not have."""

    topic: str
    key: str
    seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "cannot copy onto journal {key!r} of topic {topic!r}: the target has event {seq_nr}, and {reason}; "
        "copy into an empty target, or, if the target's journal may be removed, run there: "
        "headrace journal purge {topic} {key}"
    )


@dataclass(eq=False)
class NoStateYet(Refused):
    """A snapshot's number is above the journal's, or the journal does not exist."""

    key: str
    seq_nr: int
    pointer: int
    says: ClassVar[str] = (
        "cannot save a snapshot of {key!r} as of seq_nr {seq_nr}: the journal is at {pointer}; "
        "save the state as of a number that the journal has reached"
    )


@dataclass(eq=False)
class ReplicationStalled(Unavailable):
    """A replication with an end has waited too long for the stored offsets to move. What it replicated stays."""

    selection: str
    waited_s: float
    lag: int
    reason: str
    says: ClassVar[str] = (
        "replication of {selection} has not moved for {waited_s:.0f} s, and {lag:,} records are waiting: {reason}; "
        "what was replicated stays, run it again (pipeline.once_timeout_s sets the wait)"
    )


@dataclass(eq=False)
class ReadAgain(Unavailable):
    """A journal, or its topic, changed while it was being read."""

    key: str
    reason: str
    says: ClassVar[str] = "{key!r} changed while it was being read: {reason}; drop what was read and read again"


@dataclass(eq=False)
class JournalPurged(Refused):
    """A journal ended while a live read followed it: the events that were given are gone, and a new one may begin."""

    key: str
    next_seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "journal {key!r} ended before event {next_seq_nr}: {reason}; "
        "drop what was built from its events, and read it from seq_nr 1 on"
    )


@dataclass(eq=False)
class RecordsLost(Misconfigured):
    """Records were removed from the log before they were replicated."""

    topic: str
    partition: int
    first: int
    last: int
    says: ClassVar[str] = (
        "offsets {first} to {last} of {topic}[{partition}] are gone from the log and were never replicated; "
        "restore the log, or accept the loss with: headrace pipeline replicate --accept-loss {topic}:{partition}:{last}"
    )


@dataclass(eq=False)
class JournalTopicExpires(Misconfigured):
    """The topic's configuration drops records of journals whether or not they were replicated."""

    topic: str
    reason: str
    says: ClassVar[str] = (
        "topic {topic!r} can't hold journals: {reason}, replicated or not; "
        "run: headrace topic configure {topic} --journal (or --shared if other services own the topic and it is not "
        "compacted)"
    )


@dataclass(eq=False)
class RecordsExpireSoon(Misconfigured):
    """A shared topic is about to drop records that were not replicated."""

    topic: str
    partition: int
    left_s: float
    says: ClassVar[str] = (
        "records of {topic}[{partition}] that the store lacks leave the log in {left_s:.0f} s; "
        "run: headrace pipeline replicate --topics {topic}"
    )


@dataclass(eq=False)
class SeveralStores(Misconfigured):
    """Several stores replicate a topic, so one of them can't remove records: the others may not have them yet."""

    topic: str
    store: str
    others: tuple[str, ...]

    def __str__(self) -> str:
        others = ", ".join(self.others)
        return (
            f"topic {self.topic!r} is replicated by this store ({self.store}) and by {others}, which may lack what "
            f"this one has, so nothing is removed; run: headrace topic configure {self.topic} --shared for each store, "
            f"or, if the others are gone for good: headrace topic configure {self.topic} --journal --only-store"
        )


@dataclass(eq=False)
class RetentionTooLong(Misconfigured):
    """The log keeps records for longer than the store remembers deletions and purges."""

    topic: str
    retention_s: float
    setting: str
    kept_s: float
    says: ClassVar[str] = (
        "topic {topic!r} keeps replicated records for {retention_s:g} s, but the store remembers deletions for "
        "{kept_s:g} s only: a replay would bring deleted events back; raise {setting} above the retention, or run: "
        "headrace topic configure {topic} --journal --retention-ms MILLISECONDS"
    )


@dataclass(eq=False)
class ReplayTooOld(Misconfigured):
    """A partition would be replicated again from records that are older than the deletions that the store remembers."""

    topic: str
    partition: int
    age_s: float
    kept_s: float
    says: ClassVar[str] = (
        "the store has journals of {topic!r} but not how far {topic}[{partition}] is replicated, and the log begins "
        "{age_s:.0f} s ago; deletions are remembered for {kept_s:g} s, so a replay from there could bring deleted "
        "events back; restore the row of {topic}[{partition}] in pointer2, or replicate into an empty store"
    )


@dataclass(eq=False)
class LayoutLost(Misconfigured):
    """The store does not have the topic's layout, and it can't be read from the log."""

    topic: str
    reason: str
    says: ClassVar[str] = (
        "the layout of topic {topic!r} is not in the store and can't be read from the log: {reason}; restore the "
        "setting 'topic/{topic}' of the store from a backup, or copy the journals into a new topic"
    )


@dataclass(eq=False)
class JournalHeld(Misconfigured):
    """A record of the journal can't be decoded; later records are ignored until an operator releases or skips it."""

    key: str
    topic: str
    partition: int
    offset: int
    reason: str
    says: ClassVar[str] = (
        "journal {key!r} is held from offset {offset} of {topic}[{partition}]: {reason}; "
        "see: headrace pipeline quarantine list"
    )


@dataclass(eq=False)
class IntegrityBroken(Misconfigured):
    """Rows of the store contradict one another."""

    key: str
    seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "journal {key!r} is broken in the store at seq_nr {seq_nr}: {reason}; run: headrace pipeline audit --repair, "
        "and delete by hand the rows that it lists and can't remove"
    )


@dataclass(eq=False)
class SnapshotDamaged(Misconfigured):
    """The store holds a snapshot that can't be decoded."""

    key: str
    seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "the snapshot of {key!r} as of seq_nr {seq_nr} can't be decoded: {reason}; load an older one (max_seq_nr=) if "
        "the journal still has the events after it, or save it again, "
        "or delete it (min_seq_nr={seq_nr}, max_seq_nr={seq_nr})"
    )


@dataclass(eq=False)
class KeyspaceMissing(Misconfigured):
    """Cassandra does not have the keyspace, and creating it is not enabled."""

    keyspace: str
    address: str
    says: ClassVar[str] = (
        "there is no keyspace {keyspace!r} at {address}; correct the name, "
        "or let it be created: HEADRACE__STORE__CASSANDRA__CREATE_KEYSPACE=true"
    )
