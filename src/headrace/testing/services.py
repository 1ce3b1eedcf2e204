"""Pytest fixtures: real servers, each started once per test run and only when a test asks for it.

Attached and with fresh data: they die with the test run, whatever ends it. The value is a RunningService,
whose `address`, `host`, `port` and `url` say where the server is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.services import RunningService, start

__all__ = ["cassandra", "kafka", "mariadb", "postgres", "registry", "zookeeper"]


@pytest.fixture(scope="session")
def kafka() -> Iterator[RunningService]:
    """One Kafka broker."""
    with start("kafka") as service:
        yield service


@pytest.fixture(scope="session")
def cassandra() -> Iterator[RunningService]:
    """One Cassandra node."""
    with start("cassandra") as service:
        yield service


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[RunningService]:
    """One ZooKeeper server."""
    with start("zookeeper") as service:
        yield service


@pytest.fixture(scope="session")
def registry() -> Iterator[RunningService]:
    """One schema registry; `url` is the base for clients of Confluent's registry."""
    with start("registry") as service:
        yield service


@pytest.fixture(scope="session")
def postgres() -> Iterator[RunningService]:
    """One PostgreSQL server; `url` logs in as its superuser."""
    with start("postgres") as service:
        yield service


@pytest.fixture(scope="session")
def mariadb() -> Iterator[RunningService]:
    """One MariaDB server; its user root has no password."""
    with start("mariadb") as service:
        yield service
