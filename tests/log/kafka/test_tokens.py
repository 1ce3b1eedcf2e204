"""Consistency tokens on Kafka, where an open transaction hides what others have written behind it."""

from __future__ import annotations

import pytest

from headrace.errors import TimedOut
from headrace.log import transaction, wait_for_token
from headrace.log.kafka.log import KafkaLog
from headrace.model import ConsistencyToken, NewRecord, WrittenPosition

pytestmark = pytest.mark.servers


async def test_a_token_behind_an_open_transaction_is_reached_when_that_ends(log: KafkaLog, topic: str) -> None:
    """An acknowledged record can't be read before the transaction that began earlier is committed or aborted."""
    topic_id = (await log.admin.describe(topic)).topic_id
    producer = await log.transactional(f"id-{topic}")
    async with transaction(producer) as opened:
        await opened.append(NewRecord(topic, b"k", partition=0))
        (position,) = await log.append([NewRecord(topic, b"k", partition=0)])
        token = ConsistencyToken.parse(WrittenPosition.at(position, topic_id).token)
        with pytest.raises(TimedOut, match="open transactions"):
            await wait_for_token(log, token, timeout_s=0.1)
    await wait_for_token(log, token, timeout_s=20)
    await producer.close()
