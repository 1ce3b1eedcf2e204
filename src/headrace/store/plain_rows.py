"""Plain rows: rows of one incarnation that differ in little, kept as columns.

Most rows of most journals are plain. A store that knows PlainRows encodes its columns directly; for any other one it
is a sequence of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload
from uuid import UUID

from headrace.store.rows import EventRow, segment_of

__all__ = ["PlainRows"]


class PlainRows(Sequence[EventRow]):
    """Rows without tags, metadata and headers, of one journal's incarnation and of one partition and generation.

    Their seq_nrs rise. Each column has one value for each row.
    """

    __slots__ = (
        "generation", "log_times_ms", "offsets", "origin", "partition", "payload_types", "payloads", "record_id",
        "segment_size", "seq_nrs", "timestamps_ms", "version",
    )  # fmt: skip

    def __init__(
        self,
        *,
        generation: int,
        partition: int,
        record_id: UUID,
        segment_size: int,
        origin: str | None,
        version: str | None,
        seq_nrs: Sequence[int],
        offsets: Sequence[int],
        log_times_ms: Sequence[int],
        timestamps_ms: Sequence[int],
        payload_types: Sequence[str | None],
        payloads: Sequence[bytes | None],
    ) -> None:
        self.generation = generation
        self.partition = partition
        self.record_id = record_id
        self.segment_size = segment_size
        self.origin = origin
        self.version = version
        self.seq_nrs = seq_nrs
        self.offsets = offsets
        self.log_times_ms = log_times_ms
        self.timestamps_ms = timestamps_ms
        self.payload_types = payload_types
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.seq_nrs)

    @overload
    def __getitem__(self, index: int) -> EventRow: ...
    @overload
    def __getitem__(self, index: slice) -> PlainRows: ...
    def __getitem__(self, index: int | slice) -> EventRow | PlainRows:
        return self._part(index) if isinstance(index, slice) else self._row(index)

    def segments(self) -> list[int]:
        """Return the segment of each row."""
        size = self.segment_size
        if not self.seq_nrs:
            return []
        first, last = segment_of(self.seq_nrs[0], size), segment_of(self.seq_nrs[-1], size)
        if first == last:
            return [first] * len(self)
        return [segment_of(seq_nr, size) for seq_nr in self.seq_nrs]

    def _row(self, index: int) -> EventRow:
        seq_nr = self.seq_nrs[index]
        return EventRow(
            segment=segment_of(seq_nr, self.segment_size),
            seq_nr=seq_nr,
            generation=self.generation,
            partition=self.partition,
            offset=self.offsets[index],
            log_time_ms=self.log_times_ms[index],
            timestamp_ms=self.timestamps_ms[index],
            record_id=self.record_id,
            payload_type=self.payload_types[index],
            payload=self.payloads[index],
            origin=self.origin,
            version=self.version,
        )

    def _part(self, part: slice) -> PlainRows:
        return PlainRows(
            generation=self.generation,
            partition=self.partition,
            record_id=self.record_id,
            segment_size=self.segment_size,
            origin=self.origin,
            version=self.version,
            seq_nrs=self.seq_nrs[part],
            offsets=self.offsets[part],
            log_times_ms=self.log_times_ms[part],
            timestamps_ms=self.timestamps_ms[part],
            payload_types=self.payload_types[part],
            payloads=self.payloads[part],
        )
