"""The records that say who owns a partition, and the names of batches.

They lie in the partition's own changelogs, so that the log which orders the writes also orders the owners. Their keys
are reserved: no state takes such a key, and whoever reads a changelog as data skips them (`is_reserved`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.errors import UnreadableRecord
from headrace.model import NewRecord, Record, TopicPartition

__all__ = [
    "BATCH_HEADER",
    "OWNERSHIP_KEY",
    "BatchName",
    "Closure",
    "Epoch",
    "Identity",
    "OwnershipRecord",
    "Release",
    "batch_of",
    "is_reserved",
    "is_same_tenure",
    "note_record",
    "ownership_in",
    "ownership_records",
    "rank_of",
    "with_batch",
]

RESERVED_PREFIX = b"\x00hr"
OWNERSHIP_KEY = RESERVED_PREFIX + b".owner"
NOTE_KEY = RESERVED_PREFIX + b".batch"
BATCH_HEADER = "headrace.batch"


class BatchName(NamedTuple):
    """What one transaction of an owner is called: its epoch, and a number that grows within it."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.number}"


class Identity(msgspec.Struct, frozen=True):
    """Who writes: the cluster, the node's id in it, and the process, which is another one after each start."""

    cluster_id: str
    node: str
    process: str


class Epoch(msgspec.Struct, frozen=True, tag="epoch", tag_field="kind"):
    """From here on this node owns the partition, and reads under this lease."""

    epoch: int
    by: Identity
    lease_id: str


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


def is_reserved(key: bytes | None) -> bool:
    """Return True if a record of this key is ours and holds no value of the application."""
    return key is not None and key.startswith(RESERVED_PREFIX)


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
    return [msgspec.structs.replace(record, headers=(*record.headers, header)) for record in records]


def note_record(at: TopicPartition, name: BatchName) -> NewRecord:
    """Return a record that says nothing but its batch's name, for batches that write to no changelog otherwise."""
    return NewRecord(at.topic, NOTE_KEY, b"", ((BATCH_HEADER, str(name).encode()),), partition=at.partition)


def batch_of(record: Record) -> BatchName | None:
    """Return the name of the record's batch; None for records that were not written by an owner."""
    for header, value in record.headers:
        if header == BATCH_HEADER and value is not None:
            return _parse(record, value)
    return None


def _parse(record: Record, value: bytes) -> BatchName:
    try:
        epoch, _, number = value.decode().partition(":")
        return BatchName(int(epoch), int(number))
    except ValueError as error:
        reason = f"header {BATCH_HEADER} is {value!r}, not epoch:number"
        raise UnreadableRecord(record.topic, record.partition, record.offset, reason) from error
