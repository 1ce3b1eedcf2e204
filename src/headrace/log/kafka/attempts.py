"""One transaction from begin to its end: what was put into it, and what came of each record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import HeadraceError
from headrace.log.kafka.clients import WHOLE_BATCH_BYTES
from headrace.log.kafka.faults import NO_OFFSET
from headrace.log.kafka.producers import refusal_of
from headrace.model import NewRecord, Position, Topic, size_of

__all__ = ["Attempt"]


class Attempt:
    """Gathers positions and errors. Deliveries arrive in the producer's thread, records on the loop."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.records: Counter[str] = Counter()
        self.is_broken = False  # a call of this transaction failed: the driver will not commit it
        self.offsets_sent_s: float | None = None
        self._positions: list[Position | None] = []
        self._failure: Any = None
        self._refusal: HeadraceError | None = None
        self._queued_bytes: Counter[tuple[str, int]] = Counter()

    @property
    def positions(self) -> list[Position]:
        """Where the records landed, once all are delivered."""
        return cast("list[Position]", self._positions)

    @property
    def landed(self) -> list[Position]:
        """Where those records landed that are delivered."""
        return [position for position in self._positions if position is not None]

    @property
    def refusal(self) -> HeadraceError | None:
        """What a broker refused, if it refused a record."""
        return self._refusal

    @property
    def failure(self) -> Any:  # noqa: ANN401 - the driver has no types
        """The driver's error for the first record that was not delivered, if there was one."""
        return self._failure

    def know(self, topics: Mapping[str, Topic]) -> None:
        """Remember the topics of records to come."""
        self.topics.update(topics)

    def add(self, record: NewRecord, partition: int) -> int:
        """Count a record that is about to be produced; returns its place in the transaction."""
        self.records[record.topic] += 1
        if self._is_small(record):
            self._queued_bytes[record.topic, partition] += size_of(record)
        self._positions.append(None)
        return len(self._positions) - 1

    def drop_last(self, record: NewRecord, partition: int) -> None:
        """Take back the last `add`: the record could not be queued."""
        self.records[record.topic] -= 1
        if self._is_small(record):
            self._queued_bytes[record.topic, partition] -= size_of(record)
        self._positions.pop()

    def needs_flush(self, record: NewRecord, partition: int) -> bool:
        """Say whether this record could make a batch larger than its topic takes.

        A transactional id has one producer, so the batches of topics with small limits are kept small by sending
        what is queued, instead of by another producer.
        """
        if not self._is_small(record):
            return False
        queued = self._queued_bytes[record.topic, partition]
        return queued > 0 and queued + size_of(record) > self.topics[record.topic].config.max_record_bytes

    def flushed(self) -> None:
        """Nothing is queued any more."""
        self._queued_bytes.clear()

    def delivered(self, index: int, record: NewRecord, error: Any, message: Any) -> None:  # noqa: ANN401
        """Take the driver's report on one record."""
        if error is None and message.offset() < 0:
            error = NO_OFFSET
        if error is None:
            self._positions[index] = Position(
                message.topic(), message.partition(), message.offset(), message.timestamp()[1]
            )
            return
        self._failure = self._failure or error
        if self._refusal is None:
            self._refusal = refusal_of(error, record, self.topics.get(record.topic))

    def _is_small(self, record: NewRecord) -> bool:
        return self.topics[record.topic].config.max_record_bytes < WHOLE_BATCH_BYTES
