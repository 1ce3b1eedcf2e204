"""The checkpoint of a state's copy: how far it has read its changelog, and since when it knows."""

from __future__ import annotations

import zlib

import msgspec

from headrace.errors import NotReadable
from headrace.runtime import BootMoment

__all__ = ["Checkpoint", "decode_checkpoint", "encode_checkpoint"]

_CHECKSUM_BYTES = 4


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What is stored beside the data, in the same batch.

    `next_offset` is where reading goes on. `complete_offset` is the end of what the copy holds whole: at every offset
    below it nothing is missing; None while there is no such offset. `since` is when the high watermark was asked for
    that the copy last reached, or, before it reached one, when it began to read; `is_whole` says which.
    `batch` is the name of the last batch read, (epoch, number). `layout` names what the data depends on besides the
    log: formats, the default time to live, indexes. `keys` counts the keys, `timestamp_ms` is the highest one read.
    `owner_offset` is where the last record was read that says who owns the partition. `partition` is the topic's
    partition; older checkpoints lack it.
    """

    topic_id: str
    layout: str
    next_offset: int
    complete_offset: int | None
    since: BootMoment
    is_whole: bool
    keys: int = 0
    timestamp_ms: int = 0
    batch: tuple[int, int] | None = None
    owner_offset: int | None = None
    partition: int | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return its bytes, after a checksum."""
    body = _encoder.encode(checkpoint)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint. Raises NotReadable for anything that was not stored as one."""
    body = data[_CHECKSUM_BYTES:]
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != data[:_CHECKSUM_BYTES]:
        raise NotReadable("a checkpoint", repr(data), "its checksum does not fit")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise NotReadable("a checkpoint", repr(data), str(error)) from error
