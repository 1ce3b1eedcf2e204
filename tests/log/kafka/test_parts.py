"""The parts of the Kafka backend that decide without a broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.config import KafkaLogSettings
from headrace.errors import HeadraceError, UnknownPartition, UnknownTopic
from headrace.log.kafka.admin import copies_for, durability_of
from headrace.log.kafka.append import Placer, batch_bytes_of, place
from headrace.log.kafka.client import ClientConfigs, ConnectionBreaks, Threads, servers_of
from headrace.log.kafka.metadata import TopicCache, from_kafka, to_kafka
from headrace.log.kafka.open_transaction import Attempt, commit_until, deliver_all, produce_some
from headrace.log.kafka.polling import Landed, Poller
from headrace.model import Cleanup, NewRecord, Topic, TopicConfig, TopicPartition


def _topic(name: str = "t", *, partitions: int = 2, limit: int = 1_048_588) -> Topic:
    return Topic(name=name, topic_id="id", partitions=partitions, config=TopicConfig(max_record_bytes=limit))


@pytest.mark.parametrize("cleanup", list(Cleanup))
def test_a_topic_configuration_survives_the_way_to_kafka_and_back(cleanup: Cleanup) -> None:
    """All settings, those of Kafka's own names included; what the brokers add by default is not `extra`."""
    config = TopicConfig(cleanup=cleanup, retention_ms=None, extra={"min.insync.replicas": "2"})
    own = to_kafka(config)
    assert own["retention.ms"] == "-1"
    assert from_kafka({**own, "segment.bytes": "1"}, own) == config


def test_settings_of_other_peoples_topics_are_understood() -> None:
    """The order of policies, no policy, no retention."""
    base = to_kafka(TopicConfig())
    assert from_kafka({**base, "cleanup.policy": "delete,compact"}, {}).cleanup is Cleanup.COMPACT_DELETE
    assert from_kafka({**base, "cleanup.policy": ""}, {}).retention_ms is None
    assert from_kafka({**base, "retention.ms": "0"}, {}).retention_ms == 1


@pytest.mark.parametrize(
    ("limit", "batch"), [(1_048_588, 1_000_000), (9_000_000, 1_000_000), (999_999, 524_288), (5_000, 4_096), (1, 1)]
)
def test_batches_stay_below_the_limit_of_their_topic(limit: int, batch: int) -> None:
    """Rounded down to a power of two, so that topics share producers."""
    assert batch_bytes_of(_topic(limit=limit)) == batch <= limit


@hypothesis.given(
    key=st.none() | st.binary(max_size=40) | st.text(max_size=2),
    value=st.none() | st.binary(max_size=200) | st.text(max_size=2),
    headers=st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=3),
    partition=st.none() | st.integers(-1, 3),
    timestamp_ms=st.none() | st.integers(-1, 1) | st.just(1_000_000_000_000) | st.just(1 << 60),
    limit=st.integers(96, 400),
    cleanup=st.sampled_from(Cleanup),
)
def test_the_short_way_places_as_the_long_one(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int | None,
    timestamp_ms: int | None,
    limit: int,
    cleanup: Cleanup,
) -> None:
    """Whatever a record is: the same partition, or the same refusal."""
    topic = Topic(name="t", topic_id="id", partitions=3, config=TopicConfig(max_record_bytes=limit, cleanup=cleanup))
    record = NewRecord("t", key, value, tuple(headers), partition, timestamp_ms)
    placer = Placer(topic)

    def outcome(call: Callable[[], int]) -> int | str:
        try:
            return call()
        except HeadraceError as refusal:
            return f"{type(refusal).__name__}: {refusal}"

    asked = outcome(lambda: place(record, topic))
    assert outcome(lambda: placer.place(record)) == asked
    assert outcome(lambda: placer.place(record, latest_ms=placer.latest_ms())) == asked


def test_settings_of_the_application_reach_every_client_but_do_not_weaken_it() -> None:
    """Security goes everywhere; acks and isolation are ours."""
    settings = KafkaLogSettings(
        client={"security.protocol": "SASL_SSL", "acks": "1", "isolation.level": "read_uncommitted"}
    )
    configs = ClientConfigs("a:1", settings)
    made = [
        configs.admin(),
        configs.producer(batch_bytes=10),
        configs.transactional("id", timeout_s=5, batch_bytes=10),
        configs.reader(follow=True),
        configs.member("g", "m", session_timeout_s=6),
    ]
    assert all(config["security.protocol"] == "SASL_SSL" for config in made)
    assert made[1]["acks"] == made[2]["acks"] == "all"
    assert made[3]["isolation.level"] == made[4]["isolation.level"] == "read_committed"


def test_settings_reach_the_driver_in_its_own_words() -> None:
    """[log.kafka] becomes librdkafka's properties; seconds become milliseconds."""
    section = KafkaLogSettings(request_timeout_s=7, delivery_timeout_s=9, linger_ms=2, queue_records=11)
    config = ClientConfigs("a:1", section).producer(batch_bytes=10)
    assert (config["socket.timeout.ms"], config["message.timeout.ms"]) == (3_000, 9_000)
    assert (config["linger.ms"], config["queue.buffering.max.messages"]) == (2, 11)


