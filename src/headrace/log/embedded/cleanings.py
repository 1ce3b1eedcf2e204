"""When compaction came by a partition, so that ages are counted from there and not from what writers stamp.

A record's timestamp is its writer's choice. A reader that was away counts how long it was away; so what it relies on
(a change stays for the minimum lag, a tombstone for its retention) must be counted from when the log had the record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from headrace.model import TopicConfig
from headrace.runtime import BootMoment, BootTime, elapsed_ms

__all__ = ["CompactionBounds", "Visit", "decide_cleaning", "note_cleaning"]

# A visit is remembered when the last one is so much older, as a part of the shortest age that is asked for.
_PARTS = 16


class Visit(NamedTuple):
    """One run of compaction: where the partition ended, and below which offset it was compacted."""

    number: int
    reached: int
    cleaned: int
    at: BootMoment


class CompactionBounds(NamedTuple):
    """What compaction may do now: replace records below `cleaned`, drop tombstones below `tombstones_below`."""

    cleaned: int
    tombstones_below: int


def decide_cleaning(visits: Sequence[Visit], end: int, config: TopicConfig, now: BootMoment) -> CompactionBounds:
    """Return what may be compacted, given the earlier visits and where the partition ends."""
    cleaned = _reached(visits, config.min_compaction_lag_ms, now) if config.min_compaction_lag_ms else end
    if not config.tombstone_retention_ms:
        return CompactionBounds(cleaned, cleaned)
    old = (v.cleaned for v in visits if _age_ms(v.at, now) > config.tombstone_retention_ms)
    return CompactionBounds(cleaned, max(old, default=0))


def _reached(visits: Sequence[Visit], lag_ms: int, now: BootMoment) -> int:
    return max((v.reached for v in visits if _age_ms(v.at, now) > lag_ms), default=0)


def note_cleaning(
    db: sqlite3.Connection, partition_id: int, end: int, config: TopicConfig, now: BootMoment
) -> CompactionBounds:
    """Remember this visit, forget those that no question needs any more, and return what may be compacted."""
    visits = _load(db, partition_id)
    cleaning = decide_cleaning(visits, end, config, now)
    visit = Visit(visits[-1].number + 1 if visits else 0, end, cleaning.cleaned, now)
    if _is_worth_keeping(visits, visit, config):
        row = (partition_id, visit.number, end, cleaning.cleaned, *now.boot, now.wall_ms)
        db.execute("INSERT INTO cleanings VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    longest_ms = max(config.min_compaction_lag_ms, config.tombstone_retention_ms)
    settled = [v.number for v in visits if _age_ms(v.at, now) > longest_ms]
    if settled:  # the newest of those that are old enough for every question says all that the others say
        db.execute("DELETE FROM cleanings WHERE partition_id = ? AND number < ?", (partition_id, settled[-1]))
    return cleaning


def _is_worth_keeping(visits: Sequence[Visit], visit: Visit, config: TopicConfig) -> bool:
    if not visits:
        return True
    last = visits[-1]
    if (last.reached, last.cleaned) == (visit.reached, visit.cleaned):
        return False
    shortest = min(config.min_compaction_lag_ms or config.tombstone_retention_ms, config.tombstone_retention_ms)
    return _age_ms(last.at, visit.at) * _PARTS >= shortest


def _load(db: sqlite3.Connection, partition_id: int) -> list[Visit]:
    rows = db.execute(
        "SELECT number, reached, cleaned, boot_id, boot_ms, wall_ms FROM cleanings WHERE partition_id = ?"
        " ORDER BY number",
        (partition_id,),
    )
    return [
        Visit(number, reached, cleaned, BootMoment(BootTime(*boot), wall))
        for number, reached, cleaned, *boot, wall in rows
    ]


def _age_ms(then: BootMoment, now: BootMoment) -> int:
    """Return how old a visit is; a wall clock that went back makes it young, so that records stay for longer."""
    return elapsed_ms(then, now) or 0
