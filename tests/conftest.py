"""Short names for the shipped plugin's fixtures, and the size that the tests run at."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from headrace.services import RunningService
from headrace.testing.plugin import Size

# Asserts of the suites explain themselves as those of test files do.
pytest.register_assert_rewrite("tests.suites")

# How long Hypothesis takes to draw values says how busy the machine is, and nothing of the code.
settings.register_profile("headrace", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`."""
    parser.addoption(
        "--full", action="store_true", help="run at the sizes written in docs/behaviours, not at small ones"
    )


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    """Return `size(small, full)`: the first in `make test`, the second in `make test-full`."""
    return Size(is_full=bool(pytestconfig.getoption("--full")))


@pytest.fixture(scope="session")
def kafka(headrace_kafka: RunningService) -> RunningService:
    """Return the broker."""
    return headrace_kafka


@pytest.fixture(scope="session")
def cassandra(headrace_cassandra: RunningService) -> RunningService:
    """Return the node."""
    return headrace_cassandra


@pytest.fixture(scope="session")
def zookeeper(headrace_zookeeper: RunningService) -> RunningService:
    """Return the server."""
    return headrace_zookeeper


@pytest.fixture(scope="session")
def registry(headrace_registry: RunningService) -> RunningService:
    """Return the schema registry."""
    return headrace_registry


@pytest.fixture(scope="session")
def postgres(headrace_postgres: RunningService) -> RunningService:
    """Return the server."""
    return headrace_postgres


@pytest.fixture(scope="session")
def mariadb(headrace_mariadb: RunningService) -> RunningService:
    """Return the server."""
    return headrace_mariadb
