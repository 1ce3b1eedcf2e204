"""Runs: plain appends of one key, folded at once from columns of records instead of one by one.

A plain append has no header but its action, no condition, no metadata, no expiry and no tags. If all records of a key
in a batch are plain appends whose numbers rise, its fold is known without a step for each: one row for each event, and
the state after the last. The result is exactly that of the general fold. Whatever is unusual is left to that one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import itemgetter, lt
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from headrace.model import RecordColumns
from headrace.protocol.actions import Append, Mark
from headrace.protocol.entries import PartitionBatch, batch_of, entry_of, next_generation
from headrace.protocol.events import decode_append
from headrace.protocol.fold import Effect, Entry, pointer_of, step
from headrace.protocol.headers import ACTION_HEADER, AppendTemplate, plain_append
from headrace.protocol.payloads import AppendValue, Encoded
from headrace.store import MAX_PAYLOAD_BYTES, JournalMeta, Place, PlainRows, segment_of

__all__ = ["AppendRun", "ColumnBatch", "RunFold", "column_batch", "fold_run"]

# The value of one binary event without tags: version and count, size of the event, seq_nr, no tags and the kind, size
# of the payload, the payload, no metadata.
_ONE = struct.Struct(">5siq5si")
_COUNTED = b"\x01\x00\x00\x00\x01"
_UNTAGGED = b"\x00\x00\x00\x00\x01"
_NO_METADATA = b"{}"
_PAYLOAD_AT = _ONE.size
_AROUND_PAYLOAD = _ONE.size + len(_NO_METADATA)
_AROUND_IN_EVENT = 17
_TAGS_SIZE_AT = 17
_LARGEST_VALUE = _AROUND_PAYLOAD + MAX_PAYLOAD_BYTES

T = TypeVar("T")

# The seq_nr of one binary event, or the decoded events of a record.
RecordEvents: TypeAlias = int | AppendValue


class AppendRun(NamedTuple):
    """The plain appends of one key: `indexes` of their records, their events, and what their headers share."""

    indexes: Sequence[int]
    events: Sequence[RecordEvents]
    template: AppendTemplate


class RunFold(NamedTuple):
    """The effect of a run: the rows to write, then the state."""

    rows: PlainRows
    meta: JournalMeta


@dataclass(slots=True)
class ColumnBatch:
    """A batch of one partition. Keys that have only plain appends are in `runs`, the others in `general`."""

    columns: RecordColumns
    general: PartitionBatch
    log_times_ms: Sequence[int] = ()
    runs: dict[str, AppendRun] = field(default_factory=dict)

    def make_general(self, id_: str) -> list[Entry]:
        """Turn a run into entries for the general fold, and return them."""
        run = self.runs.pop(id_)
        entries = [entry for index in run.indexes if (entry := self.entry(index)) is not None]
        self.general.by_id[id_] = entries
        return entries

    def entry(self, index: int) -> Entry | None:
        """Return the entry of a record, as `entry_of` does."""
        return entry_of(
            self.columns.record(index),
            self.general.generation,
            log_time_ms=self.log_times_ms[index],
            segment_size=self.general.segment_size,
        )


def column_batch(columns: RecordColumns, generation: int, *, log_time_ms: int, segment_size: int) -> ColumnBatch:
    """Group records by key as `batch_of` does, with runs.

    There are no runs if the batch begins a generation, changes the segment size, or holds an offset twice.
    """
    before, *log_times_ms = accumulate(columns.timestamps_ms, max, initial=log_time_ms)
    general = PartitionBatch(generation, log_times_ms[-1] if log_times_ms else before, segment_size)
    batch = ColumnBatch(columns, general, log_times_ms)
    if columns.are_rising() and _group(batch):
        return batch
    everything = batch_of(columns.records(), generation, log_time_ms=log_time_ms, segment_size=segment_size)
    return ColumnBatch(columns, everything)


def fold_run(meta: JournalMeta | None, run: AppendRun, id_: str, batch: ColumnBatch) -> RunFold | None:
    """Fold a run on the state that the store has; None if that needs the general fold."""
    first = _first_entry(run, id_, batch)
    if meta is not None and first.place <= meta.place:
        return None
    began = step(meta, first)
    if began.effect is not Effect.APPENDED or began.meta is None or began.meta.record_id is None:
        return None
    rows = _rows(run, batch, began.meta, began.meta.record_id)
    if _jumps(meta, rows):
        return None
    return RunFold(rows, _after(began.meta, rows))


def _group(batch: ColumnBatch) -> bool:
    """Distribute the records of a batch; return False if a record changes the partition's state."""
    events, templates = _plain_events(batch.columns)
    indexes: dict[bytes | None, list[int]] = {}
    for index, key in enumerate(batch.columns.keys):
        of_key = indexes.get(key)
        if of_key is None:
            indexes[key] = [index]
        else:
            of_key.append(index)
    unusual: list[int] = []
    for key, of_key in indexes.items():
        run = _run(of_key, events, templates)
        id_ = _id_of(key) if run is not None else None
        if run is None or id_ is None:
            unusual += of_key
        else:
            batch.runs[id_] = run
    return _add_entries(batch, sorted(unusual))