def test_a_silent_broker_is_given_up_before_what_waits_for_it() -> None:
    """FM4: every client closes a silent connection early enough to ask another broker within its time."""
    configs = ClientConfigs("a:1", KafkaLogSettings())
    made = [configs.admin(), configs.reader(follow=True), configs.member("g", "m", session_timeout_s=45)]
    assert all(config["socket.timeout.ms"] == 5_000 for config in made)
    for config in (configs.producer(batch_bytes=10), configs.transactional("id", timeout_s=12, batch_bytes=10)):
        assert config["socket.timeout.ms"] * 3 <= config["message.timeout.ms"]


@pytest.mark.parametrize(
    ("settings", "brokers", "copies", "in_sync"),
    [
        ({}, 1, 1, None),
        ({}, 2, 2, "1"),
        ({}, 3, 3, "2"),
        ({}, 9, 3, "2"),
        ({"replication_factor": 5}, 9, 5, "4"),
        ({"replication_factor": 1}, 3, 1, None),
        ({"min_in_sync_replicas": 1}, 3, 3, "1"),
    ],
)
def test_a_topic_has_as_many_copies_as_there_are_brokers_up_to_three(
    settings: dict[str, int], brokers: int, copies: int, in_sync: str | None
) -> None:
    """FM2: and an append waits for all but one of them; what is set wins."""
    section = KafkaLogSettings.model_validate(settings)
    assert copies_for(section, brokers) == copies
    assert durability_of(section, copies).get("min.insync.replicas") == in_sync


def test_an_address_names_its_servers() -> None:
    """One or many, names or numbers."""
    assert servers_of("kafka://a:1") == "a:1"
    assert servers_of("kafka://a.b-c:1,[::1]:2/") == "a.b-c:1,[::1]:2"


async def test_a_topic_is_asked_for_once_at_a_time() -> None:
    """Askers share a request; one that goes away does not take it from the others; answers are kept for a while."""
    asked: list[str] = []
    answer = asyncio.Event()

    async def describe(name: str) -> Topic:
        asked.append(name)
        await answer.wait()
        return _topic(name)

    topic_cache = TopicCache(describe, max_age_s=60)
    askers = [asyncio.create_task(topic_cache.get("t")) for _ in range(5)]
    await asyncio.sleep(0)
    askers[0].cancel()
    answer.set()
    assert [topic.name for topic in await asyncio.gather(*askers[1:])] == ["t"] * 4
    assert (await topic_cache.get("t")).name == "t"
    assert asked == ["t"]
    topic_cache.forget("t")
    await topic_cache.get("t")
    assert asked == ["t", "t"]


async def test_a_partition_that_is_not_known_is_asked_for_again() -> None:
    """A topic that has grown since it was remembered is not refused; one that has not, is."""
    partitions = 2

    async def describe(name: str) -> Topic:
        if name != "t":
            raise UnknownTopic(name)
        return _topic(name, partitions=partitions)

    topic_cache = TopicCache(describe, max_age_s=60)
    await topic_cache.check(TopicPartition("t", 1))
    partitions = 4
    await topic_cache.check(TopicPartition("t", 3))
    for partition in (4, -1):
        with pytest.raises(UnknownPartition):
            await topic_cache.check(TopicPartition("t", partition))
    with pytest.raises(UnknownTopic):
        await topic_cache.get("u")


async def test_threads_run_calls_in_order_and_end() -> None:
    """One thread runs calls one after the other, also those whose callers went away; joined, it is gone."""
    before = threading.active_count()
    threads = Threads("test", count=1)
    ran: list[int] = []
    calls = [asyncio.create_task(threads.run(ran.append, n)) for n in range(20)]
    await asyncio.sleep(0)
    calls[3].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await threads.join()
    assert ran == list(range(20))
    assert threading.active_count() == before


class _SmallQueue:
    """Takes records like a producer whose queue is full now and then."""

    def __init__(self, *, full_at: set[int]) -> None:
        self._full_at = full_at
        self._calls = 0
        self.taken: list[bytes] = []

    def produce(self, topic: str, value: bytes, *_: object) -> None:
        self._calls += 1
        if self._calls in self._full_at:
            raise BufferError
        self.taken.append(value)


@pytest.mark.parametrize(("full_at", "count"), [(set(), 5), ({1}, 0), ({4}, 3)])
def test_records_go_into_a_transaction_until_the_queue_is_full(full_at: set[int], count: int) -> None:
    """The first one that has to wait is not counted, and has no place among the positions; it is added next."""
    attempt, queue = Attempt(), _SmallQueue(full_at=full_at)
    attempt.know({"t": _topic("t")})
    records = [(NewRecord("t", b"k", b"%d" % n), 0) for n in range(5)]
    assert produce_some(queue, attempt, records, 0) == count
    assert queue.taken == [b"%d" % n for n in range(count)]
    assert (len(attempt.positions), attempt.records["t"]) == (count, count)


