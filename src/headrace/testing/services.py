"""Pytest fixtures: real servers, each started once per test run and only when a test asks for it.

Attached and with fresh data: they die with the test run, whatever ends it. The value is a RunningService,
whose `address`, `host`, `port` and `url` say where the server is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the plugin is loaded by every run of pytest; what starts servers is imported when one is asked for
    from headrace.services import RunningService

__all__ = [
    "headrace_cassandra",
    "headrace_kafka",
    "headrace_mariadb",
    "headrace_postgres",
    "headrace_registry",
    "headrace_zookeeper",
]


@pytest.fixture(scope="session")
def headrace_kafka() -> Iterator[RunningService]:
    """One Kafka broker."""
    yield from _started("kafka")


@pytest.fixture(scope="session")
def headrace_cassandra() -> Iterator[RunningService]:
    """One Cassandra node."""
    yield from _started("cassandra")


@pytest.fixture(scope="session")
def headrace_zookeeper() -> Iterator[RunningService]:
    """One ZooKeeper server."""
    yield from _started("zookeeper")


@pytest.fixture(scope="session")
def headrace_registry() -> Iterator[RunningService]:
    """One schema registry; `url` is the base for clients of Confluent's registry."""
    yield from _started("registry")


@pytest.fixture(scope="session")
def headrace_postgres() -> Iterator[RunningService]:
    """One PostgreSQL server; `url` logs in as its superuser."""
    yield from _started("postgres")


@pytest.fixture(scope="session")
def headrace_mariadb() -> Iterator[RunningService]:
    """One MariaDB server; its user root has no password."""
    yield from _started("mariadb")


def _started(name: str) -> Iterator[RunningService]:
    from headrace.services import start

    with start(name) as service:
        yield service
        if name != "postgres":  # which would leave a segment of shared memory behind
            service.kill()  # its data is thrown away, and an orderly end would take seconds
