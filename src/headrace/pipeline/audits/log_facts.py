"""Facts of a log that its records alone don't tell: what the records before a record decide about it. Pure.

A record's log time is the highest timestamp so far; Marks begin generations and change the segment size. The log is
read in stretches, by many tasks, so each stretch yields facts about itself. They go to every task that looks at
journals, and together they give each record what one reader of the whole partition would have given it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.model import Record
from headrace.pipeline.audits.windows import RunningState, TopicWindow, WindowStretch
from headrace.protocol import Entry, Mark, entry_of
from headrace.store import DEFAULT_SEGMENT_SIZE

__all__ = ["FactsOfTopic", "LogFact", "MarkFact", "PartitionFacts", "StretchFact", "decode_fact", "encode_fact"]


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
