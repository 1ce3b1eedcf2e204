"""What a used consumer may still hold of the place where it read before never hides a record of the next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, Message

from headrace.log.kafka.reading import Read, Reading, gather
from headrace.log.kafka.threads import Threads
from headrace.model import Record, TopicPartition

AT = TopicPartition("t", 1)


def message(offset: int, *, topic: str = "t", partition: int = 1) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, key=b"k", value=b"v")


def end(offset: int, *, topic: str = "t", partition: int = 1) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF)
    return Message(topic=topic, partition=partition, offset=offset, error=error)


def wanted(end_: int | None = None) -> Read:
    return Read(AT, 0, end_, headers_only=False, max_records=10, timeout_s=5.0)


@pytest.mark.parametrize(
    "stale", [message(7, topic="other"), message(7, partition=0), end(7, topic="other"), end(7, partition=0)]
)
def test_what_is_of_another_partition_moves_nothing(stale: Message) -> None:
    """Neither a record nor the end of another partition moves the position or gets into the batch."""
    batch = gather([stale, message(0), message(1)], wanted(), 0).batch
    assert ([record.offset for record in batch.records], batch.next_offset) == ([0, 1], 2)
    assert gather([stale], wanted(), 0).batch.next_offset == 0


class Pool:
    """A pool that is always open."""

    def check_open(self) -> None:
        pass


class UsedConsumer:
    """Gives one stale answer, and the truth after it was sent to its place again."""

    def __init__(self, stale: Sequence[Message], truth: Sequence[Message]) -> None:
        self.threads = Threads("test", count=1)
        self.seeks = 0
        self._answers = [list(stale), list(truth)]

    def seek(self, at: TopicPartition, offset: int) -> None:
        assert (at, offset) == (AT, 0)
        self.seeks += 1
        self._answers.pop(0)

    def take(self, max_records: int, wait_s: float) -> list[Message]:
        return self._answers[0]


async def read_with(consumer: UsedConsumer) -> list[Record]:
    reading = Reading(None, None, Pool())  # type: ignore[arg-type]
    batches = reading._batches(consumer, wanted(3))  # type: ignore[arg-type]
    try:
        return [record async for batch in batches for record in batch.records]
    finally:
        await consumer.threads.join()


@pytest.mark.parametrize("stale", [[end(3)], [message(2)]], ids=["end", "record"])
async def test_a_read_that_begins_with_a_gap_looks_twice(stale: list[Message]) -> None:
    """An end, or a later record, of the right partition that comes first does not hide what lies before it."""
    consumer = UsedConsumer(stale, [message(0), message(1), message(2)])
    assert [record.offset for record in await read_with(consumer)] == [0, 1, 2]
    assert consumer.seeks == 1


async def test_a_gap_that_is_there_twice_is_believed() -> None:
    """Aborted and control records make such gaps: the second look settles it."""
    consumer = UsedConsumer([message(2)], [message(2), end(3)])
    assert [record.offset for record in await read_with(consumer)] == [2]
    assert consumer.seeks == 1
