"""append-many: a hundred events to an append, into journals on Kafka."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Bench, Measure, at_least
from benchmarks.workloads.journal_appends import against_producer

BENCH = Bench(
    name="append-many",
    work="journal.append of 100 events each, 1000 in flight, Kafka",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="confluent-kafka producing the same records, delivery callbacks, acks all, idempotent, same linger",
            target=at_least(0.5),
        ),
    ),
    setup=partial(against_producer, full=200_000, append_size=100),
)
