"""Commands from a topic of a real broker, with nodes that are killed and transactions of others; sagas and timers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import msgspec
import pytest
from tests.engine.conftest import EngineNode, EngineSetting
from tests.engine.models import Deposit, Deposited, bank_engine, counter_engine
from tests.engine.node_process import topic_bank_settings
from tests.engine.test_timers import Set, clock_engine

from headrace.app import connect
from headrace.engine import SagaContext, saga
from headrace.engine.places import decode_place, input_key, saga_key
from headrace.log import open_log
from headrace.model import NewRecord, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.processes import ChildProcess, running_function

_AGGREGATES = [f"a{n}" for n in range(10)]
_EACH = 100


@pytest.mark.servers
async def test_a_node_that_is_killed_loses_and_repeats_no_command_of_a_topic(
    kafka: RunningService, tmp_path: Path
) -> None:
    """N39: kill -9 of the owner in the middle of a topic: each command has had its effect once."""
    address, name = f"kafka://{kafka.address}", f"c-{uuid.uuid4().hex[:8]}"
    counter = counter_engine(name, command_topic=f"{name}-commands")
    with ExitStack() as children:
        owner = _started(children, address, name, "n1", tmp_path)
        await asyncio.to_thread(owner.wait_for_line, "^serves", 60)
        settings = topic_bank_settings(name, "caller", str(tmp_path / "caller"))
        async with connect(address, settings=settings) as hr, hr.node():
            aggregates = [hr.engine(counter).aggregate(each) for each in _AGGREGATES]
            headers = (("headrace.command", b"Deposit"),)
            records = [NewRecord(f"{name}-commands", each.encode(), b'{"amount":1}', headers) for each in _AGGREGATES]
            for _ in range(_EACH):
                await hr.log.append(records)

            async def has_begun() -> bool:
                return bool(await aggregates[0].state())

            await eventually(has_begun, every_s=0.01, what="the first commands")
            owner.kill()
            _started(children, address, name, "n2", tmp_path)

            async def is_through() -> bool:
                counts = [await each.state(timeout_s=60) for each in aggregates]
                assert all(count is None or count <= _EACH for count in counts), counts
                return counts == [_EACH] * len(_AGGREGATES)

            await eventually(is_through, within_s=60, every_s=0.1, what="the end of the topic")


def _started(children: ExitStack, address: str, name: str, node: str, folder: Path) -> ChildProcess:
    target = "tests.engine.node_process:serve_topic_bank"
    return children.enter_context(running_function(target, address, name, node, str(folder / node)))


@pytest.fixture
async def on_kafka(kafka: RunningService) -> AsyncIterator[EngineSetting]:
    """Nodes on a real broker."""
    setting = EngineSetting(await open_log(f"kafka://{kafka.address}"))
    yield setting
    await setting.close()


async def until_at(node: EngineNode, key: bytes, offset: int) -> None:
    """Wait until a place has come as far as an offset."""

    async def is_there() -> bool:
        place = decode_place(node.partition._replica.reserved(key))
        return place is not None and place.next_offset >= offset

    await eventually(is_there, every_s=0.02, what="the place")


def in_transaction(kafka: RunningService, topic: str, amount: int, *, is_committed: bool) -> None:
    """Write a command as another program would, in a transaction that is committed or aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address, "transactional.id": f"{topic}-others"})
    producer.init_transactions(30)
    producer.begin_transaction()
    value, headers = msgspec.json.encode({"amount": amount}), {"headrace.command": b"Deposit"}
    producer.produce(topic, value, b"a", partition=0, headers=headers)
    if is_committed:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


@pytest.mark.servers
async def test_transactions_of_other_programs_are_commands_if_they_are_committed(
    kafka: RunningService, on_kafka: EngineSetting
) -> None:
    """N37, N39: an aborted one is none; the markers of both count against no owner, and no command is set aside."""
    name = on_kafka.name()
    bank = bank_engine(name, command_topic=f"{name}-commands")
    topic, key = f"{name}-commands", input_key(f"{name}-commands", 0)
    node = await on_kafka.owner(bank)
    await asyncio.to_thread(in_transaction, kafka, topic, 1, is_committed=True)
    await until_at(node, key, 1)
    await asyncio.to_thread(in_transaction, kafka, topic, 100, is_committed=False)
    node = await on_kafka.fails_over(await on_kafka.fails_over(node, "n2"), "n3")
    await asyncio.to_thread(in_transaction, kafka, topic, 2, is_committed=True)
    await until_at(node, key, 5)
    assert await on_kafka.payloads(bank) == [{"amount": 1}, {"amount": 2}]
    place = decode_place(node.partition._replica.reserved(key))
    assert place is not None
    assert (place.next_offset, place.done, place.attempts) == (5, (), 0)
    at = TopicPartition(bank.state_topic, 0)
    batches = on_kafka.log.read(at, 0, (await on_kafka.log.bounds(at)).end, timeout_s=20)
    written = [each async for batch in batches for each in batch.records if each.key == key]
    # The last owner counts if the record was there before it looked.
    assert {place.attempts for place in map(decode_place, (each.value for each in written)) if place} <= {0, 1}


@pytest.mark.servers
async def test_timers_and_sagas_go_on_with_the_next_owner_on_a_real_broker(on_kafka: EngineSetting) -> None:
    """N39, N40: the owner ends before a timer is due and while a saga has sent; each has its effect once."""
    name = on_kafka.name()
    clock = clock_engine(name)
    bank, mirror = bank_engine(f"{name}-bank"), bank_engine(f"{name}-mirror", command_topic=f"{name}-mirror-commands")

    @saga(of=bank)
    def mirrored(event: Deposited, context: SagaContext) -> None:
        context.send(mirror, context.aggregate, Deposit(event.amount))

    ringing, paying = await on_kafka.owner(clock), await on_kafka.owner(bank, "b1")
    await ringing.send("a", Set("t", after=0.5))
    await paying.send("a", Deposit(1))
    await until_at(paying, saga_key("mirrored"), 1)
    ringing, paying = await asyncio.gather(on_kafka.fails_over(ringing, "n2"), on_kafka.fails_over(paying, "b2"))
    await paying.send("a", Deposit(2))

    async def has_rung() -> bool:
        return len(await on_kafka.payloads(clock)) > 1

    await eventually(has_rung, every_s=0.02, what="the timer")
    await until_at(paying, saga_key("mirrored"), 3)
    sent = await on_kafka.records(f"{name}-mirror-commands")
    assert [msgspec.json.decode(each.value or b"") for each in sent] == [{"amount": 1}, {"amount": 2}]
    assert await on_kafka.payloads(clock) == [{"note": "set"}, {"note": "rang"}]
    record = await ringing.record("a")
    assert record is not None
    assert record.timers == ()
