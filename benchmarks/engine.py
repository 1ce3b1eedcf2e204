"""engine: commands to 1000 aggregates on Kafka, beside transactions of the same records."""

from __future__ import annotations

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.engine_contests import PARTITIONS, against_transactions
from benchmarks.workloads.engines import IN_FLIGHT

BENCH = Bench(
    name="engine",
    work=f"commands to 1000 aggregates in {PARTITIONS} partitions, {IN_FLIGHT} in flight, on Kafka",
    measures=(
        Measure(
            "commands_per_s",
            unit="commands/s",
            against="a transactional producer of confluent-kafka: the same records in the same transactions",
            target=at_least(0.5),
        ),
        Measure("batch_size", unit="commands"),
    ),
    setup=against_transactions,
)
