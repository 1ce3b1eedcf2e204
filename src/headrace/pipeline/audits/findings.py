"""Findings of an audit, and what the tasks of a job about journals report, as rows.

A finding is a row, a head or a row of a view that is missing, changed or added, by id and seq_nr. Tasks report
findings, counts, suspects, and why they could not finish. Spark adds the counts up; the driver gets a few numbers for
each partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import OperationFailed
from headrace.model import TopicPartition
from headrace.pipeline.spark.process import batch_of_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "COUNTED",
    "FAILED",
    "FINDING_COLUMNS",
    "OUTCOME_COLUMNS",
    "SUSPECT",
    "Finding",
    "FindingKind",
    "Outcomes",
    "Tally",
    "tally_of",
]

FINDING_COLUMNS = (
    "topic string, partition int, id string, kind string, seq_nr bigint, offset bigint, detail string, "
    "repaired boolean, tag string"
)


class FindingKind(StrEnum):
    """The kind of a difference between the store and the log."""

    ROW_MISSING = "row missing"
    ROW_CHANGED = "row changed"
    ROW_ADDED = "row added"
    META_MISSING = "meta missing"
    META_CHANGED = "meta changed"
    META_ADDED = "meta added"
    POINTER_CHANGED = "replicated offset changed"
    TAG_ROW_MISSING = "tag row missing"
    TAG_ROW_CHANGED = "tag row changed"
    TAG_ROW_ADDED = "tag row added"
    TAG_NUMBER_CHANGED = "tag number changed"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the store and the log.

    `id` is empty for a partition's replicated offset. `seq_nr` is None for a head. `offset` is that of the record that
    says what is right, or the one that the row claims. `repaired` is None if no repair was requested. `tag` is set for
    a row of a view by tag.
    """

    topic: str
    partition: int
    id: str
    kind: FindingKind
    seq_nr: int | None = None
    offset: int | None = None
    detail: str = ""
    repaired: bool | None = None
    tag: str | None = None

    def __str__(self) -> str:
        kind = self.kind.value if self.tag is None else f"{self.kind.value} under {self.tag!r}"
        what = kind if self.seq_nr is None else f"{kind}, seq_nr {self.seq_nr}"
        of = f"{self.topic}[{self.partition}]" + (f" {self.id!r}" if self.id else "")
        return f"{of}: {what}" + (f" ({self.detail})" if self.detail else "")


OUTCOME_COLUMNS = f"{FINDING_COLUMNS}, count bigint"
# Kinds of rows that are no findings. The detail is the name of a count, where a journal was suspect, or an error.
COUNTED, SUSPECT, FAILED = "counted", "suspect", "failed"
# Counts of which all tasks report the same thing, and the highest is right.
_HIGHEST = ("first",)
_ROWS_AT_ONCE = 1000


class Outcomes:
    """The rows of a task, collected until they are taken."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._counts: Counter[tuple[TopicPartition, str]] = Counter()

    def found(self, findings: Iterable[Finding]) -> None:
        """Add findings."""
        for finding in findings:
            self._rows.append((*msgspec.structs.astuple(finding), None))

    def count(self, at: TopicPartition, **counts: int) -> None:
        """Add to counts of a partition."""
        for name, count in counts.items():
            if name in _HIGHEST:
                self._counts[at, name] = max(count, self._counts[at, name])
            else:
                self._counts[at, name] += count

    def suspect(self, at: TopicPartition, id_: str, *, is_views_only: bool) -> None:
        """Add a journal to look at again; `is_views_only` if only its rows in views by tag belong to the partition."""
        self._rows.append((*at, id_, SUSPECT, None, None, "views" if is_views_only else "", None, None, None))

    def failed(self, topic: str, reason: str) -> None:
        """Add why the task could not finish."""
        self._rows.append((topic, None, None, FAILED, None, None, reason, None, None, None))

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows since the last time, without the counts."""
        rows, self._rows = self._rows, []
        return [_batch(rows[start : start + _ROWS_AT_ONCE]) for start in range(0, len(rows), _ROWS_AT_ONCE)]

    def take_counts(self) -> list[pa.RecordBatch]:
        """Return the counts."""
        counts, self._counts = self._counts, Counter()
        for (at, name), count in counts.items():
            self._rows.append((*at, None, COUNTED, None, None, name, None, None, count))
        return self.take()


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    types = (
        pa.string(), pa.int32(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string(), pa.bool_(), pa.string(),
        pa.int64(),
    )  # fmt: skip
    names = (*Finding.__struct_fields__, "count")
    return batch_of_rows(rows, pa.schema(list(zip(names, types, strict=True))))


@dataclass(slots=True)
class Tally:
    """The outcomes of all tasks, added up: counts and findings by partition, findings by kind, and suspects."""

    counts: dict[TopicPartition, Counter[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    suspects: Counter[TopicPartition] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def of(self, at: TopicPartition) -> Mapping[str, int]:
        """Return the counts of a partition."""
        return self.counts.get(at, Counter())

    def total(self, name: str) -> int:
        """Return a count of all partitions together."""
        return sum(counts[name] for counts in self.counts.values())

    def add(self, row: Mapping[str, Any]) -> None:
        """Add rows of one kind and partition: there are `rows`, and `total`, `highest` and `repaired` are of them."""
        kind = row["kind"]
        if kind == FAILED:
            self.failures.append((row["topic"], row["label"]))
        elif kind == SUSPECT:
            self.suspects[TopicPartition(row["topic"], row["partition"])] += row["rows"]
        else:
            counts = self.counts.setdefault(TopicPartition(row["topic"], row["partition"]), Counter())
            if kind == COUNTED:
                name = row["label"]
                counts[name] = max(counts[name], row["highest"]) if name in _HIGHEST else counts[name] + row["total"]
            else:
                self.kinds[kind] += row["rows"]
                counts["findings"] += row["rows"]
                counts["repaired"] += row["repaired"]

    def check(self, what: str) -> None:
        """Raise OperationFailed if a task could not finish."""
        for topic, reason in self.failures:
            raise OperationFailed(f"{what} {topic}", reason, outcome_known=False)


def tally_of(frame: DataFrame) -> Tally:
    """Run a job and add its outcomes up. Raises OperationFailed if Spark gave up."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    label = f.when(f.col("kind").isin(COUNTED, FAILED), f.col("detail")).alias("label")
    rows = frame.groupBy("topic", "partition", "kind", label).agg(
        f.count("*").alias("rows"),
        f.sum("count").alias("total"),
        f.max("count").alias("highest"),
        f.count_if("repaired").alias("repaired"),
    )
    tally = Tally()
    try:
        found = rows.collect()
    except PySparkException as error:
        raise OperationFailed("running a job on Spark", _last_line(error), outcome_known=False) from error
    for row in found:
        tally.add(row.asDict())
    return tally


def _last_line(error: Exception) -> str:
    """Return the line of an error that names its cause: Spark's messages have dozens, and a Python cause is last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return lines[-1] if lines else type(error).__name__
