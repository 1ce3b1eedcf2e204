"""Hand-written outbox loops with psycopg and confluent-kafka, without leases, fencing and error handling."""

from __future__ import annotations

import psycopg
from confluent_kafka import Producer

from benchmarks.bounds.kafka import TIMEOUT_S, Deliveries

__all__ = ["PollingLoop", "RawLoop"]

BATCH = 1000
_SELECT = (
    "SELECT id, topic, message, key, partition_key, headers, event_id, event_time, created_at "
    "FROM kafka_messages ORDER BY id LIMIT %s"
)


class RawLoop:
    """The cheapest loop that loses nothing: a thousand rows selected, produced, flushed, deleted by their ids."""

    def __init__(self, url: str, servers: str, *, linger_ms: float = 1.0) -> None:
        self._connection = psycopg.connect(url)
        self._producer = _producer(servers, linger_ms)

    def run(self) -> None:
        """Send until the table is empty."""
        while self._batch():
            pass

    def close(self) -> None:
        """Close both connections."""
        self._producer.close()
        self._connection.close()

    def _batch(self) -> int:
        rows = self._connection.execute(_SELECT, (BATCH,)).fetchall()
        deliveries = Deliveries()
        for _, topic, message, key, _, _, event_id, _, created_at in rows:
            headers = [("headrace.event-id", event_id.encode())]
            self._producer.produce(topic, message, key, on_delivery=deliveries, headers=headers, timestamp=created_at)
        self._producer.flush(TIMEOUT_S)
        deliveries.check(len(rows))
        self._connection.execute("DELETE FROM kafka_messages WHERE id = ANY(%s)", ([row[0] for row in rows],))
        self._connection.commit()
        return len(rows)


class PollingLoop:
    """The loop of many services: select rows, and for each row produce, wait, delete, commit."""

    def __init__(self, url: str, servers: str) -> None:
        self._connection = psycopg.connect(url)
        self._producer = _producer(servers, 1.0)

    def run(self) -> None:
        """Send until the table is empty."""
        while rows := self._connection.execute(_SELECT, (100,)).fetchall():
            for row in rows:
                deliveries = Deliveries()
                self._producer.produce(row[1], row[2], row[3], on_delivery=deliveries)
                self._producer.flush(TIMEOUT_S)
                deliveries.check(1)
                self._connection.execute("DELETE FROM kafka_messages WHERE id = %s", (row[0],))
                self._connection.commit()

    def close(self) -> None:
        """Close both connections."""
        self._producer.close()
        self._connection.close()


def _producer(servers: str, linger_ms: float) -> Producer:
    own = {"acks": "all", "enable.idempotence": True, "linger.ms": linger_ms}
    return Producer({"bootstrap.servers": servers, "log_level": 3, **own})
