"""What a used consumer may still hold of the place where it read before never hides a record of the next."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis
import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import strategies as st

from headrace.log.kafka.client import Threads
from headrace.log.kafka.follower import Assigned, sort_messages
from headrace.log.kafka.read import PartitionRead, Read, gather
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
    reading = PartitionRead(None, None, Pool())  # type: ignore[arg-type]
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


OTHER = TopicPartition("t", 0)


def assigned(start: int = 0) -> dict[TopicPartition, Assigned]:
    return {AT: Assigned(1, start, start), OTHER: Assigned(2, 0, 0)}


def brought(messages: Sequence[Message], places: dict[TopicPartition, Assigned]) -> dict[TopicPartition, list[int]]:
    found = sort_messages(messages, places)
    return {each.at: [record.offset for record in each.batch.records] for each in found.brought}


def test_messages_of_many_partitions_are_sorted() -> None:
    """FT8: one batch a partition, in order; what nobody wants any more is dropped, and so is what was seen."""
    places = assigned()
    messages = [message(0), message(0, partition=0), message(5, topic="left"), message(1), end(4), message(0)]
    found = sort_messages(messages, places)
    assert [(each.at, each.turn, each.batch.next_offset) for each in found.brought] == [(AT, 1, 4), (OTHER, 2, 1)]
    assert [[record.offset for record in each.batch.records] for each in found.brought] == [[0, 1], [0]]
    assert not found.doubtful


@pytest.mark.parametrize("stale", [end(9), message(9)], ids=["end", "record"])
def test_a_follower_that_begins_with_a_gap_looks_twice(stale: Message) -> None:
    """FT8: what was queued of another place hides nothing; a gap that is there twice is one."""
    places = assigned(3)
    found = sort_messages([stale, message(10)], places)
    assert (found.doubtful, found.brought) == ([AT], [])
    assert brought([message(3), message(4)], places) == {AT: [3, 4]}
    places = assigned(3)
    sort_messages([message(5)], places)
    assert brought([message(5), message(6)], places) == {AT: [5, 6]}


def test_nothing_counts_behind_an_error_of_a_partition() -> None:
    """FT8: the feed ends there; an error that the driver mends by itself changes nothing."""
    places = assigned()
    lost = Message(topic="t", partition=1, offset=1, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
    down = Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    found = sort_messages([down, message(0), lost, message(2), message(0, partition=0)], places)
    assert [(each.at, len(each.batch.records), each.error is not None) for each in found.brought] == [
        (AT, 1, True),
        (OTHER, 1, False),
    ]
    assert brought([message(3)], places) == {}


PLACES = [("t", 1), ("t", 0), ("left", 0)]
STEPS = st.tuples(st.sampled_from(PLACES), st.integers(0, 6), st.sampled_from(["record"] * 6 + ["end", "lost"]))


def driver_message(place: tuple[str, int], offset: int, kind: str) -> Message:
    topic, partition = place
    if kind == "end":
        return end(offset, topic=topic, partition=partition)
    if kind == "lost":
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
        return Message(topic=topic, partition=partition, offset=offset, error=error)
    return message(offset, topic=topic, partition=partition)


@hypothesis.given(st.lists(STEPS, max_size=12))
def test_runs_of_one_partition_are_sorted_as_single_messages_are(steps: list[tuple[tuple[str, int], int, str]]) -> None:
    """FT8: messages of one poll lead to the same records, positions and errors as if each came in a poll of its own.

    Only a partition that must be read again differs: nothing else of that poll is taken from it.
    """
    messages = [driver_message(*step) for step in steps]
    at_once, one_by_one = assigned(), assigned()
    together = sort_messages(messages, at_once)
    hypothesis.assume(not together.doubtful)
    records: dict[TopicPartition, list[int]] = {}
    errors: set[TopicPartition] = set()
    for each in messages:
        for found in sort_messages([each], one_by_one).brought:
            records.setdefault(found.at, []).extend(record.offset for record in found.batch.records)
            errors |= {found.at} if found.error is not None else set()
    assert at_once == one_by_one
    assert {each.at: [record.offset for record in each.batch.records] for each in together.brought} == records
    assert {each.at for each in together.brought if each.error is not None} == errors
