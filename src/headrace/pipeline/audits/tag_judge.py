"""Judgement of one journal's rows in the views by tag: are they what the log makes of the journal? Pure.

Each event that counts has one row under each of its tags, with the next number. If the log's start was removed, the
earlier numbers are unknown, and are derived from the rows that exist. Rows from before the window are not judged, nor
rows of a tag that was given to events later: the log does not know them. Rows that an operator removed, or that were
trimmed because of their age, are not missed.

If the numbers can't be known, or belong to rows that stay, missing rows are reported but not restored: two events with
one number are worse than a gap, which queries notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import Finding, FindingKind
from headrace.pipeline.audits.judge import differing
from headrace.pipeline.audits.windows import KeyWindow
from headrace.protocol import KeyFold
from headrace.store import EventRow, Place, TagNumber, TagRow, tag_time_of
from headrace.tags import Numbering, TagFill, Trimmed, is_trimmed, number_of

__all__ = ["TagCase", "TagVerdict", "judge_tags"]


@dataclass(frozen=True, slots=True)
class TagCase:
    """One journal to judge: the fold of its records, its rows and numbers in the views, and facts about its tags."""

    at: TopicPartition
    id: str
    window: KeyWindow
    fold: KeyFold
    numbering: Numbering
    rows: Sequence[TagRow]
    numbers: Mapping[str, TagNumber]
    fills: Mapping[str, TagFill] = field(default_factory=dict)
    redacted: Collection[str] = ()
    highest_log_time_ms: int = 0
    log_end: int = 0
    trimmed: Mapping[str, Trimmed] = field(default_factory=dict)


@dataclass(slots=True)
class TagVerdict:
    """The findings; `right` rows and `numbers` to write, and `wrong` rows to remove.

    `doubtful` are all rows of the findings, as they are and as they should be.
    """

    findings: list[Finding] = field(default_factory=list)
    right: list[TagRow] = field(default_factory=list)
    wrong: list[TagRow] = field(default_factory=list)
    numbers: list[TagNumber] = field(default_factory=list)
    doubtful: list[TagRow] = field(default_factory=list)


def judge_tags(case: TagCase) -> TagVerdict:
    """Compare a journal's rows and numbers, tag by tag."""
    verdict = TagVerdict()
    found: dict[str, list[TagRow]] = {}
    for row in case.rows:
        if not is_trimmed(case.trimmed, row):  # a row that a late writer left in a trimmed bucket is never read
            found.setdefault(row.tag, []).append(row)
    named = {tag for event in case.fold.tagged for tag in event.tags}
    for tag in sorted(named | set(found)):
        fill = case.fills.get(tag)
        if fill is None or fill.is_ready:
            _TagJudge(case, tag, fill, found.get(tag, ())).judge(verdict)
    return verdict


