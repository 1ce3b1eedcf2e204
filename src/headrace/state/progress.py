"""How far a copy has read its changelog, and what that is worth: decisions only, no I/O.

Compaction removes records that newer ones replaced, and tombstones that are old. So a copy is whole at an offset only
if it read the records before compaction could: it knows when it asked for the high watermark that it has reached since
(`since`), and compares that time's age with the topic's two settings. Each bound is a quarter tighter than the
setting, because clocks run at different speeds and a read takes time.

A checkpoint says how far a copy was, and since when it knows; it is stored with the copy.
"""

from __future__ import annotations

import zlib
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.errors import NotReadable
from headrace.model import Bounds, Topic
from headrace.runtime import BootMoment, elapsed_ms

__all__ = [
    "ChangelogProgress",
    "Checkpoint",
    "CompactionLimits",
    "Opening",
    "decide_opening",
    "decode_checkpoint",
    "encode_checkpoint",
    "limits_of",
]

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


class CompactionLimits(NamedTuple):
    """How long compaction leaves tombstones and replaced records alone; None: forever, nothing is compacted."""

    tombstones_ms: int | None
    replaced_ms: int | None

    def is_too_old(self, since: BootMoment, now: BootMoment) -> bool:
        """Return True if tombstones may be gone that were written since then."""
        return not _is_within(since, now, self.tombstones_ms)

    def is_young(self, since: BootMoment, now: BootMoment) -> bool:
        """Return True if every record that was written since then is still there."""
        return _is_within(since, now, self.replaced_ms)


def limits_of(topic: Topic) -> CompactionLimits:
    """Return what a topic's compaction leaves alone, less a quarter."""
    if not topic.config.cleanup.compacts:
        return CompactionLimits(None, None)
    return CompactionLimits(topic.config.tombstone_retention_ms * 3 // 4, topic.config.min_compaction_lag_ms * 3 // 4)


def _is_within(since: BootMoment, now: BootMoment, limit_ms: int | None) -> bool:
    if limit_ms is None:
        return True
    age_ms = elapsed_ms(since, now)
    return age_ms is not None and age_ms < limit_ms


class Opening(Enum):
    """What to do with a store that was found, and why."""

    RESUME = "the checkpoint is good"
    EMPTY = "there is no checkpoint"
    OTHER_TOPIC = "the topic was deleted and made again"
    OTHER_PARTITION = "the folder is that of another partition"
    OTHER_LAYOUT = "the state is declared differently, or was written by another version"
    BELOW_START = "the log begins behind the checkpoint"
    TOO_OLD = "the checkpoint is older than tombstones are kept"
    AHEAD = "the checkpoint is beyond the log's end"


def decide_opening(
    checkpoint: Checkpoint | None, *, topic: Topic, partition: int, layout: str, bounds: Bounds, now: BootMoment
) -> Opening:
    """Decide whether a store can go on from its checkpoint. All but RESUME and AHEAD mean: wipe it and start over."""
    if checkpoint is None:
        return Opening.EMPTY
    if checkpoint.topic_id != topic.topic_id:
        return Opening.OTHER_TOPIC
    if checkpoint.partition is not None and checkpoint.partition != partition:
        return Opening.OTHER_PARTITION
    if checkpoint.layout != layout:
        return Opening.OTHER_LAYOUT
    if checkpoint.next_offset < bounds.start:
        return Opening.BELOW_START
    if checkpoint.next_offset > bounds.high_watermark:
        return Opening.AHEAD
    if limits_of(topic).is_too_old(checkpoint.since, now):
        return Opening.TOO_OLD
    return Opening.RESUME


class ReadTarget(NamedTuple):
    """A high watermark on the way to, and when it was asked for."""

    offset: int
    asked: BootMoment


class ChangelogProgress(msgspec.Struct, frozen=True):
    """One copy's place in its changelog. Every change makes a new value.

    `position` is the next offset to read. `has_caught_up` turns True when a high watermark is reached that was asked
    for since this process began to read.
    """

    limits: CompactionLimits
    position: int
    complete: int | None
    since: BootMoment
    is_whole: bool
    target: ReadTarget | None = None
    has_caught_up: bool = False

    @classmethod
    def begin(cls, start: int, *, limits: CompactionLimits, now: BootMoment) -> ChangelogProgress:
        """Return the place of an empty copy that reads from the log's start: whole at no offset yet."""
        return cls(limits, start, None, now, is_whole=False)

    @classmethod
    def resume(cls, checkpoint: Checkpoint, *, limits: CompactionLimits) -> ChangelogProgress:
        """Return the place of a copy that goes on from its checkpoint."""
        whole = checkpoint.is_whole
        return cls(limits, checkpoint.next_offset, checkpoint.complete_offset, checkpoint.since, is_whole=whole)

    def is_too_old(self, now: BootMoment) -> bool:
        """Return True if the copy must be wiped: a key that was deleted meanwhile could stay in it forever."""
        return self.limits.is_too_old(self.since, now)

    def is_seamless(self, now: BootMoment) -> bool:
        """Return True if nothing can be missing between this place and what is read from it now."""
        return self.is_whole and self.complete == self.position and self.limits.is_young(self.since, now)

    def asked(self, high_watermark: int, asked: BootMoment, now: BootMoment) -> ChangelogProgress:
        """Take note of a high watermark. The first one counts until it is reached: a later one may never be."""
        if self.target is not None:
            return self
        return _settled(msgspec.structs.replace(self, target=ReadTarget(high_watermark, asked)), now)

    def advanced(self, position: int, now: BootMoment) -> ChangelogProgress:
        """Move on to a position that was read."""
        return _settled(msgspec.structs.replace(self, position=position), now)

    def committed(self, position: int, began: BootMoment) -> ChangelogProgress:
        """Move on behind the owner's own commit, or confirm that it is the owner still.

        Nobody else had written when the commit began, so the copy was whole then, and is whole now.
        """
        return msgspec.structs.replace(
            self, position=position, complete=position, since=began, is_whole=True, target=None, has_caught_up=True
        )


def _settled(place: ChangelogProgress, now: BootMoment) -> ChangelogProgress:
    """Take a watermark that was reached, and let the complete offset follow while nothing can have been hidden."""
    if place.target is not None and place.position >= place.target.offset:
        asked = place.target.asked
        place = msgspec.structs.replace(place, since=asked, is_whole=True, target=None, has_caught_up=True)
    if place.is_whole and place.limits.is_young(place.since, now):
        return msgspec.structs.replace(place, complete=place.position)
    return place
