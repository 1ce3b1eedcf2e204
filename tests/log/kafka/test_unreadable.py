"""Records of other clients that the driver can't decode: named, and passed if somebody wants to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.log.kafka.foreign import produce

from headrace.errors import UnreadableRecord
from headrace.log.kafka.log import KafkaLog
from headrace.model import Batch, Record, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import new_topic, numbered, values

pytestmark = pytest.mark.servers

NO_TEXT = b"\xff\xfe"


async def write(log: KafkaLog, kafka: RunningService, topic: str) -> None:
    """Write five records, of which the third has a header whose name is no UTF-8."""
    await log.append(numbered(topic, 2))
    headers = [(b"before", b"1"), (NO_TEXT, b"2"), (b"after", b"3")]
    await asyncio.to_thread(produce, kafka.address, topic, b"2", headers, key=b"k")
    await log.append(numbered(topic, 2, first=3))


async def read_until_refused(reading: AsyncIterator[Batch]) -> tuple[Sequence[Record], UnreadableRecord]:
    found: list[Record] = []

    async def read() -> None:
        async for batch in reading:
            found.extend(batch.records)

    with pytest.raises(UnreadableRecord, match="the name of a header is no UTF-8") as refused:
        await read()
    return found, refused.value


@pytest.mark.parametrize("options", [{"end": 5}, {"end": 5, "headers_only": True}, {"end": 5, "max_records": 1}, {}])
async def test_a_read_names_it_and_can_go_past_it(
    log: KafkaLog, kafka: RunningService, topic: str, options: dict[str, Any]
) -> None:
    """All before it is handed out, bounded or followed, the error names its place, and a read behind it goes on."""
    await write(log, kafka, topic)
    at = TopicPartition(topic, 0)
    for start, before in ((0, [0, 1]), (1, [1]), (2, [])):
        found, error = await read_until_refused(log.read(at, start, **options))
        assert [record.offset for record in found] == before
        assert (error.topic, error.partition, error.offset) == (topic, 0, 2)
    behind = [record async for batch in log.read(at, 3, 5) for record in batch.records]
    assert values(behind) == [b"3", b"4"]
    up_to = [record async for batch in log.read(at, 0, 2) for record in batch.records]
    assert values(up_to) == [b"0", b"1"]


async def test_a_member_goes_past_it_by_a_commit(log: KafkaLog, kafka: RunningService) -> None:
    """Each poll raises when nothing else is there; the other partition loses nothing; a commit behind it goes on."""
    topic = await new_topic(log, partitions=2)
    await log.append(numbered(topic, 2, partition=0))
    await asyncio.to_thread(produce, kafka.address, topic, b"2", [(NO_TEXT, b"2")], key=b"k")
    await log.append(numbered(topic, 2, partition=0, first=3))
    await log.append(numbered(topic, 10, partition=1, first=10))
    member = await log.groups.join(f"g-{topic}", [topic])
    found: list[bytes | None] = []

    async def poll_until_unreadable() -> UnreadableRecord:
        async with asyncio.timeout(30):
            while True:
                try:
                    found.extend(values(await member.poll(max_records=4)))
                except UnreadableRecord as error:
                    return error

    errors = [await poll_until_unreadable()]
    while len(found) < 12:
        errors.append(await poll_until_unreadable())
    assert {(error.partition, error.offset) for error in errors} == {(0, 2)}
    assert sorted(found, key=str) == [b"0", b"1", *(b"%d" % n for n in range(10, 20))]
    await member.commit({TopicPartition(topic, 0): 2})
    assert (await poll_until_unreadable()).offset == 2
    await member.commit({TopicPartition(topic, 0): 3})
    behind: list[bytes | None] = []
    async with asyncio.timeout(30):
        while len(behind) < 2:
            behind.extend(values(await member.poll()))
    assert behind == [b"3", b"4"]
    await member.leave()
