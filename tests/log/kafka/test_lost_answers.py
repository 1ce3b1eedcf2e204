"""Commits whose answers are lost, late or refused: what may be said about them, and who may go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from functools import partial

import pytest
from tests.log.kafka.conftest import OpenKafka

from headrace.errors import Fenced, TimedOut, TransactionFailed, Unavailable
from headrace.log import TransactionalProducer
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, read_all, values
from headrace.testing.proxy import TcpProxy

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def restored(proxy: TcpProxy) -> Iterator[None]:
    """Logs are closed after the way to the broker is open again."""
    yield
    proxy.restore()


async def _topic(direct: KafkaLog, *, partitions: int = 1) -> str:
    """Make a topic, and have the broker load what it knows of transactional ids: that can take seconds."""
    topic = await new_topic(direct, partitions=partitions)
    await (await direct.transactional(f"id-{topic}")).close()
    return topic


async def _delivered(log: KafkaLog, topic: str, count: int) -> None:
    """Wait until the broker holds so many records, committed or not, and the answers have had their time."""

    async def is_there() -> bool:
        return (await log.bounds(TopicPartition(topic, 0))).high_watermark >= count

    await eventually(is_there)


async def _open_transaction(log: KafkaLog, direct: KafkaLog, topic: str) -> TransactionalProducer:
    """Begin, append two records and wait for them to land: what is left of the commit is its own request."""
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 2))
    await _delivered(direct, topic, 2)
    await eventually(partial(_has_landed, producer))
    return producer


async def _taken(log: KafkaLog, topic: str) -> TransactionalProducer:
    """Take the id, as often as a short time-out and what an earlier owner left open need."""
    taken: list[TransactionalProducer] = []

    async def is_taken() -> bool:
        with contextlib.suppress(Unavailable):
            taken.append(await log.transactional(f"id-{topic}"))
        return bool(taken)

    await eventually(is_taken)
    return taken[0]


async def _has_landed(producer: TransactionalProducer) -> bool:
    return await asyncio.to_thread(producer._producer.flush, 1) == 0  # type: ignore[attr-defined]


async def _is_seen(log: KafkaLog, topic: str) -> bool:
    return values(await read_all(log, topic)) == [b"0", b"1"]


async def test_a_commit_whose_answer_is_lost_is_not_called_failed(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """FL1: the broker commits and its answer never arrives: the error says "unknown", and the producer is spent."""
    log, direct = await opened(proxy, request_timeout_s=2), await opened(broker)
    topic = await _topic(direct)
    producer = await _open_transaction(log, direct, topic)
    proxy.hold_answers()
    with pytest.raises(TransactionFailed, match="may or may not have been committed") as failed:
        await producer.commit()
    assert not failed.value.outcome_known
    assert await _is_seen(direct, topic)
    proxy.restore()
    for call in (producer.begin, producer.abort, producer.commit):
        with pytest.raises(TransactionFailed, match="take the id again") as refused:
            await call()
        assert refused.value.outcome_known is (call != producer.commit)
    again = await _taken(log, topic)
    await again.begin()
    await again.append(numbered(topic, 1, first=2))
    await again.commit()
    assert values(await read_all(log, topic)) == [b"0", b"1", b"2"]


async def test_a_commit_of_a_group_whose_answer_is_lost_may_have_been_done(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """The coordinator stores the offset and its answer never arrives: the error says so, and a second try is safe."""
    log, direct = await opened(proxy, request_timeout_s=2), await opened(broker)
    topic = await _topic(direct)
    at, group = TopicPartition(topic, 0), f"g-{topic}"
    await direct.append(numbered(topic, 3))
    member = await log.groups.join(group, [topic])
    found: list[bytes | None] = []

    async def has_all() -> bool:
        found.extend(values(await member.poll(timeout_s=0.2)))
        return len(found) == 3

    await eventually(has_all)
    proxy.hold_answers()
    for offset in (2, 3):  # the second waits for the first, and is given up
        with pytest.raises(TimedOut, match=r"commit in group .* it may or may not have happened") as failed:
            await member.commit({at: offset})
        assert not failed.value.outcome_known
    assert await direct.groups.committed(group, [at]) == {at: 2}
    proxy.restore()

    async def is_committed() -> bool:
        try:
            await member.commit({at: 3})
        except Unavailable:
            return False
        return True

    await eventually(is_committed)
    assert await direct.groups.committed(group, [at]) == {at: 3}


async def test_a_commit_that_is_fenced_may_have_been_done(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """FL1: the first attempt was done and its answer lost, the second one is fenced: nothing is known from that."""
    log, direct = await opened(proxy, request_timeout_s=20), await opened(broker)
    topic = await _topic(direct)
    producer = await _open_transaction(log, direct, topic)
    proxy.hold_answers()
    commit = asyncio.create_task(producer.commit())
    await eventually(lambda: _is_seen(direct, topic))
    await direct.transactional(producer.transactional_id)
    proxy.cut()
    proxy.restore()
    with pytest.raises(Fenced, match="may or may not have been committed") as failed:
        await commit
    assert not failed.value.outcome_known
    assert await _is_seen(direct, topic)


async def test_a_producer_whose_connection_broke_during_a_commit_is_not_used_again(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """FL1: the driver sent the commit again; the first one may arrive late, and would end half of the next one."""
    log, direct = await opened(proxy, request_timeout_s=20), await opened(broker)
    topic = await _topic(direct)
    producer = await _open_transaction(log, direct, topic)
    proxy.hold_answers()
    commit = asyncio.create_task(producer.commit())
    await eventually(lambda: _is_seen(direct, topic))
    proxy.cut()
    proxy.restore()
    assert [position.offset for position in await commit] == [0, 1]
    with pytest.raises(TransactionFailed, match=r"a connection broke .*; take the id again") as refused:
        await producer.begin()
    assert refused.value.outcome_known


async def test_records_that_never_arrived_were_not_committed(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """FL1: while records are on their way the commit is not sent, so the outcome of running out of time is known."""
    log, direct = await opened(proxy, request_timeout_s=1), await opened(broker)
    topic = await _topic(direct)
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 1))
    await eventually(partial(_has_landed, producer))  # else nothing was sent, and there is nothing to abort
    proxy.drop()
    await producer.append(numbered(topic, 1))
    with pytest.raises(TransactionFailed, match="nothing of it was committed") as failed:
        await producer.commit()
    assert failed.value.outcome_known
    proxy.restore()
    with pytest.raises(TransactionFailed, match="take the id again"):
        await producer.begin()
    await (await direct.transactional(producer.transactional_id)).close()
    assert await read_all(direct, topic) == []


async def test_what_is_said_of_commits_under_random_faults_is_true(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka
) -> None:
    """FL1: whatever is cut and held when, a known outcome is true and no transaction is seen by half."""
    log, direct = await opened(proxy, request_timeout_s=1.5), await opened(broker)
    topic = await _topic(direct, partitions=2)
    chance, said = random.Random(1), dict[bytes, bool | None]()
    producer: TransactionalProducer | None = None
    faults = ["fair", *chance.sample(["hold", "rival", "cut", "drop"], 4)]
    for n, fault in enumerate(faults):
        value = b"%d" % n
        producer = producer or await _taken(log, topic)
        await producer.begin()
        await producer.append([NewRecord(topic, b"k", value, partition=at) for at in (0, 1)])
        if fault != "drop":
            await eventually(partial(_has_landed, producer))
        change = asyncio.create_task(_fault(proxy, fault, direct, f"id-{topic}"))
        await asyncio.sleep(0)
        said[value] = await _outcome(producer)
        await change
        proxy.restore()
        producer = None if fault != "fair" else producer
    await (await _taken(log, topic)).close()
    seen = [values(await read_all(direct, topic, partition)) for partition in (0, 1)]
    assert seen[0] == seen[1]
    assert seen[0] == sorted(set(seen[0]))
    assert said[b"0"]
    assert {value for value, outcome in said.items() if outcome} <= set(seen[0])
    assert not {value for value, outcome in said.items() if outcome is False} & set(seen[0])


async def _fault(proxy: TcpProxy, kind: str, rival: KafkaLog, transactional_id: str) -> None:
    if kind == "fair":
        return
    if kind == "drop":
        proxy.drop()
        return
    proxy.hold_answers()
    if kind == "hold":
        return
    await asyncio.sleep(0.2)  # for the commit to get there, or not: what is said must be true either way
    if kind == "rival":
        await rival.transactional(transactional_id)
    proxy.cut()
    proxy.restore()


async def _outcome(producer: TransactionalProducer) -> bool | None:
    """Return whether it was committed, None if that is unknown."""
    try:
        await producer.commit()
    except (Fenced, TransactionFailed) as error:
        return False if getattr(error, "outcome_known", True) else None
    return True


async def test_an_id_is_taken_once_from_brokers_slower_than_an_attempt(
    broker: RunningService, opened: OpenKafka, proxy: TcpProxy
) -> None:
    """Attempts that are cut short don't ask twice: what a second request took would be fenced by the first one."""
    log = await opened(proxy)
    topic = await _topic(await opened(broker))
    proxy.delay(0.2)
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 2))
    await producer.commit()
    proxy.restore()
    assert values(await read_all(log, topic)) == [b"0", b"1"]


@pytest.mark.parametrize("is_cut", [False, True])
async def test_an_id_that_is_not_given_in_time_is_an_error_with_its_name(
    opened: OpenKafka, proxy: TcpProxy, *, is_cut: bool
) -> None:
    """Brokers that fall silent end the taking at the request's time-out, however many attempts that was.

    Also when its connection broke by then: what the last attempt met does not name the id.
    """
    log = await opened(proxy)
    log._cluster.request_timeout_s = 1.5  # from here on: opening a log takes as long as it takes
    known = proxy.connections
    proxy.hold_answers()
    taking = asyncio.create_task(log.transactional("x"))

    async def is_connected() -> bool:
        return proxy.connections > known

    await eventually(is_connected, every_s=0.01)
    if is_cut:
        proxy.cut()
    with pytest.raises(TimedOut, match="take over transactional id 'x'"):
        await taking
