"""The fixtures of the log's tests: an address, opened logs, new topics."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
import pytest_asyncio

from headrace.errors import TopicExists
from headrace.log import Log, ensure_topic, open_log
from headrace.model import NewRecord, Record, TopicConfig, TopicPartition

__all__ = ["LogSetting", "eventually", "new_topic", "numbered", "read_all", "values"]

OpenAnother = Callable[[], Awaitable[Log]]


@pytest.mark.asyncio
class LogSetting:
    """The fixtures. A backend overrides `address`; tests get `log`, and `another` for further clients."""

    @pytest.fixture
    def address(self) -> str:
        """Return where the log is."""
        raise NotImplementedError("override the fixture `address`")

    @pytest_asyncio.fixture
    async def another(self, address: str) -> AsyncIterator[OpenAnother]:
        """Open further clients of the same log, closed at the end."""
        opened: list[Log] = []

        async def open_another() -> Log:
            opened.append(await open_log(address))
            return opened[-1]

        yield open_another
        for log in opened:
            await log.close()

    @pytest_asyncio.fixture
    async def log(self, another: OpenAnother) -> Log:
        """Open the log under test."""
        return await another()

    @pytest_asyncio.fixture
    async def topic(self, log: Log) -> str:
        """Make a topic with one partition."""
        return await new_topic(log)


async def new_topic(log: Log, *, partitions: int = 1, config: TopicConfig | None = None) -> str:
    """Make a topic with a name of its own."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    try:
        await log.admin.create(name, partitions=partitions, config=config or TopicConfig())
    except TopicExists:  # nobody else has the name: the client has sent its request twice
        await ensure_topic(log.admin, name, partitions=partitions, config=config or TopicConfig())
    return name


def numbered(topic: str, count: int, *, partition: int | None = None, first: int = 0) -> list[NewRecord]:
    """Make records whose values are b"0", b"1" …, each with a key of its own."""
    return [NewRecord(topic, key=b"k%d" % n, value=b"%d" % n, partition=partition) for n in range(first, first + count)]


async def read_all(log: Log, topic: str, partition: int = 0, *, start: int | None = None) -> list[Record]:
    """Read what a partition holds now."""
    at = TopicPartition(topic, partition)
    bounds = await log.bounds(at)
    batches = log.read(at, bounds.start if start is None else start, bounds.end, timeout_s=20)
    return [record async for batch in batches for record in batch.records]


def values(records: Sequence[Record]) -> list[bytes | None]:
    """Return the values."""
    return [record.value for record in records]


async def eventually(
    claim: Callable[[], Awaitable[bool]], *, within_s: float = 30.0, every_s: float = 0.05, what: str = "the claim"
) -> None:
    """Wait until the claim holds; fail when the time is up."""
    deadline = time.monotonic() + within_s
    while not await claim():
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:g} s"
        await asyncio.sleep(every_s)
