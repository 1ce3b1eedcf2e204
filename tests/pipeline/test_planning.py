"""The plan of a job: many partitions are looked at side by side, and a log that moves meanwhile is no fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.suites.journal_setting import replicate

from headrace.errors import BadArgument, OffsetOutOfRange, OperationFailed, ReadAgain, UnknownBackend
from headrace.journal import Journal, grow_topic
from headrace.log import open_log
from headrace.model import Event, TopicPartition
from headrace.pipeline import Endpoints, Selection, compact, journal_frame, meta_frame, topic_frame
from headrace.pipeline.logs.plan import look_at_partition, plan_of
from headrace.pipeline.spark.process import side_by_side
from headrace.pipeline.tables.frames import state_text
from headrace.pipeline.tables.parts import JournalPart, stable_layout
from headrace.pipeline.tables.scans import EVERYTHING
from headrace.pipeline.tables.store_sources import heads_of_part
from headrace.store import open_store

pytestmark = pytest.mark.timeout(30)

TOPIC, PARTITIONS = "plans", 8


class Instead:
    """Something real, with some of its methods replaced."""

    def __init__(self, real: Any, **methods: Any) -> None:
        self._real = real
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def opened(folder: Path) -> tuple[Any, Any]:
    """Return a log and a store with one topic, whose first partition has some records."""
    log, store = await open_log(f"embedded:{folder}"), await open_store(f"embedded:{folder}")
    journal = Journal(log, store, TOPIC, cache=None, partitions=PARTITIONS)
    for n in range(20):
        await journal.append(f"k{n}", [Event(1)])
    return log, store


async def test_partitions_are_looked_at_side_by_side(tmp_path: Path) -> None:
    """FP5: each partition's bounds are asked for while those of all others are; one after the other, none would end."""
    log, store = await opened(tmp_path)
    asked = asyncio.Barrier(PARTITIONS)

    async def bounds(at: TopicPartition) -> Any:
        async with asyncio.timeout(5):
            await asked.wait()
        return await log.bounds(at)

    together = Instead(log, bounds=bounds)
    plan = await plan_of(together, store, Selection((TOPIC,)))
    assert (len(plan.starts), plan.lag) == (PARTITIONS, 20)
    _, ends = await stable_layout(together, store, TOPIC)
    assert sum(ends.values()) == 20
    await store.close()
    await log.close()


async def test_records_that_come_between_two_looks_are_no_fault(tmp_path: Path) -> None:
    """Records appended and replicated between the look at the log and the look at the store are not an offset that the
    log never had; a log that is behind its store for good is."""
    log, store = await opened(tmp_path)
    at = TopicPartition(TOPIC, 0)
    plan = await plan_of(log, store, Selection((TOPIC,)))
    layout = plan.layouts[TOPIC]
    now = await log.bounds(at)
    early = Instead(now, end=0, high_watermark=0)
    ahead = Instead(None, generation=layout.generation, offset=now.end - 1)
    reader = Instead(store.reader, replicated=lambda _: _value(ahead))
    looks = [early]

    async def bounds(_: TopicPartition) -> Any:
        return looks.pop() if looks else now

    replicated = Instead(store, reader=reader)
    look = await look_at_partition(Instead(log, bounds=bounds), replicated, layout, at)
    assert (look.start, look.bounds) == (now.end, now)
    looks = [early] * 9
    with pytest.raises(OffsetOutOfRange):
        await look_at_partition(Instead(log, bounds=bounds), replicated, layout, at)
    await store.close()
    await log.close()


async def _value(value: Any) -> Any:
    return value


async def test_the_first_error_in_order_is_raised_when_all_have_ended() -> None:
    """Which of several errors a caller sees does not depend on which request was quickest, and none is left running."""
    is_slow_over = False

    async def slow() -> None:
        nonlocal is_slow_over
        await asyncio.sleep(0)
        is_slow_over = True
        raise ValueError("slow")

    async def quick() -> None:
        raise ValueError("quick")

    with pytest.raises(ValueError, match="slow"):
        await side_by_side([slow(), quick()])
    assert is_slow_over
    assert await side_by_side(_value(n) for n in range(50)) == list(range(50))


def test_a_frame_of_the_wrong_arguments_is_refused_before_spark_is_asked() -> None:
    """FN4: a text in place of a selection or of endpoints is named at once, and not by a worker's traceback."""
    endpoints, spark = Endpoints.of("embedded:./data"), Any
    for topics in ("accounts", b"accounts", (1,), None):
        with pytest.raises(BadArgument, match="topics"):
            Selection(topics)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="prefix"):
        Selection(prefix=("a",))  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="Selection"):
        journal_frame(spark, endpoints, "accounts")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="Endpoints"):
        meta_frame(spark, "embedded:./data")  # type: ignore[arg-type]
    for edge in (True, "2020-01-01", 1.5):
        for edges in ({"start": edge}, {"end": edge}):
            with pytest.raises(BadArgument, match="an offset or a time"):
                topic_frame(spark, endpoints, "prices", **edges)  # type: ignore[arg-type]
            with pytest.raises(BadArgument, match="an offset or a time"):
                compact(spark, **edges)  # type: ignore[arg-type]
    for address in ("accounts", "./data", "http://localhost"):
        with pytest.raises(UnknownBackend, match="embedded:, kafka:"):
            Endpoints.of(address)


@pytest.mark.parametrize("state", [float("nan"), {"a": [1.5, float("-inf")]}, object(), "\ud800"])
def test_a_state_that_json_can_not_carry_fails(state: object) -> None:
    """K8: a state is never another one in the table: a number that JSON lacks would be null there."""
    with pytest.raises(OperationFailed, match="the state of 'a' as JSON"):
        state_text("a", state)
    assert state_text("a", {"none": None, "some": [1.5]}) == '{"none":null,"some":[1.5]}'


def test_folders_are_absolute_for_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP1: a worker, or a server of Spark Connect, runs in another folder than the program that names ./data."""
    monkeypatch.chdir(tmp_path)
    endpoints = Endpoints.of("embedded:./data")
    packed = Endpoints.unpack(endpoints.pack())
    assert (packed.log, packed.store) == (f"embedded:{tmp_path / 'data'}", f"embedded:{tmp_path / 'data'}")
    servers = Endpoints("kafka://127.0.0.1:1", "cassandra://127.0.0.1:1/k")
    assert Endpoints.unpack(servers.pack()) == servers


async def test_heads_that_moved_while_they_were_listed_are_not_left_out(tmp_path: Path) -> None:
    """A table of heads was planned, and the topic grew: a head that moved is listed in no partition of the plan, so
    that a count was too low, with no error."""
    log, store = await opened(tmp_path)
    await replicate(log, store, TOPIC)
    layout, ends = await stable_layout(log, store, TOPIC)
    parts = [JournalPart(layout, number, ends) for number in range(PARTITIONS)]

    async def listed() -> int:
        return sum([len(page) for part in parts async for page in heads_of_part(store, part, EVERYTHING)])

    assert await listed() == 20
    await grow_topic(log, store.settings, TOPIC, partitions=PARTITIONS * 2, lease_s=0.01)
    journal = Journal(log, store, TOPIC, cache=None)
    for n in range(20):
        await journal.append(f"k{n}", [Event(2)])
    await replicate(log, store, TOPIC)
    with pytest.raises(ReadAgain, match="the topic grew"):
        await listed()
    layout, ends = await stable_layout(log, store, TOPIC)
    parts = [JournalPart(layout, number, ends) for number in range(PARTITIONS * 2)]
    assert await listed() == 20
    await store.close()
    await log.close()