class _TagJudge:
    """Judges one tag of one journal."""

    def __init__(self, case: TagCase, tag: str, fill: TagFill | None, rows: Sequence[TagRow]) -> None:
        self._case = case
        self._tag = tag
        self._fill = fill
        self._rows = [row for row in rows if not self._is_not_judged(row)]
        known = case.numbers.get(tag)
        self._first = known.first if known is not None else 1
        self._staying = [row for row in rows if self._is_not_judged(row)]
        self._events = [event for event in case.fold.tagged if tag in event.tags and not self._is_filled(event)]

    def judge(self, verdict: TagVerdict) -> None:
        """Add the findings, and what is right if that can be known."""
        before = self._number_before()
        expected = list(self._expected(before or 0))
        taken = {row.number for row in self._staying}.intersection(row.number for row in expected)
        if before is not None and not taken:
            self._compare(expected, verdict)
            return
        reason = "its number can't be known" if before is None else f"number {min(taken)} is taken"
        found = TagVerdict()
        self._compare(expected, found)
        verdict.findings += [msgspec.structs.replace(finding, detail=reason) for finding in found.findings]
        verdict.doubtful += found.doubtful

    def _compare(self, expected: Sequence[TagRow], verdict: TagVerdict) -> None:
        missing = {(row.offset, row.generation, row.seq_nr): row for row in expected}
        for row in sorted(self._rows, key=lambda row: row.number):
            right = missing.pop((row.offset, row.generation, row.seq_nr), None)
            if right is None:
                verdict.doubtful.append(row)
                verdict.wrong.append(row)
                verdict.findings.append(self._finding(FindingKind.TAG_ROW_ADDED, row, f"number {row.number}"))
            elif detail := self._difference(row, right):
                right = self._as_redacted_as(row, right)
                verdict.doubtful += (row, right)
                verdict.wrong.append(row)
                verdict.right.append(_with_time_of(row, right) if self._is_time_possible(row, right) else right)
                verdict.findings.append(self._finding(FindingKind.TAG_ROW_CHANGED, right, detail))
        for right in missing.values():
            if right.number < self._first or is_trimmed(self._case.trimmed, right):
                continue
            verdict.doubtful.append(right)
            verdict.right.append(right)
            verdict.findings.append(self._finding(FindingKind.TAG_ROW_MISSING, right, f"number {right.number}"))
        if expected and (detail := self._wrong_number(expected[-1])):
            verdict.numbers.append(number_of(expected[-1]))
            verdict.findings.append(self._finding(FindingKind.TAG_NUMBER_CHANGED, expected[-1], detail))

    def _expected(self, before: int) -> Iterator[TagRow]:
        case = self._case
        for number, event in enumerate(self._events, before + 1):
            row = case.numbering.row(case.id, event, self._tag, number)
            yield _redacted(row) if self._tag in case.redacted and self._is_removed(event) else row

    def _number_before(self) -> int | None:
        """Return the number before the window's first event; None if it can't be known."""
        if self._case.window.is_whole and self._first == 1:
            return max((row.number for row in self._staying if self._is_filled(row)), default=0)
        positions = {(event.offset, event.generation, event.seq_nr): n for n, event in enumerate(self._events, 1)}
        bases = Counter(
            row.number - positions[key]
            for row in self._rows
            if (key := (row.offset, row.generation, row.seq_nr)) in positions and row.number >= positions[key]
        )
        if bases:
            return max(bases, key=lambda before: (bases[before], -before))
        known = self._case.numbers.get(self._tag)
        if known is None or self._case.window.is_ahead(known.place):
            return None if self._events else 0
        return max(0, known.number - sum(event.place <= known.place for event in self._events))

    def _is_not_judged(self, row: TagRow) -> bool:
        """Return True if a row can't be judged: it is from before the window, newer than it, or from a back-fill."""
        if None in (row.generation, row.offset):  # written by hand
            return False
        window = self._case.window
        if window.is_before(row.place) and not (window.is_whole or row.place < Place(0, 0)):
            return True
        return (window.is_ahead(row.place) and row.offset < self._case.log_end) or self._is_filled(row)

    def _is_filled(self, row: TagRow | EventRow) -> bool:
        """Return True if the back-fill decided about a row, by the cut of the partition that the row was written in."""
        at = TopicPartition(self._case.at.topic, row.partition)
        return self._fill is not None and self._fill.leaves_out(at, row.place)

    def _is_removed(self, event: EventRow) -> bool:
        return any(gone.place > event.place and event.seq_nr <= gone.last for gone in self._case.fold.removals)

    def _difference(self, row: TagRow, right: TagRow) -> str:
        right = self._as_redacted_as(row, right)
        if self._is_time_possible(row, right):
            right = _with_time_of(row, right)
        return "" if row == right else differing(row, right)

    def _as_redacted_as(self, row: TagRow, right: TagRow) -> TagRow:
        """Return the right row, redacted if the stored row is: a redacted row stays redacted."""
        return _redacted(right) if row.is_redacted else right

    def _is_time_possible(self, row: TagRow, right: TagRow) -> bool:
        """Return True if the row's log time is possible: a record before the window may have raised it."""
        time, computed = tag_time_of(row.timestamp), tag_time_of(right.timestamp)
        is_same_record = time[1:] == computed[1:]
        return is_same_record and right.timestamp_ms <= time.log_time_ms <= self._case.highest_log_time_ms

    def _wrong_number(self, last: TagRow) -> str:
        """Return what is wrong with the stored number; empty if it is right, or has advanced behind the window."""
        known, right = self._case.numbers.get(self._tag), f"the last number is {last.number}"
        if known is None:
            return right
        if self._case.window.is_ahead(known.place) and known.offset >= self._case.log_end:
            return f"{right}; it is noted at offset {known.offset}, and the log ends at {self._case.log_end}"
        if known.place > last.place:
            return "" if known.number >= last.number else right
        return "" if (known.number, known.place) == (last.number, last.place) else right

    def _finding(self, kind: FindingKind, row: TagRow, detail: str) -> Finding:
        topic, partition = self._case.at
        return Finding(
            topic=topic, partition=partition, id=self._case.id, kind=kind, seq_nr=row.seq_nr, offset=row.offset,
            detail=detail, tag=self._tag,
        )  # fmt: skip


def _redacted(row: TagRow) -> TagRow:
    return msgspec.structs.replace(row, payload_type=None, payload=None, metadata=None, headers={}, is_redacted=True)


def _with_time_of(row: TagRow, right: TagRow) -> TagRow:
    return msgspec.structs.replace(right, timestamp=row.timestamp, bucket_ms=row.bucket_ms)
