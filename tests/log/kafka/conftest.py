"""What the tests of the Kafka backend stand on: a log on the run's broker, and a broker of their own to hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from headrace.config import KafkaLogSettings
from headrace.log.kafka.log import KafkaLog
from headrace.services import RunningService, start
from headrace.testing.conformance.log_setting import new_topic

OpenKafka = Callable[..., Awaitable[KafkaLog]]


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningService]:
    """A broker that tests may kill and pause; whoever does brings it back."""
    with start("kafka") as service:
        yield service


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[OpenKafka]:
    """Open logs with settings of the test's choice, closed at the end."""
    logs: list[KafkaLog] = []

    async def open_kafka(service: RunningService, **settings: object) -> KafkaLog:
        logs.append(await KafkaLog.open(f"kafka://{service.address}", KafkaLogSettings(**settings)))  # type: ignore[arg-type]
        return logs[-1]

    yield open_kafka
    for log in logs:
        await log.close()


@pytest_asyncio.fixture
async def log(kafka: RunningService, opened: OpenKafka) -> KafkaLog:
    """A log on the run's broker."""
    return await opened(kafka)


@pytest_asyncio.fixture
async def topic(log: KafkaLog) -> str:
    """A topic with one partition."""
    return await new_topic(log)
