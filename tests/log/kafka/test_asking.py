"""Requests to the cluster: what is asked again, how often, and what is no answer. The brokers are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, KafkaException

from headrace.config import KafkaLogSettings
from headrace.errors import Closed, Forbidden, TimedOut, TransactionFailed, Unavailable, UnknownTopic, Unreachable
from headrace.log.kafka.client import ClientConfigs, Threads
from headrace.log.kafka.deliveries import DeliveryFailed, ManyRecords, OneRecord
from headrace.log.kafka.faults import Faults
from headrace.log.kafka.log import KafkaLog
from headrace.log.kafka.metadata import Change, Cluster, TopicCache
from headrace.log.kafka.polling import Landed
from headrace.log.kafka.read import RecentEnds, find_bounds, find_offset_at
from headrace.log.kafka.transactions import KafkaTransactional
from headrace.model import NewRecord, TopicPartition

NOBODY = "127.0.0.1:9"
AT = TopicPartition("t", 0)
NO_OFFSET = -1001


@dataclass
class Answer:
    offset: int


class Script:
    """Answers requests in order, the last one for ever; counts them."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        future: Future[Any] = Future()
        if isinstance(answer, int):
            future.set_exception(KafkaException(KafkaError(answer)))
        else:
            future.set_result(answer)
        return {"": future}


class ScriptedCluster(Cluster):
    """A cluster whose admin client answers by a script; its looks at the metadata find nobody and take no time."""

    def __init__(self, threads: Threads, script: Script) -> None:
        configs = ClientConfigs(NOBODY, KafkaLogSettings())
        super().__init__(configs, Faults(f"kafka://{NOBODY}"), threads, request_timeout_s=0.3, attempt_s=0.1)
        self.looks = 0
        self.list_offsets = script

    @property
    def client(self) -> Any:
        return self

    def list_topics(self, **_: object) -> None:
        self.looks += 1
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _: float) -> int:
        return 0


@pytest_asyncio.fixture
async def threads() -> AsyncIterator[Threads]:
    threads = Threads("test", count=1)
    yield threads
    await threads.join()


async def test_an_answer_that_is_no_offset_is_unavailable(threads: Threads) -> None:
    """FM1: while a leader is away the driver answers -1001 without an error; nobody may take that for an offset."""
    cluster = ScriptedCluster(threads, Script(Answer(NO_OFFSET)))
    with pytest.raises(Unavailable):
        await find_bounds(cluster, AT)
    with pytest.raises(Unavailable):
        await find_offset_at(cluster, AT, 1)


async def test_no_record_as_young_is_an_answer(threads: Threads) -> None:
    """FM1: for a moment after the last record the brokers answer -1; for the ends of a partition that is no answer."""
    assert await find_offset_at(ScriptedCluster(threads, Script(Answer(-1))), AT, 1) is None
    with pytest.raises(Unavailable):
        await find_bounds(ScriptedCluster(threads, Script(Answer(-1))), AT)


@pytest.mark.parametrize(
    "trouble",
    [
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    ],
)
async def test_trouble_that_passes_is_asked_again_after_a_look_at_the_metadata(threads: Threads, trouble: int) -> None:
    """FM3: a dead controller, a leader that is new, a broken connection: the next attempt goes where it should."""
    script = Script(trouble, Answer(NO_OFFSET), Answer(7))
    cluster = ScriptedCluster(threads, script)
    assert await find_offset_at(cluster, AT, 1) == 7
    assert (script.asked, cluster.looks) == (3, 2)


async def test_a_refusal_is_not_asked_again(threads: Threads) -> None:
    """FM3: whoever is not allowed now is not allowed a moment later."""
    script = Script(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Forbidden):
        await find_offset_at(ScriptedCluster(threads, script), AT, 1)
    assert script.asked == 1


async def test_waiting_for_a_leader_takes_no_processor(threads: Threads) -> None:
    """FM3: attempts are spread over the time there is, they don't follow one another at once."""
    script = Script(KafkaError.LEADER_NOT_AVAILABLE)
    with pytest.raises(Unavailable):
        await find_offset_at(ScriptedCluster(threads, script), AT, 1)
    assert 2 <= script.asked < 10


async def test_a_change_is_unknown_only_when_an_attempt_was_not_answered(threads: Threads) -> None:
    """FM3: a controller that says it is none has done nothing; a connection that broke may have carried the change."""
    for trouble, is_known in ((KafkaError.NOT_CONTROLLER, True), (KafkaError._TRANSPORT, False)):
        cluster, change = ScriptedCluster(threads, Script(trouble)), Change()
        with pytest.raises(Unavailable) as failed:
            await cluster.ask("create topic 't'", cluster.list_offsets, change=change)
        assert failed.value.outcome_known is is_known
        assert change.may_be_made is not is_known