def test_a_topic_of_small_batches_is_flushed_in_between() -> None:
    """Records go in until a batch would be above the topic's limit; the next one waits for a flush."""
    attempt, queue = Attempt(), _SmallQueue(full_at=set())
    attempt.know({"t": _topic("t", limit=1000)})
    records = [(NewRecord("t", b"k", bytes(size)), 0) for size in (100, 200, 600, 10)]
    assert produce_some(queue, attempt, records, 0) == 2
    assert [len(value) for value in queue.taken] == [100, 200]


class _FailingProducer:
    """Polls like a producer that fails for good in its first poll, and reports what was on its way after that."""

    def __init__(self, landed: Landed, fatal: Any) -> None:
        self._landed = landed
        self._fatal = fatal
        self._polls = 0

    def poll(self, wait_s: float) -> int:
        self._polls += 1
        if self._polls == 1:
            raise self._fatal
        if self._polls == 2:
            self._landed.append("an append")
            return 1
        time.sleep(wait_s)
        return 0


# The driver loses the exception, or raises the error itself, which is none and passes `except BaseException`.
FATALS = [SystemError("returned NULL without setting an exception"), KafkaError(KafkaError._FENCED, "a newer instance")]


@pytest.mark.parametrize("fatal_error", FATALS)
@pytest.mark.parametrize("in_flight", [1, 1000])
async def test_a_producer_that_fails_for_good_is_polled_on(in_flight: int, fatal_error: Any) -> None:
    """FL1: the driver raises a fatal error from a poll; appends that wait must hear of it, and the next ones too."""
    landed, fatal = Landed(), list[bool]()
    settled: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()

    def settle(found: list[object]) -> None:
        if found and not settled.done():
            settled.set_result(found)

    poller = Poller(
        _FailingProducer(landed, fatal_error),
        landed,
        settle,
        waits_for_room=lambda: False,
        on_fatal=lambda: fatal.append(True),
    )
    poller.expect(in_flight)
    assert await asyncio.wait_for(settled, 5) == ["an append"]
    assert fatal == [True]
    poller.stop()
    await asyncio.to_thread(poller.join)


async def test_a_call_in_which_the_driver_raises_what_is_no_exception_comes_to_an_end() -> None:
    """A KafkaError that the driver raises itself ended the thread of the call, and its caller waited forever."""
    threads = Threads("bare", count=1)

    def fails() -> None:
        raise KafkaError(KafkaError._FENCED, "a newer instance")  # type: ignore[misc]

    async with asyncio.timeout(5):
        with pytest.raises(KafkaException) as raised:
            await threads.run(fails)
        assert raised.value.args[0].code() == KafkaError._FENCED
        assert await threads.run(lambda: "the thread goes on") == "the thread goes on"
    await threads.join()


def test_a_flush_that_is_cut_off_by_a_fatal_error_goes_on() -> None:
    """C9: an owner that was deposed while it was frozen finds out; its commit never ended, and it stood by no more."""

    class Fenced:
        def __init__(self) -> None:
            self.flushes = 0

        def flush(self, timeout_s: float) -> int:
            self.flushes += 1
            if self.flushes == 1:
                raise KafkaError(KafkaError._FENCED, "a newer instance")  # type: ignore[misc]
            return 0

    assert deliver_all(Fenced(), time.monotonic() + 5) == 0


class _Commits:
    """Refuses the first commit with an error that may be retried."""

    def __init__(self) -> None:
        self.calls = 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.calls += 1
        if self.calls == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "retry call to resume", retriable=True))

    def poll(self, wait_s: float) -> int:
        return 0


def test_a_commit_is_resumed_only_with_time_for_it() -> None:
    """N12: with a millisecond left the driver forgot that it was committing, and its late answer ended the process."""
    late, early = _Commits(), _Commits()
    with pytest.raises(KafkaException):
        commit_until(late, time.monotonic() + 0.4)
    commit_until(early, time.monotonic() + 60)
    assert (late.calls, early.calls) == (1, 2)


@pytest.mark.parametrize(
    ("facility", "text", "is_break"),
    [
        ("FAIL", "TxnCoordinator: Disconnected: connection reset by peer (after 823ms in state UP)", True),
        ("FAIL", "TxnCoordinator: 1 request(s) timed out: disconnect (after 5004ms in state REAUTH)", True),
        ("REQTMOUT", "b:1/1: Timed out EndTxnRequest in flight (after 1004ms, timeout #0)", True),
        ("FAIL", "localhost:1: Connect to ipv6#[::1]:1 failed: Connection refused (after 0ms in state CONNECT)", False),
        ("GETPID", "Failed to acquire transactional PID: Coordinator load in progress: retrying", False),
    ],
)
def test_only_connections_that_were_up_can_break(facility: str, text: str, is_break: bool) -> None:
    """FL1: a refused connect, as of localhost's other address, has carried no commit, and spends no producer."""
    breaks = ConnectionBreaks()
    breaks.log(logging.INFO, "%s [%s] %s", facility, "rdkafka#producer-1", text)
    assert breaks.since(time.monotonic()) is is_break
    assert not breaks.since(time.monotonic() + 60)
