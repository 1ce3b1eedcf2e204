"""Retention and compaction: what brokers do in Kafka, done here by one of the processes that share the file.

A record's timestamp is its writer's choice. A reader that was away counts how long it was away; so what it relies on
(a change stays for the minimum lag, a tombstone for its retention) must be counted from when the log had the record.
Ages are therefore counted from when compaction came by a partition, and its visits are remembered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headrace.errors import OffsetOutOfRange
from headrace.log import checks
from headrace.log.embedded.append import LogCall, LogWork
from headrace.log.embedded.schema import MAX_OFFSET, load_topic, offset_of, partition_row, place_of
from headrace.model import TopicConfig, TopicPartition
from headrace.runtime import BootMoment, BootTime, Clock, elapsed_ms, moment_of
from headrace.sqlite import GroupCommit, Readers

__all__ = ["EmbeddedRetention"]

T = TypeVar("T")

# Other processes wait for the write lock while a piece is deleted.
_PIECE = 2000

_SUPERSEDED = """
SELECT place FROM (
    SELECT place, max(place) OVER (PARTITION BY key) AS newest FROM records WHERE place BETWEEN ? AND ?
) WHERE place < newest
"""
_TOMBSTONES = "SELECT place FROM records WHERE place BETWEEN ? AND ? AND value IS NULL"


class EmbeddedRetention:
    """The embedded log's Retention."""

    def __init__(self, commits: GroupCommit[LogWork], readers: Readers, clock: Clock) -> None:
        self._commits = commits
        self._readers = readers
        self._clock = clock

    async def truncate(self, at: TopicPartition, *, before: int) -> int:
        """Remove what lies below `before`."""
        checks.check_place(at)
        checks.check_offset("before", before)
        await self._call(lambda db: _check_truncate(db, at, before))
        return await self._move_start(at, before)

    async def release(self, at: TopicPartition, *, below: int) -> None:
        """Allow the removal of records below the offset."""
        checks.check_place(at)
        checks.check_offset("below", below)
        await self._call(lambda db: _release(db, at, below))

    async def enforce(self) -> None:
        """Apply retention and compaction to every topic."""
        for at in await self._readers.run(_all_partitions):
            keep_from = await self._readers.run(lambda db, at=at: self._expired_below(db, at))  # type: ignore[misc]
            await self._move_start(at, keep_from)
            victims = await self._compactable(at)
            for start in range(0, len(victims), _PIECE):
                piece = victims[start : start + _PIECE]
                await self._call(lambda db, piece=piece: _remove(db, piece))  # type: ignore[misc]

    async def _compactable(self, at: TopicPartition) -> list[int]:
        """List the places that compaction may remove now."""
        config = (await self._readers.run(lambda db: load_topic(db, at.topic))).config
        if not config.cleanup.compacts:
            return []
        cleaning = await self._call(lambda db: self._note_cleaning(db, at, config))
        return await self._readers.run(lambda db: _superseded(db, at, cleaning))

    def _note_cleaning(self, db: sqlite3.Connection, at: TopicPartition, config: TopicConfig) -> _CompactionBounds:
        partition_id, _, end = partition_row(db, at)
        return _note_visit(db, partition_id, end, config, moment_of(self._clock))

    async def _move_start(self, at: TopicPartition, start: int) -> int:
        while not await self._call(lambda db: _drop_piece(db, at, start)):
            pass
        return (await self._readers.run(lambda db: partition_row(db, at)))[1]

    async def _call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        result: T = await self._commits.submit(LogCall(function))
        return result

    def _expired_below(self, db: sqlite3.Connection, at: TopicPartition) -> int:
        """Return the first offset that retention keeps."""
        config = load_topic(db, at.topic).config
        partition_id, start, end = partition_row(db, at)
        if not config.cleanup.deletes or config.retention_ms is None:
            return start
        row = db.execute(
            "SELECT place FROM records WHERE place BETWEEN ? AND ? AND timestamp_ms >= ? ORDER BY place LIMIT 1",
            (*_range(partition_id), self._clock.now_ms() - config.retention_ms),
        ).fetchone()
        keep_from = offset_of(row[0]) if row else end
        return min(keep_from, _released(db, at)) if config.keep_until_released else keep_from


def _superseded(db: sqlite3.Connection, at: TopicPartition, cleaning: _CompactionBounds) -> list[int]:
    """List the places of records that a newer one of their key replaced, then those of tombstones that served.

    A record that is too young to be compacted replaces nothing yet.
    """
    partition_id = partition_row(db, at)[0]
    first = place_of(partition_id, 0)
    old = [place for (place,) in db.execute(_SUPERSEDED, (first, place_of(partition_id, cleaning.cleaned) - 1))]
    places = (first, place_of(partition_id, cleaning.tombstones_below) - 1)
    # Older values go first: a tombstone that went before them would bring them back for whoever reads in between.
    return old + sorted({place for (place,) in db.execute(_TOMBSTONES, places)} - set(old))


def _range(partition_id: int) -> tuple[int, int]:
    return place_of(partition_id, 0), place_of(partition_id, MAX_OFFSET)


def _all_partitions(db: sqlite3.Connection) -> list[TopicPartition]:
    return [TopicPartition(*row) for row in db.execute("SELECT topic, partition FROM partitions ORDER BY id")]


