"""What the tests of the Kafka backend stand on: a log on the run's broker, and a broker of their own to hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from headrace.config import KafkaLogSettings
from headrace.log.kafka.log import KafkaLog
from headrace.services import RunningService, start
from headrace.services.layouts import free_port
from headrace.testing.conformance.log_setting import new_topic
from headrace.testing.proxy import TcpProxy

OpenKafka = Callable[..., Awaitable[KafkaLog]]


@pytest.fixture(scope="session")
def broker(proxied: TcpProxy) -> Iterator[RunningService]:
    """A broker that tests may kill and pause; whoever does brings it back.

    It has a second listener behind a proxy. Its own traffic, as that of other clients, goes by the first one.
    """
    taken: set[int] = set()
    client, controller = (free_port([proxied.host], taken=taken) for _ in range(2))
    listeners = f"CLIENT://{proxied.host}:{client},CONTROLLER://{proxied.host}:{controller}"
    host, port = proxied.target
    properties = {
        "listeners": f"{listeners},PROXIED://{host}:{port}",
        "advertised.listeners": f"CLIENT://{proxied.host}:{client},PROXIED://{proxied.address}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
    }
    with start("kafka", ports={"client": client, "controller": controller}, properties=properties) as service:
        yield service
        service.kill()  # nobody needs its data


@pytest.fixture(scope="session")
def proxied() -> Iterator[TcpProxy]:
    """The proxy before the broker's second listener."""
    host = "127.0.0.1"
    with TcpProxy(host, free_port([host], taken=set())) as proxy:
        yield proxy


@pytest.fixture
def proxy(broker: RunningService, proxied: TcpProxy) -> Iterator[TcpProxy]:
    """The way to the broker that a test may cut and hold."""
    yield proxied
    proxied.restore()


@pytest.fixture(scope="module")
def brokers() -> Iterator[RunningService]:
    """Three brokers that miss one of them within seconds; whoever freezes one lets it go on.

    They end with the one module that uses them: idle brokers take time, too.
    """
    properties = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "controller.quorum.fetch.timeout.ms": "1500",
        "controller.quorum.election.timeout.ms": "1000",
        "controller.socket.timeout.ms": "2000",
        "default.replication.factor": "1",
    }
    with start("kafka", nodes=3, properties=properties) as service:
        yield service
        service.kill()  # nobody needs its data


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[OpenKafka]:
    """Open logs with settings of the test's choice, closed at the end."""
    logs: list[KafkaLog] = []

    async def open_kafka(service: RunningService | TcpProxy, **settings: object) -> KafkaLog:
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
