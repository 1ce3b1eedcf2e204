"""engine-embedded: commands to 1000 aggregates on the embedded tier, beside the same rows put straight into SQLite."""

from __future__ import annotations

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.engine_contests import PARTITIONS, against_sqlite_rows
from benchmarks.workloads.engines import IN_FLIGHT

BENCH = Bench(
    name="engine-embedded",
    work=f"commands to 1000 aggregates in {PARTITIONS} partitions, {IN_FLIGHT} in flight, embedded, fsynced",
    measures=(
        Measure(
            "commands_per_s",
            unit="commands/s",
            against="sqlite3 executemany of the same rows, same group size",
            target=at_least(0.4),
        ),
        Measure("batch_size", unit="commands"),
    ),
    setup=against_sqlite_rows,
)