def _released(db: sqlite3.Connection, at: TopicPartition) -> int:
    row = db.execute("SELECT released FROM partitions WHERE topic = ? AND partition = ?", at).fetchone()
    return int(row[0])


def _release(db: sqlite3.Connection, at: TopicPartition, below: int) -> None:
    partition_id, start, end = partition_row(db, at)
    if below > end:
        raise OffsetOutOfRange(at.topic, at.partition, below, start, end)
    db.execute("UPDATE partitions SET released = max(released, ?) WHERE id = ?", (below, partition_id))


def _check_truncate(db: sqlite3.Connection, at: TopicPartition, before: int) -> None:
    _, start, end = partition_row(db, at)
    if not 0 <= before <= end:
        raise OffsetOutOfRange(at.topic, at.partition, before, start, end)


def _drop_piece(db: sqlite3.Connection, at: TopicPartition, start: int) -> bool:
    """Move the start a piece further towards `start`; True when it is there. The start never goes back."""
    partition_id, old_start, _ = partition_row(db, at)
    if start <= old_start:
        return True
    row = db.execute(
        "SELECT place FROM records WHERE place >= ? AND place < ? ORDER BY place LIMIT 1 OFFSET ?",
        (place_of(partition_id, old_start), place_of(partition_id, start), _PIECE),
    ).fetchone()
    new_start = offset_of(row[0]) if row else start
    db.execute(
        "DELETE FROM records WHERE place >= ? AND place < ?",
        (place_of(partition_id, old_start), place_of(partition_id, new_start)),
    )
    db.execute("UPDATE partitions SET start_offset = ? WHERE id = ?", (new_start, partition_id))
    return new_start == start


def _remove(db: sqlite3.Connection, places: Sequence[int]) -> None:
    db.executemany("DELETE FROM records WHERE place = ?", [(place,) for place in places])


# A visit is remembered when the last one is so much older, as a part of the shortest age that is asked for.
_PARTS = 16


class _Visit(NamedTuple):
    """One run of compaction: where the partition ended, and below which offset it was compacted."""

    number: int
    reached: int
    cleaned: int
    at: BootMoment


class _CompactionBounds(NamedTuple):
    """What compaction may do now: replace records below `cleaned`, drop tombstones below `tombstones_below`."""

    cleaned: int
    tombstones_below: int


def _decide_cleaning(visits: Sequence[_Visit], end: int, config: TopicConfig, now: BootMoment) -> _CompactionBounds:
    """Return what may be compacted, given the earlier visits and where the partition ends."""
    cleaned = _reached(visits, config.min_compaction_lag_ms, now) if config.min_compaction_lag_ms else end
    if not config.tombstone_retention_ms:
        return _CompactionBounds(cleaned, cleaned)
    old = (v.cleaned for v in visits if _age_ms(v.at, now) > config.tombstone_retention_ms)
    return _CompactionBounds(cleaned, max(old, default=0))


def _reached(visits: Sequence[_Visit], lag_ms: int, now: BootMoment) -> int:
    return max((v.reached for v in visits if _age_ms(v.at, now) > lag_ms), default=0)


def _note_visit(
    db: sqlite3.Connection, partition_id: int, end: int, config: TopicConfig, now: BootMoment
) -> _CompactionBounds:
    """Remember this visit, forget those that no question needs any more, and return what may be compacted."""
    visits = _visits_of(db, partition_id)
    cleaning = _decide_cleaning(visits, end, config, now)
    visit = _Visit(visits[-1].number + 1 if visits else 0, end, cleaning.cleaned, now)
    if _is_worth_keeping(visits, visit, config):
        row = (partition_id, visit.number, end, cleaning.cleaned, *now.boot, now.wall_ms)
        db.execute("INSERT INTO cleanings VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    longest_ms = max(config.min_compaction_lag_ms, config.tombstone_retention_ms)
    settled = [v.number for v in visits if _age_ms(v.at, now) > longest_ms]
    if settled:  # the newest of those that are old enough for every question says all that the others say
        db.execute("DELETE FROM cleanings WHERE partition_id = ? AND number < ?", (partition_id, settled[-1]))
    return cleaning


def _is_worth_keeping(visits: Sequence[_Visit], visit: _Visit, config: TopicConfig) -> bool:
    if not visits:
        return True
    last = visits[-1]
    if (last.reached, last.cleaned) == (visit.reached, visit.cleaned):
        return False
    shortest = min(config.min_compaction_lag_ms or config.tombstone_retention_ms, config.tombstone_retention_ms)
    return _age_ms(last.at, visit.at) * _PARTS >= shortest


def _visits_of(db: sqlite3.Connection, partition_id: int) -> list[_Visit]:
    rows = db.execute(
        "SELECT number, reached, cleaned, boot_id, boot_ms, wall_ms FROM cleanings WHERE partition_id = ?"
        " ORDER BY number",
        (partition_id,),
    )
    return [
        _Visit(number, reached, cleaned, BootMoment(BootTime(*boot), wall))
        for number, reached, cleaned, *boot, wall in rows
    ]


def _age_ms(then: BootMoment, now: BootMoment) -> int:
    """Return how old a visit is; a wall clock that went back makes it young, so that records stay for longer."""
    return elapsed_ms(then, now) or 0
