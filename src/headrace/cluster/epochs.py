"""The records that say who owns a partition, and the names of batches.

They lie in the partition's own changelogs, so that the log which orders the writes also orders the owners. Their keys
are reserved: no state takes such a key, and readers of a changelog skip them (`headrace.state.is_reserved`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from headrace.errors import UnreadableRecord
from headrace.model import NewRecord, Record, TopicPartition
from headrace.state import BATCH_HEADER, OWNERSHIP_KEY, RESERVED_PREFIX, BatchName, batch_header_of, parse_batch

__all__ = [
    "UNNAMED_LEASE_S",
    "Closure",
    "Epoch",
    "Identity",
    "OwnershipRecord",
    "Release",
    "batch_of",
    "epoch_records",
    "is_same_tenure",
    "note_record",
    "ownership_in",
    "ownership_records",
    "rank_of",
    "seed_records",
    "with_batch",
]

NOTE_KEY = RESERVED_PREFIX + b".batch"
# The length of a lease in records that do not name one: when they were written, all leases had this one.
UNNAMED_LEASE_S = 0.5


class Identity(msgspec.Struct, frozen=True):
    """Who writes: the cluster, the node's id in it, and the process, which is another one after each start."""

    cluster_id: str
    node: str
    process: str


class Epoch(msgspec.Struct, frozen=True, tag="epoch", tag_field="kind"):
    """From here on this node owns the partition, and reads under this lease, which is `lease_s` long.

    `earlier_lease_s` is the length of the longest lease of an owner before under which reads might still be answered
    when this was written; 0 if there was none. Whoever follows waits for that one, too.
    """

    epoch: int
    by: Identity
    lease_id: str
    lease_s: float = UNNAMED_LEASE_S
    earlier_lease_s: float = 0.0


class Release(msgspec.Struct, frozen=True, tag="release", tag_field="kind"):
    """The owner of this epoch has stopped: it writes, answers and reads no more. The next one need not wait."""

    epoch: int
    by: Identity
    lease_id: str


class Closure(msgspec.Struct, frozen=True, tag="closed", tag_field="kind"):
    """The partition's topic was replaced by another one; nobody owns it again."""

    epoch: int
    by: Identity
    lease_id: str


OwnershipRecord: TypeAlias = Epoch | Release | Closure

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[OwnershipRecord] = msgspec.json.Decoder(OwnershipRecord)


def rank_of(record: OwnershipRecord) -> tuple[int, bool]:
    """Return what orders ownership records, whichever of a partition's changelogs they are read from."""
    return record.epoch, not isinstance(record, Epoch)


def is_same_tenure(record: OwnershipRecord | None, epoch: OwnershipRecord | None) -> bool:
    """Return True if the record is the Epoch itself: nobody has written another one, nor a Release, since."""
    return record is not None and record == epoch and isinstance(record, Epoch)


def ownership_records(
    record: OwnershipRecord, changelogs: Iterable[TopicPartition], *, name: BatchName
) -> list[NewRecord]:
    """Return the records to write, one for each changelog of the partition, in one transaction."""
    value = _encode(record)
    headers = ((BATCH_HEADER, str(name).encode()),)
    return [NewRecord(at.topic, OWNERSHIP_KEY, value, headers, partition=at.partition) for at in changelogs]


def epoch_records(epoch: Epoch, changelogs: Iterable[TopicPartition]) -> list[NewRecord]:
    """Return an Epoch that is written again, as part of a batch that gets its name later."""
    value = _encode(epoch)
    return [NewRecord(at.topic, OWNERSHIP_KEY, value, partition=at.partition) for at in changelogs]


def seed_records(changelogs: Iterable[TopicPartition], epoch: int, by: Identity) -> list[NewRecord]:
    """Return what makes the epochs of new changelogs go on after those of the ones that they replace."""
    return ownership_records(Release(epoch, by, ""), changelogs, name=BatchName(epoch, 0))


def ownership_in(record: Record) -> OwnershipRecord | None:
    """Return what the record says about ownership; None for all others. Raises UnreadableRecord."""
    if record.key != OWNERSHIP_KEY or record.value is None:
        return None
    try:
        return _decoder.decode(record.value)
    except msgspec.MsgspecError as error:
        reason = f"an ownership record: {error}"
        raise UnreadableRecord(record.topic, record.partition, record.offset, reason) from error


def with_batch(records: Sequence[NewRecord], name: BatchName) -> list[NewRecord]:
    """Return the records with the name of their batch as a header, tombstones too."""
    header = (BATCH_HEADER, str(name).encode())
    return [
        NewRecord(each.topic, each.key, each.value, (*each.headers, header), each.partition, each.timestamp_ms)
        for each in records
    ]


def note_record(at: TopicPartition, name: BatchName) -> NewRecord:
    """Return a record that says nothing but its batch's name, for batches that write to no changelog otherwise."""
    return NewRecord(at.topic, NOTE_KEY, b"", ((BATCH_HEADER, str(name).encode()),), partition=at.partition)


def batch_of(record: Record) -> BatchName | None:
    """Return the name of the record's batch; None if it was not written by an owner. Raises UnreadableRecord."""
    header = batch_header_of(record.headers)
    name = parse_batch(header)
    if name is None and header is not None:
        reason = f"header {BATCH_HEADER} is {header!r}, not epoch:number"
        raise UnreadableRecord(record.topic, record.partition, record.offset, reason)
    return name
