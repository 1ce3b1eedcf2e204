"""The rows that a job about journals shuffles: records, heads, rows of views by tag, suspects, facts of the log. Pure.

All rows of a journal have its topic and key. Facts have an empty key, so that they come before the journals of their
topic; no journal has an empty id.

Facts of a log are what its records alone don't tell: what the records before a record decide about it. A record's log
time is the highest timestamp so far; Marks begin generations and change the segment size. The log is read in stretches,
by many tasks, so each stretch yields facts about itself. They go to every task that looks at journals, and together
they give each record what one reader of the whole partition would have given it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec
import pyarrow as pa

from headrace.model import Record
from headrace.pipeline.audits.windows import RunningState, TopicWindow, WindowStretch
from headrace.pipeline.logs.records import LOG_COLUMNS
from headrace.protocol import Entry, Mark, entry_of
from headrace.store import DEFAULT_SEGMENT_SIZE

__all__ = [
    "ROW_COLUMNS",
    "ROW_ORDER",
    "ROW_SCHEMA",
    "FactsOfTopic",
    "LogFact",
    "MarkFact",
    "PartitionFacts",
    "RowKind",
    "StretchFact",
    "batch_of_values",
    "decode_fact",
    "encode_fact",
]

ROW_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, kind int, task int, stretch bigint, log_time_ms bigint"
)
ROW_COLUMNS = (*LOG_COLUMNS, "kind", "task", "stretch", "log_time_ms")
# The order within a task: journal by journal, and what is known of a journal before its records.
ROW_ORDER = ("topic", "key", "kind", "partition", "offset")

_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("kind", pa.int32()),
        ("task", pa.int32()),
        ("stretch", pa.int64()),
        ("log_time_ms", pa.int64()),
    ]
)


class RowKind(IntEnum):
    """The kind of a row; kinds sort in the order in which a task needs them."""

    FACT = 0
    SUSPECT = 1
    HEAD = 2
    VIEW_ROW = 3
    RECORD = 4


def batch_of_values(
    kind: RowKind,
    topic: str,
    partition: int,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    *,
    tasks: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """Return rows that are no records, each with a key and an encoded value. `tasks` are where they must go."""
    count = len(keys)
    columns = {
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([partition] * count, pa.int32()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "kind": pa.array([int(kind)] * count, pa.int32()),
        "task": pa.nulls(count, pa.int32()) if tasks is None else pa.array(tasks, pa.int32()),
    }
    empty = {field.name: pa.nulls(count, field.type) for field in _ARROW}
    return pa.RecordBatch.from_arrays([{**empty, **columns}[name] for name in ROW_COLUMNS], schema=_ARROW)


class StretchFact(msgspec.Struct, frozen=True, tag="stretch"):
    """A stretch that was read: its first offset, and its highest timestamp. `records` were read.

    Every task gets the fact, and one of them gets the number of records, so that the sum over all tasks is right.
    """

    first: int
    log_time_ms: int
    records: int = 0


class MarkFact(msgspec.Struct, frozen=True, tag="mark"):
    """A Mark that begins a generation, or changes the segment size of later incarnations."""

    offset: int
    generation: int | None
    segment_size: int | None


LogFact = StretchFact | MarkFact

encode_fact = msgspec.json.Encoder().encode
decode_fact = msgspec.json.Decoder(LogFact).decode


class PartitionFacts:
    """The facts of one partition; `floors_ms` are the lowest log times by generation."""

    def __init__(self, stretch: WindowStretch, floors_ms: Mapping[int, int], facts: Iterable[LogFact]) -> None:
        known = list(facts)
        self._start = stretch.start
        self._firsts, self._before_ms = _running_maximum(fact for fact in known if isinstance(fact, StretchFact))
        self._marks = sorted((fact for fact in known if isinstance(fact, MarkFact)), key=lambda fact: fact.offset)
        self._offsets = [mark.offset for mark in self._marks]
        size = DEFAULT_SEGMENT_SIZE if stretch.start == 0 else 0
        first = RunningState(stretch.generation, floors_ms.get(stretch.generation, 0), size)
        self._states = _states(first, self._marks, floors_ms)

    @property
    def after(self) -> RunningState:
        """The state behind the last record that was read."""
        state = self._states[-1]
        return state._replace(log_time_ms=max(state.log_time_ms, self._before_ms[-1]))

    def entry(self, record: Record, *, first: int, log_time_ms: int) -> Entry | None:
        """Return the entry of a record of the stretch that begins at `first`; None if no journal's fold needs it.

        `log_time_ms` is the highest timestamp from the beginning of the stretch up to the record.
        """
        if record.offset < self._start:
            return None
        state = self._states[bisect_left(self._offsets, record.offset)]
        before_ms = self._before_ms[bisect_left(self._firsts, first)]
        highest_ms = max(state.log_time_ms, before_ms, log_time_ms)
        entry = entry_of(record, state.generation, log_time_ms=highest_ms, segment_size=state.segment_size)
        return None if entry is None or isinstance(entry.action, Mark) else entry


class FactsOfTopic:
    """The facts of all partitions of a topic, and its window."""

    def __init__(self, window: TopicWindow, facts: Mapping[int, Sequence[LogFact]]) -> None:
        self.window = window
        self._partitions = {
            partition: PartitionFacts(stretch, window.log_times_ms, facts.get(partition, ()))
            for partition, stretch in window.stretches.items()
        }
        self.records = {
            partition: sum(fact.records for fact in found if isinstance(fact, StretchFact))
            for partition, found in facts.items()
        }

    def of(self, partition: int) -> PartitionFacts:
        """Return the facts of a partition."""
        return self._partitions[partition]


def _running_maximum(stretches: Iterable[StretchFact]) -> tuple[list[int], list[int]]:
    """Return the first offsets of the stretches, and the highest timestamp before each; the last one is of all."""
    firsts: list[int] = []
    before_ms = [0]
    for stretch in sorted(stretches, key=lambda fact: fact.first):
        firsts.append(stretch.first)
        before_ms.append(max(before_ms[-1], stretch.log_time_ms))
    return firsts, before_ms


def _states(first: RunningState, marks: Iterable[MarkFact], floors_ms: Mapping[int, int]) -> list[RunningState]:
    """Return the states before the first Mark, between the Marks, and behind the last. Log times are floors here."""
    states = [first]
    for mark in marks:
        generation = max(states[-1].generation, mark.generation or 0)
        floor_ms = max(states[-1].log_time_ms, floors_ms.get(generation, 0))
        states.append(RunningState(generation, floor_ms, mark.segment_size or states[-1].segment_size))
    return states
