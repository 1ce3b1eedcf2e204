"""append-embedded: single records into the embedded log."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.embedded import against_sqlite

BENCH = Bench(
    name="append-embedded",
    work="log.append of single records, 1000 in flight, embedded log, fsynced",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="sqlite3 executemany of the same rows, same group size",
            target=at_least(0.5),
        ),
        Measure("group_size", unit="rows"),
    ),
    setup=partial(against_sqlite, full=50_000, append_size=1),
)
