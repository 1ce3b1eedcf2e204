"""Brokers that die, freeze and come back; addresses where nobody is."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException
from tests.log.kafka.conftest import OpenKafka

from headrace.config import KafkaLogSettings
from headrace.errors import BadArgument, Closed, OperationFailed, TimedOut, TransactionFailed, Unavailable, Unreachable
from headrace.log import open_log
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, read_all, values

pytestmark = pytest.mark.servers

NOBODY = "kafka://127.0.0.1:9"


async def test_an_address_where_nobody_is_is_unreachable() -> None:
    """Opening fails within the request time-out, names the address and leaves no thread behind."""
    threads = set(threading.enumerate())
    started = time.monotonic()
    with pytest.raises(Unreachable, match=NOBODY) as failed:
        await KafkaLog.open(NOBODY, KafkaLogSettings(request_timeout_s=1))
    assert failed.value.outcome_known
    assert time.monotonic() - started < 5
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end meanwhile; no new one stays


async def test_an_address_that_is_none_is_refused() -> None:
    """No port, no host, another scheme: the error shows what an address looks like."""
    for address in ("kafka://", "kafka://host", "kafka:host:9092", "kafka://a:1,,b:2", "kafka://a b:1"):
        with pytest.raises(BadArgument, match="kafka://host:port"):
            await open_log(address)


def test_nothing_is_printed_when_nobody_answers() -> None:
    """librdkafka's own lines go to logging, not to stderr."""
    program = f"""
import asyncio
from headrace.config import KafkaLogSettings
from headrace.errors import Unreachable
from headrace.log.kafka.producer import Appender
from headrace.log.kafka.client import ClientConfigs
from headrace.log.kafka.deliveries import DeliveryFailed
from headrace.log.kafka.log import KafkaLog
from headrace.log.kafka.client import Threads
from headrace.model import NewRecord

async def main():
    settings = KafkaLogSettings(request_timeout_s=1.5, delivery_timeout_s=1.5)
    try:
        await KafkaLog.open({NOBODY!r}, settings)
    except Unreachable:
        print("unreachable")
    threads = Threads("calls", count=1)
    appender = Appender(ClientConfigs("127.0.0.1:9", settings).producer(batch_bytes=1000), {NOBODY!r}, threads)
    try:
        await appender.append([(NewRecord("t", b"k", b"v"), 0)])
    except DeliveryFailed:
        print("undelivered")
    await appender.close(1)
    await threads.join()

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("unreachable\nundelivered\n", "")


def test_a_missing_driver_names_the_extra() -> None:
    """Without confluent-kafka the backend can be imported, and opening says what to install."""
    program = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "import asyncio; from headrace.log import open_log; asyncio.run(open_log('kafka://a:1'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "MissingExtra: confluent_kafka is not installed; run: pip install 'headrace[kafka]'" in ran.stderr


async def test_a_reader_outlives_the_death_of_the_broker(broker: RunningService, opened: OpenKafka) -> None:
    """A following reader goes on where it was when the broker is back; meanwhile appends fail as unreachable."""
    log = await opened(broker, delivery_timeout_s=3, request_timeout_s=10)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    seen: list[bytes | None] = []

    async def follow() -> None:
        async for batch in log.read(TopicPartition(topic, 0), 0):
            seen.extend(values(batch.records))
            if b"after" in seen:
                return

    reader = asyncio.create_task(follow())
    try:
        await asyncio.to_thread(broker.kill)
        with pytest.raises(Unreachable, match=broker.address) as failed:
            await log.append([NewRecord(topic, b"k", b"meanwhile")])
        assert not failed.value.outcome_known
    finally:
        await asyncio.to_thread(broker.start)
    await log.append([NewRecord(topic, b"k", b"after")])
    await asyncio.wait_for(reader, 30)
    assert [value for value in seen if value != b"meanwhile"] == [b"0", b"after"]


async def test_a_frozen_broker_makes_appends_time_out(broker: RunningService, opened: OpenKafka) -> None:
    """The outcome is unknown, the error says so, and the log can be used again afterwards."""
    log = await opened(broker, delivery_timeout_s=2, request_timeout_s=5)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    await asyncio.to_thread(broker.pause)
    try:
        with pytest.raises((TimedOut, Unreachable)) as failed:
            await log.append([NewRecord(topic, b"k", b"perhaps")])
        assert not failed.value.outcome_known
        with pytest.raises(Unavailable):
            await log.bounds(TopicPartition(topic, 0))
    finally:
        await asyncio.to_thread(broker.resume)

    refusals: list[str] = []

    async def is_taken() -> bool:
        try:
            return bool(await log.append([NewRecord(topic, b"k", b"after")]))
        except (TimedOut, Unreachable) as error:  # a thawed broker on a busy machine needs longer than 2 s
            refusals.append(str(error))
        return False

    try:
        await eventually(is_taken)
    except AssertionError as late:
        raise AssertionError(f"{len(refusals)} appends failed after the thaw, the last with: {refusals[-1:]}") from late
    assert values(await read_all(log, topic))[-1] == b"after"


async def test_a_commit_that_runs_out_of_time_may_have_been_done(broker: RunningService, opened: OpenKafka) -> None:
    """A frozen broker leaves the outcome of a commit unknown; taking the id again settles it."""
    log = await opened(broker, delivery_timeout_s=30, request_timeout_s=2)
    topic = await new_topic(log)
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 2))

    async def is_delivered() -> bool:
        return len(producer._attempt.landed) == 2 or await asyncio.to_thread(producer._producer.poll, 0.1) < 0

    await eventually(is_delivered)
    await asyncio.to_thread(broker.pause)
    try:
        with pytest.raises(TransactionFailed) as failed:
            await producer.commit()
        assert not failed.value.outcome_known
    finally:
        await asyncio.to_thread(broker.resume)
    await eventually(lambda: _is_taken_again(log, producer.transactional_id))
    assert values(await read_all(log, topic)) in ([], [b"0", b"1"])


async def _is_taken_again(log: KafkaLog, transactional_id: str) -> bool:
    with contextlib.suppress(Unavailable):  # a thawed broker on a busy machine needs longer than a short time-out
        await (await log.transactional(transactional_id)).close()
        return True
    return False


async def test_records_that_time_out_fail_their_transaction(broker: RunningService, opened: OpenKafka) -> None:
    """When records can't be delivered nothing is committed, the error says that, and the next owner's work."""
    log = await opened(broker, delivery_timeout_s=1, request_timeout_s=4)
    topic = await new_topic(log)
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await asyncio.to_thread(broker.pause)
    try:
        await producer.append(numbered(topic, 2))
        with pytest.raises(TransactionFailed) as failed:
            await producer.commit()
        assert failed.value.outcome_known
    finally:
        await asyncio.to_thread(broker.resume)

    async def is_committed() -> bool:
        with contextlib.suppress(Unavailable):  # a thawed broker on a busy machine needs longer than 1 s
            again = await log.transactional(producer.transactional_id)
            await again.begin()
            await again.append([NewRecord(topic, b"k", b"again")])
            return bool(await again.commit())
        return False

    await eventually(is_committed)
    assert values(await read_all(log, topic)) == [b"again"]


async def test_closing_flushes_and_leaves_no_thread(kafka: RunningService) -> None:
    """Appends on their way when the log is closed are acknowledged; afterwards every call says Closed."""
    threads = set(threading.enumerate())  # some may be of another test, and end meanwhile
    log = await KafkaLog.open(f"kafka://{kafka.address}", KafkaLogSettings(linger_ms=50))
    topic = await new_topic(log)
    on_their_way = [asyncio.create_task(log.append(numbered(topic, 1))) for _ in range(100)]
    await asyncio.sleep(0)
    member = await log.groups.join(f"g-{topic}", [topic])
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 1))
    await log.close()
    await log.close()
    assert len(await asyncio.gather(*on_their_way)) == 100
    assert set(threading.enumerate()) <= threads
    at = TopicPartition(topic, 0)
    for call in (
        lambda: log.append(numbered(topic, 1)),
        lambda: anext(log.read(at, 0)),
        lambda: log.bounds(at),
        lambda: log.transactional("x"),
        lambda: log.admin.topics(),
        lambda: log.groups.join("g", [topic]),
        lambda: log.retention.enforce(),
        lambda: member.poll(),
        lambda: producer.begin(),
    ):
        with pytest.raises(Closed):
            await call()


async def test_a_member_that_leaves_before_its_first_poll_leaves_at_once(log: KafkaLog, topic: str) -> None:
    """An assignment that nobody has polled for yet is not taken over on the way out."""
    for n in range(5):
        group = f"g-{topic}-{n}"
        member = await log.groups.join(group, [topic])

        async def is_balanced(group: str = group) -> bool:
            (described,) = log._cluster.client.describe_consumer_groups([group]).values()
            with contextlib.suppress(KafkaException):  # its coordinator is being found
                return (await asyncio.wrap_future(described)).state is ConsumerGroupState.STABLE
            return False

        await eventually(is_balanced)
        await asyncio.wait_for(member.leave(), 10)


@pytest.mark.parametrize("queue_records", [100_000, 10])
async def test_closing_without_brokers_ends_in_time(
    broker: RunningService, opened: OpenKafka, queue_records: int
) -> None:
    """However long a delivery may take: what nobody takes is dropped after seconds, and its appends hear of it."""
    log = await opened(broker, delivery_timeout_s=300, request_timeout_s=30, queue_records=queue_records)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    await asyncio.to_thread(broker.pause)
    try:
        appends = [asyncio.create_task(log.append(numbered(topic, count))) for count in (1, 20, 1)]
        await asyncio.sleep(0)
        started = time.monotonic()
        await asyncio.wait_for(log.close(), 30)
        took_s = time.monotonic() - started
        outcomes = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 5)
    finally:
        await asyncio.to_thread(broker.resume)
    assert took_s < 15
    begun, never_begun = outcomes[:2], outcomes[2]
    for outcome in begun:
        assert isinstance(outcome, OperationFailed)
        assert not outcome.outcome_known
        assert str(outcome).startswith(f"append to topic {topic!r} failed: the log was closed before the brokers")
    assert isinstance(never_begun, OperationFailed if queue_records > 22 else Closed)