def _add_entries(batch: ColumnBatch, indexes: Sequence[int]) -> bool:
    general = batch.general
    for index in indexes:
        entry = batch.entry(index)
        if entry is None:
            general.skipped += 1
        elif not isinstance(entry.action, Mark):
            general.by_id.setdefault(entry.id, []).append(entry)
        elif _changes(entry.action, general):
            return False
    return True


def _changes(mark: Mark, batch: PartitionBatch) -> bool:
    is_larger = next_generation(batch.generation, mark) != batch.generation
    return is_larger or (mark.segment_size or batch.segment_size) != batch.segment_size


def _id_of(key: bytes | None) -> str | None:
    try:
        return key.decode() if key is not None else None
    except UnicodeDecodeError:
        return None


def _plain_events(
    columns: RecordColumns,
) -> tuple[list[RecordEvents | None], list[AppendTemplate | None]]:
    """Return the events and the template of each record; None for a record that is no plain append.

    Most records hold one binary event and have the same template as the binary record before.
    """
    events: list[RecordEvents | None] = []
    templates: list[AppendTemplate | None] = []
    template: AppendTemplate | None = None
    header, unpack = b"", _ONE.unpack_from
    for value, lone in zip(columns.values, columns.lone_headers, strict=True):
        if template is not None and lone is not None and value is not None and len(value) >= _AROUND_PAYLOAD:
            counted, size, seq_nr, untagged, payload_size = unpack(value)
            if (
                payload_size == len(value) - _AROUND_PAYLOAD
                and size == payload_size + _AROUND_IN_EVENT
                and counted == _COUNTED
                and untagged == _UNTAGGED
                and value.endswith(_NO_METADATA)
                and len(value) <= _LARGEST_VALUE
                and lone[1] == header % (seq_nr, seq_nr)
                and lone[0] == ACTION_HEADER
            ):
                events.append(seq_nr)
                templates.append(template)
                continue
        found, of = _decoded(value, lone)
        events.append(found)
        templates.append(of)
        # The value of a binary event is one only behind a header that says so: behind another it holds its journal.
        if of is not None and of is not template and of.payload_format == "binary":
            template, header = of, of.header
    return events, templates


def _decoded(
    value: bytes | None, lone: tuple[str, bytes | None] | None
) -> tuple[RecordEvents | None, AppendTemplate | None]:
    """Decode a record; (None, None) unless it is a plain append."""
    if lone is None or lone[0] != ACTION_HEADER or lone[1] is None or value is None or _may_have_tags(value):
        return None, None
    found = plain_append(lone[1])
    if found is None:
        return None, None
    append, template = found
    try:
        decoded = decode_append(append, value)
    except ValueError:  # the general fold holds the key for the same reason
        return None, None
    has_more = decoded.expire_after is not None or decoded.metadata is not None
    if has_more or any(event.tags for event in decoded.events):
        return None, None
    return decoded, template


def _may_have_tags(value: bytes) -> bool:
    """Return True if a value seems to have tags. The general fold decodes it then, and it need not be decoded here."""
    if value.startswith(b"{"):  # JSON
        return b'"tags":["' in value
    return value[_TAGS_SIZE_AT : _TAGS_SIZE_AT + 4] != b"\x00\x00\x00\x00"


def _run(
    indexes: Sequence[int], events: Sequence[RecordEvents | None], templates: Sequence[AppendTemplate | None]
) -> AppendRun | None:
    """Return the run of a key's records; None if one is no plain append, has another template, or does not rise."""
    template, own = templates[indexes[0]], _at(events, indexes)
    if template is None or (len(own) > 1 and _at(templates, indexes).count(template) != len(own)):
        return None
    run = AppendRun(indexes, own, template)  # type: ignore[arg-type]  # what has a template has events
    return run if len(own) == 1 or _are_rising(run.events) else None


