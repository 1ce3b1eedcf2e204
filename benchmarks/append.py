"""append: single events into journals on Kafka."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.journal_appends import against_producer

BENCH = Bench(
    name="append",
    work="journal.append of single events, 1000 in flight, Kafka",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="confluent-kafka producing the same records, delivery callbacks, acks all, idempotent, same linger",
            target=at_least(0.25),
        ),
    ),
    setup=partial(against_producer, full=100_000, append_size=1),
)
