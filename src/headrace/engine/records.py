"""The record of an aggregate in the state topic: its state, its version, and the command ids that it remembers.

Everything is decided here without I/O. An id that is dropped, because there are too many, because it is too old or
because the record would become too large, leaves a trace: `forgotten` is the highest batch among the dropped ids. A
retry whose first attempt may lie before that is refused, so that nothing is ever done twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.engine.models import EngineLimits
from headrace.engine.timers import Timers
from headrace.errors import NotReadable
from headrace.state import BatchName, ValueCodec

__all__ = [
    "FORGOTTEN_KEY",
    "NOTHING_FORGOTTEN",
    "UNKNOWN_DIGEST",
    "AggregateRecord",
    "AggregateValues",
    "RememberedCommand",
    "decode_floor",
    "encode_floor",
    "pruned",
    "remembering",
    "without_oldest",
]

FORMAT = 1
# Below every batch: epochs begin with 1.
NOTHING_FORGOTTEN = BatchName(0, 0)
# Of a command id that a rebuild found in the journal, where the command itself is not: no command is told from it.
UNKNOWN_DIGEST = b""
# What the partition has forgotten of aggregates that have no record any more. Reserved: states never show it.
FORGOTTEN_KEY = b"\x00hr.forgotten"
# What an id costs in a record besides its texts: lengths, the digest, the batch, the time.
_ID_OVERHEAD_BYTES = 48


class RememberedCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command id that was seen: what it was for, in which batch and when, and what it was replied."""

    id: str
    digest: bytes
    batch: BatchName
    at_ms: int
    reply: bytes

    @property
    def size_bytes(self) -> int:
        """About what it takes in the record."""
        return _ID_OVERHEAD_BYTES + len(self.id) * 2 + len(self.reply)


class AggregateRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An aggregate as the state topic holds it; `version` is the number of its last event.

    `state` is None for an aggregate that is gone, or was never there: such a record keeps version and ids. `timers` are
    the commands that are to be handled later.
    """

    format: int
    version: int
    state: bytes | None
    ids: tuple[RememberedCommand, ...] = ()
    forgotten: BatchName = NOTHING_FORGOTTEN
    timers: Timers = ()

    @classmethod
    def new(cls, forgotten: BatchName) -> AggregateRecord:
        """Return the record of an aggregate that has none: it knows as little as its partition does."""
        return cls(FORMAT, 0, None, (), forgotten)

    def find(self, command_id: str) -> RememberedCommand | None:
        """Return what is remembered of a command id."""
        return next((each for each in self.ids if each.id == command_id), None)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AggregateRecord).decode
_decode_floor = msgspec.msgpack.Decoder(BatchName).decode


class AggregateValues:
    """The codec of the state topic. The state inside a record has a codec of its own."""

    def __init__(self, inner: ValueCodec[Any]) -> None:
        self.inner = inner

    async def open(self) -> None:
        """Get the inner codec ready to encode."""
        await self.inner.open()

    async def prepare(self, data: bytes) -> None:
        """Get the inner codec ready to decode the state of this record."""
        state = self.decode(data).state
        if state is not None:
            await self.inner.prepare(state)

    def encode(self, value: AggregateRecord) -> bytes:
        """Return the record's bytes."""
        return _encode(value)

    def decode(self, data: bytes) -> AggregateRecord:
        """Return the record. Raises NotReadable."""
        try:
            record = _decode(data)
        except msgspec.MsgspecError as error:
            raise NotReadable("the record of an aggregate", repr(data[:40]), str(error)) from error
        if record.format != FORMAT:
            reason = f"its format is {record.format}, this version reads {FORMAT}"
            raise NotReadable("the record of an aggregate", repr(data[:40]), reason)
        return record


def encode_floor(forgotten: BatchName) -> bytes:
    """Return the value of the partition's own record."""
    return _encode(forgotten)


def decode_floor(data: bytes | None) -> BatchName:
    """Return what the partition has forgotten. Raises NotReadable."""
    try:
        return NOTHING_FORGOTTEN if data is None else BatchName(*_decode_floor(data))
    except msgspec.MsgspecError as error:
        raise NotReadable("what a partition has forgotten", repr(data), str(error)) from error


def remembering(
    record: AggregateRecord, command: RememberedCommand, limits: EngineLimits, now_ms: int
) -> AggregateRecord:
    """Return the record with one more id, and without those that are too many, too old or too large."""
    return pruned(msgspec.structs.replace(record, ids=(*record.ids, command)), limits, now_ms)


def pruned(record: AggregateRecord, limits: EngineLimits, now_ms: int) -> AggregateRecord:
    """Return the record without ids that are too many, too old or too large together; the oldest go first."""
    oldest_ms = now_ms - round(limits.command_ids_s * 1000)
    kept: list[RememberedCommand] = []
    size_bytes = 0
    for command in reversed(record.ids):
        size_bytes += command.size_bytes
        if len(kept) == limits.command_ids or size_bytes > limits.command_ids_bytes or command.at_ms < oldest_ms:
            break
        kept.append(command)
    return without_oldest(record, len(record.ids) - len(kept))


def without_oldest(record: AggregateRecord, count: int) -> AggregateRecord:
    """Return the record without its oldest ids; it is remembered up to where they were forgotten."""
    if count <= 0:
        return record
    forgotten = max([record.forgotten, *(each.batch for each in record.ids[:count])])
    return msgspec.structs.replace(record, ids=record.ids[count:], forgotten=forgotten)
