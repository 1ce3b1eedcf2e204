"""Wrong arguments: every public call of a log refuses them with a typed error, before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headrace.errors import BadArgument, Refused
from headrace.log import Log, Member, TransactionalProducer
from headrace.log.checks import MAX_NAME_BYTES
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.testing.conformance.log_setting import LogSetting, new_topic, read_all, values

__all__ = ["WRONG_RECORDS", "Arguments", "Calls", "wrong_arguments"]

_WRONG: Mapping[str, tuple[object, ...]] = {
    "text": (None, b"bytes", 7, True, "", "nul\0", "surrogate \ud800", "x" * (MAX_NAME_BYTES + 1), ["list"]),
    "topic": (None, b"bytes", 7, "", "no spaces", "nul\0", "\ud800", "x" * 250, ".."),
    "topics": (None, "abc", b"abc", 7, [], [7], [None], ["no spaces"], {"a": 1}, (topic for topic in "abc")),
    "place": (None, "t[0]", ("t", 0), 7, TopicPartition("t", True), TopicPartition("t", 2**70), TopicPartition("", 0)),
    "partitions": (None, 7, "t[0]", [("t", 0)], [None], TopicPartition("t", 0)),
    "offset": (None, "0", b"0", 1.0, True, -1, 2**63, float("nan")),
    "end": ("0", 1.0, True, -1, 2**63),
    "count": (None, "1", 1.5, True, 0, -1, 10**9),
    "moment": (None, "0", 1.5, True, 2**63, -(2**63)),
    "seconds": (None, "1", True, float("nan"), float("inf"), -0.5, 1e12),
    "above 0": (None, "1", True, float("nan"), float("inf"), -0.5, 0, 1e12),
    "flag": (None, "yes", 1),
    "config": (
        None,
        {"cleanup": "delete"},
        TopicConfig(cleanup="shred"),  # type: ignore[arg-type]
        TopicConfig(retention_ms=1.5),  # type: ignore[arg-type]
        TopicConfig(retention_ms=2**70),
        TopicConfig(max_record_bytes=True),
        TopicConfig(max_record_bytes=2**40),
        TopicConfig(keep_until_released="no"),  # type: ignore[arg-type]
        TopicConfig(extra={"a": 1}),  # type: ignore[dict-item]
        TopicConfig(extra={"a": "\ud800"}),
        TopicConfig(extra=None),  # type: ignore[arg-type]
    ),
    "listener": (7, "listener", object()),
    "start": (None, "middle", 0, ["earliest"]),
    "offsets": (
        None,
        7,
        [("t", 0)],
        {("t", 0): 1},
        {TopicPartition("t", 0): "1"},
        {TopicPartition("t", 0): True},
        {TopicPartition("t", 0): 1.0},
        {TopicPartition("t", 0): -1},
        {TopicPartition("t", 0): 2**63},
    ),
    "member": (None, "member", object()),
    "records": (None, 7, "abc", b"abc", {"a": 1}, [None], ["record"], iter([])),
}

# Wrong values by field of a record. The topic is right, so that only the field can be the reason.
WRONG_RECORDS: Mapping[str, tuple[object, ...]] = {
    "topic": _WRONG["topic"],
    "key": ("text", 7, bytearray(b"k"), memoryview(b"k"), ["k"], True),
    "value": ("text", 7, bytearray(b"v"), memoryview(b"v"), {"v": 1}, 1.5),
    "headers": (
        None,
        "ab",
        {"ab": b"v"},
        7,
        (("name", "text"),),
        (("name", 7),),
        (("name", bytearray(b"v")),),
        ((b"name", b"v"),),
        ((None, b"v"),),
        (("nul\0", b"v"),),
        (("\ud800", b"v"),),
        (("name",),),
        (("name", b"v", b"more"),),
        ("ab",),
        (None,),
    ),
    "partition": ("0", 0.0, True, 2**70, -(2**70)),
    "timestamp_ms": ("1", 1.5, True, 0, -1, 2**70),
}

Call = Callable[[object], Awaitable[object]]


class Calls:
    """Every public call of a log, by its wrong argument; all other arguments are right."""

    def __init__(self, log: Log, topic: str, member: Member, producer: TransactionalProducer) -> None:
        self.log = log
        self.topic = topic
        self.at = TopicPartition(topic, 0)
        self.member = member
        self.producer = producer

    def all(self) -> dict[str, tuple[str, Call]]:
        """Return the calls by name, with the kind of argument each one takes."""
        return {**self._of_the_log(), **self._of_groups(), **self._of_transactions(), **self._of_topics()}

    def record(self, field: str, wrong: object) -> NewRecord:
        """Return a record with one wrong field."""
        fields: dict[str, Any] = {"topic": self.topic, "key": b"k", "value": b"wrong", field: wrong}
        return NewRecord(**fields)

    def _of_the_log(self) -> dict[str, tuple[str, Call]]:
        log, at = self.log, self.at
        return {
            "append": ("records", lambda wrong: log.append(_any(wrong))),
            "read at": ("place", lambda wrong: _drain(log, _any(wrong), 0)),
            "read start": ("offset", lambda wrong: _drain(log, at, _any(wrong))),
            "read end": ("end", lambda wrong: _drain(log, at, 0, _any(wrong))),
            "read max_records": ("count", lambda wrong: _drain(log, at, 0, 0, max_records=wrong)),
            "read timeout_s": ("seconds", lambda wrong: _drain(log, at, 0, 0, timeout_s=wrong)),
            "read headers_only": ("flag", lambda wrong: _drain(log, at, 0, 0, headers_only=wrong)),
            "bounds": ("place", lambda wrong: log.bounds(_any(wrong))),
            "offset_at at": ("place", lambda wrong: log.offset_at(_any(wrong), timestamp_ms=1)),
            "offset_at timestamp_ms": ("moment", lambda wrong: log.offset_at(at, timestamp_ms=_any(wrong))),
            "transactional id": ("text", lambda wrong: log.transactional(_any(wrong))),
            "transactional timeout_s": ("above 0", lambda wrong: log.transactional("id", timeout_s=_any(wrong))),
            "truncate at": ("place", lambda wrong: log.retention.truncate(_any(wrong), before=0)),
            "truncate before": ("offset", lambda wrong: log.retention.truncate(at, before=_any(wrong))),
            "release at": ("place", lambda wrong: log.retention.release(_any(wrong), below=0)),
            "release below": ("offset", lambda wrong: log.retention.release(at, below=_any(wrong))),
        }

    def _of_groups(self) -> dict[str, tuple[str, Call]]:
        groups, topics, member = self.log.groups, [self.topic], self.member
        return {
            "join group": ("text", lambda wrong: groups.join(_any(wrong), topics)),
            "join topics": ("topics", lambda wrong: groups.join("g", _any(wrong))),
            "join listener": ("listener", lambda wrong: groups.join("g", topics, listener=_any(wrong))),
            "join start_at": ("start", lambda wrong: groups.join("g", topics, start_at=_any(wrong))),
            "join session": ("above 0", lambda wrong: groups.join("g", topics, session_timeout_s=_any(wrong))),
            "committed group": ("text", lambda wrong: groups.committed(_any(wrong), [self.at])),
            "committed partitions": ("partitions", lambda wrong: groups.committed("g", _any(wrong))),
            "poll max_records": ("count", lambda wrong: member.poll(max_records=_any(wrong))),
            "poll timeout_s": ("seconds", lambda wrong: member.poll(timeout_s=_any(wrong))),
            "member commit": ("offsets", lambda wrong: member.commit(_any(wrong))),
            "pause": ("partitions", lambda wrong: member.pause(_any(wrong), paused=True)),
        }

    def _of_transactions(self) -> dict[str, tuple[str, Call]]:
        producer, member = self.producer, self.member
        return {
            "transaction append": ("records", lambda wrong: producer.append(_any(wrong))),
            "transaction member": ("member", lambda wrong: producer.commit_offsets(_any(wrong), {self.at: 0})),
            "transaction offsets": ("offsets", lambda wrong: producer.commit_offsets(member, _any(wrong))),
        }

    def _of_topics(self) -> dict[str, tuple[str, Call]]:
        admin, topic, config = self.log.admin, self.topic, TopicConfig()
        return {
            "create topic": ("topic", lambda wrong: admin.create(_any(wrong), partitions=1, config=config)),
            "create partitions": ("count", lambda wrong: admin.create("t-new", partitions=_any(wrong), config=config)),
            "create config": ("config", lambda wrong: admin.create("t-new", partitions=1, config=_any(wrong))),
            "configure topic": ("topic", lambda wrong: admin.configure(_any(wrong), config)),
            "configure config": ("config", lambda wrong: admin.configure(topic, _any(wrong))),
            "describe": ("topic", lambda wrong: admin.describe(_any(wrong))),
            "delete": ("topic", lambda wrong: admin.delete(_any(wrong))),
            "add_partitions topic": ("topic", lambda wrong: admin.add_partitions(_any(wrong), total=2)),
            "add_partitions total": ("count", lambda wrong: admin.add_partitions(topic, total=_any(wrong))),
        }


def wrong_arguments(kind: str) -> tuple[object, ...]:
    """Return values that an argument of the kind must not have."""
    return _WRONG[kind]


class Arguments(LogSetting):
    """The tests of refused arguments."""

    async def test_every_call_refuses_wrong_arguments_and_writes_nothing(self, log: Log, topic: str) -> None:
        """FL3: a typed error for each wrong argument of each call, and the log is as it was before."""
        member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=10)
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        calls = Calls(log, topic, member, producer)
        topics_before = await log.admin.topics()
        for name, (kind, call) in calls.all().items():
            for wrong in wrong_arguments(kind):
                with pytest.raises(Refused):
                    await _refused(name, wrong, call(wrong))
        for field, wrongs in WRONG_RECORDS.items():
            for wrong in wrongs:
                record = calls.record(field, wrong)
                for append in (log.append, producer.append):
                    with pytest.raises(Refused):
                        await _refused(field, wrong, append([NewRecord(topic, b"k", b"good"), record]))
        await producer.append([NewRecord(topic, b"k", b"last")])
        await producer.commit()
        assert values(await read_all(log, topic)) == [b"last"]
        assert await log.admin.topics() == topics_before
        assert await log.groups.committed(f"g-{topic}", [calls.at]) == {}
        await producer.close()
        await member.leave()

    async def test_a_wrong_record_does_not_harm_its_neighbours(self, log: Log, topic: str) -> None:
        """FJ10: appends that share a commit with a badly typed one are acknowledged and readable."""
        bad = NewRecord(topic, b"k", b"v", headers=(("name", "text"),))  # type: ignore[arg-type]
        outcomes = await asyncio.gather(
            *(log.append([bad if n % 3 == 0 else NewRecord(topic, b"k", b"%d" % n)]) for n in range(30)),
            return_exceptions=True,
        )
        assert [isinstance(outcome, BadArgument) for outcome in outcomes] == [n % 3 == 0 for n in range(30)]
        assert len(await read_all(log, topic)) == 20

    async def test_the_longest_names_are_taken(self, log: Log) -> None:
        """A group and a transactional id of the greatest length work, so the limit is one of both tiers."""
        topic = await new_topic(log)
        name = f"{topic}-{'ä' * ((MAX_NAME_BYTES - len(topic) - 1) // 2)}"
        producer = await log.transactional(name)
        await producer.begin()
        await producer.append([NewRecord(topic, b"k", b"v")])
        await producer.commit()
        await producer.close()
        member = await log.groups.join(name, [topic], session_timeout_s=10)
        while not await member.poll():
            pass
        await member.commit({TopicPartition(topic, 0): 1})
        assert await log.groups.committed(name, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 1}
        await member.leave()


async def _refused(name: str, wrong: object, call: Awaitable[object]) -> None:
    """Await a call that must be refused; any other outcome is reported with its argument."""
    try:
        await call
    except Refused:
        raise
    except Exception as error:
        raise AssertionError(f"{name} with {wrong!r} raised {error!r}") from error
    raise AssertionError(f"{name} took {wrong!r}")


async def _drain(log: Log, at: TopicPartition, start: int, end: int | None = 0, **options: Any) -> None:  # noqa: ANN401
    async for _ in log.read(at, start, end, **options):
        pass


def _any(wrong: object) -> Any:  # noqa: ANN401
    return wrong
