"""append-log-embedded-batches: a hundred records to an append, into the embedded log."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.embedded import against_sqlite

BENCH = Bench(
    name="append-log-embedded-batches",
    work="log.append of 100 records each, 1000 in flight, embedded log, fsynced",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="sqlite3 executemany of the same rows, same group size",
            target=at_least(0.5),
        ),
        Measure("group_size", unit="rows"),
    ),
    setup=partial(against_sqlite, full=200_000, append_size=100),
)
