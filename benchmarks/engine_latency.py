"""engine-latency: one command at a time on Kafka, beside one transaction of the same two records."""

from __future__ import annotations

from benchmarks.harness import Bench, Measure, at_most
from benchmarks.workloads.engine_contests import one_against_transaction

BENCH = Bench(
    name="engine-latency",
    work="one command at a time, each an event and a state in a transaction of its own, Kafka",
    measures=(
        Measure(
            "one_command_p50_ms",
            unit="ms",
            against="one transaction of the same two records with confluent-kafka",
            target=at_most(1.3),
        ),
    ),
    setup=one_against_transaction,
)