def _are_rising(events: Sequence[RecordEvents]) -> bool:
    """Return True if each record begins above the last number of the record before it."""
    numbers = [event for event in events if isinstance(event, int)]
    if len(numbers) == len(events):
        return all(map(lt, numbers, islice(numbers, 1, None)))
    return all(map(lt, map(_last, events), map(_first, islice(events, 1, None))))


def _first(events: RecordEvents) -> int:
    return events if isinstance(events, int) else events.events[0].seq_nr


def _last(events: RecordEvents) -> int:
    return events if isinstance(events, int) else events.events[-1].seq_nr


def _at(column: Sequence[T], indexes: Sequence[int]) -> tuple[T, ...]:
    """Return the values of a column at some indexes."""
    return (column[indexes[0]],) if len(indexes) == 1 else itemgetter(*indexes)(column)


def _first_entry(run: AppendRun, id_: str, batch: ColumnBatch) -> Entry:
    """Return the entry of a run's first record, without what the fold of a state does not look at."""
    columns, index, events = batch.columns, run.indexes[0], run.events[0]
    return Entry(
        topic=columns.at.topic,
        id=id_,
        generation=batch.general.generation,
        partition=columns.at.partition,
        offset=columns.offsets[index],
        timestamp_ms=columns.timestamps_ms[index],
        action=Append(first=_first(events), last=_last(events), payload_format="binary", origin=run.template.origin),
        segment_size=batch.general.segment_size,
    )


def _rows(run: AppendRun, batch: ColumnBatch, meta: JournalMeta, record_id: UUID) -> PlainRows:
    columns = batch.columns
    indexes, seq_nrs, payload_types, payloads = _event_columns(run, columns)
    return PlainRows(
        generation=batch.general.generation,
        partition=columns.at.partition,
        record_id=record_id,
        segment_size=meta.segment_size,
        origin=run.template.origin,
        version=run.template.version,
        seq_nrs=seq_nrs,
        offsets=_at(columns.offsets, indexes),
        log_times_ms=_at(batch.log_times_ms, indexes),
        timestamps_ms=_at(columns.timestamps_ms, indexes),
        payload_types=payload_types,
        payloads=payloads,
    )


class _EventColumns(NamedTuple):
    """The events of a run: the indexes of their records, their numbers, and their payloads."""

    indexes: Sequence[int]
    seq_nrs: Sequence[int]
    payload_types: Sequence[str | None]
    payloads: Sequence[bytes | None]


def _event_columns(run: AppendRun, columns: RecordColumns) -> _EventColumns:
    seq_nrs = [event for event in run.events if isinstance(event, int)]
    if len(seq_nrs) == len(run.events):
        payloads = [_payload(columns.values[index]) for index in run.indexes]
        return _EventColumns(run.indexes, seq_nrs, ["binary"] * len(seq_nrs), payloads)
    pairs = [
        (index, one) for index, own in zip(run.indexes, run.events, strict=True) for one in _each(own, index, columns)
    ]
    return _EventColumns(
        [index for index, _ in pairs],
        [event.seq_nr for _, event in pairs],
        [event.payload_type for _, event in pairs],
        [event.payload for _, event in pairs],
    )


def _each(events: RecordEvents, index: int, columns: RecordColumns) -> Sequence[Encoded]:
    if isinstance(events, int):
        return (Encoded(events, (), "binary", _payload(columns.values[index])),)
    return events.events


def _payload(value: bytes | None) -> bytes | None:
    return value[_PAYLOAD_AT : -len(_NO_METADATA)] if value is not None else None


def _jumps(before: JournalMeta | None, rows: PlainRows) -> bool:
    """Return True if the numbers may jump over a segment, which the general fold looks at row by row."""
    pointer, size = pointer_of(before), rows.segment_size
    last = segment_of(pointer, size) if pointer else -1
    return segment_of(rows.seq_nrs[-1], size) - last > 1


def _after(meta: JournalMeta, rows: PlainRows) -> JournalMeta:
    """Return the state after the last append, from that after the first."""
    offset = rows.offsets[-1]
    return msgspec.structs.replace(
        meta,
        offset=offset,
        seq_nr=rows.seq_nrs[-1],
        last_append=Place(rows.generation, offset),
        updated_ms=rows.timestamps_ms[-1],
        expire_on_ms=None,
    )