class MadeCluster(ScriptedCluster):
    """One that has just made the topic, with what its controller says when it is asked to make it once more."""

    def __init__(self, threads: Threads, script: Script, controller: Script) -> None:
        super().__init__(threads, script)
        self.create_topics = controller
        self.expect(AT.topic)


async def test_a_broker_that_has_not_heard_of_a_new_topic_is_asked_again(threads: Threads) -> None:
    """FM3: brokers learn of a topic one after the other; while the controller has it, it is there."""
    script = Script(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_OR_PART, Answer(7))
    cluster = MadeCluster(threads, script, Script(KafkaError._TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS))
    assert await find_offset_at(cluster, AT, 1) == 7


async def test_a_topic_that_brokers_never_hear_of_is_no_unknown_one(threads: Threads) -> None:
    """FM3: whoever made it must not be told to make it; the request was not answered in time."""
    script = Script(KafkaError.UNKNOWN_TOPIC_OR_PART)
    cluster, change = MadeCluster(threads, script, Script(KafkaError.TOPIC_ALREADY_EXISTS)), Change()
    with pytest.raises(TimedOut) as failed:
        await cluster.ask("configure topic 't'", script, topic=AT.topic, change=change)
    assert failed.value.outcome_known
    assert not change.may_be_made


async def test_a_topic_that_is_gone_is_unknown_at_once(threads: Threads) -> None:
    """FM3: nobody waits for a topic that another process has deleted, nor for one that was never made."""
    gone, unknown = Script(KafkaError.UNKNOWN_TOPIC_OR_PART), Script(KafkaError.UNKNOWN_TOPIC_OR_PART)
    controller = Script(None)
    made, other = MadeCluster(threads, gone, controller), ScriptedCluster(threads, unknown)
    for cluster in (made, made, other):
        with pytest.raises(UnknownTopic):
            await find_offset_at(cluster, AT, 1)
    assert (gone.asked, controller.asked, unknown.asked) == (2, 1, 1)


@dataclass
class Message:
    """A delivery report without an offset: the broker had got the record before, and forgot where it is."""

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return NO_OFFSET

    def timestamp(self) -> tuple[int, int]:
        return (1, 1)


async def test_a_delivery_without_an_offset_is_no_position() -> None:
    """FM1: the record is in the log, but its place is not known: the append fails, and nobody gets place -1001."""
    record, loop = NewRecord("t", b"k", b"v"), asyncio.get_running_loop()
    one = OneRecord(record, 0, loop.create_future(), Landed())
    one(None, Message())
    many = ManyRecords([(record, 0)], loop.create_future(), Landed())
    many._deliver(0, None, Message())
    for append in (one, many):
        append.settle(False)
        with pytest.raises(DeliveryFailed):
            await append.future


async def test_what_a_close_overtakes_is_told_so(threads: Threads) -> None:
    """A request that is under way, or begins, while the log is closed raises Closed, not what a thread pool says."""
    with pytest.raises(Unreachable):
        await KafkaLog.open(f"kafka://{NOBODY}", KafkaLogSettings(request_timeout_s=0.1))
    log = KafkaLog(f"kafka://{NOBODY}", KafkaLogSettings(request_timeout_s=0.5))
    under_way = asyncio.create_task(find_bounds(log._cluster, AT))
    await asyncio.sleep(0)
    await log.close()
    with pytest.raises((Closed, Unavailable)):
        await under_way
    for late in (find_bounds(log._cluster, AT), log.bounds(AT), log._cluster.metadata()):
        with pytest.raises(Closed):
            await late


class FailingCommit:
    """A producer that fails for good while it commits, in a way that the driver has no exception for."""

    def begin_transaction(self) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0

    def commit_transaction(self, _: float) -> None:
        raise SystemError("returned NULL without setting an exception")

    def purge(self) -> None:
        pass


async def test_a_driver_that_fails_while_it_commits_leaves_the_outcome_unknown(threads: Threads) -> None:
    """FL1: whatever the driver raises once the commit may have been sent is our error, and spends the producer."""
    cluster = ScriptedCluster(threads, Script(Answer(0)))
    topic_cache = TopicCache(cluster.describe, max_age_s=60)
    producer = KafkaTransactional(cluster, topic_cache, RecentEnds(cluster), "id", 60)
    producer._producer = FailingCommit()
    await producer.begin()
    with pytest.raises(TransactionFailed) as failed:
        await producer.commit()
    assert not failed.value.outcome_known
    with pytest.raises(TransactionFailed, match="take the id again"):
        await producer.begin()
    await producer.close()
