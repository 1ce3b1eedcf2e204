"""Short names for the shipped plugin's fixtures, the size that the tests run at, and which worker runs which file."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.browser.fixtures import browser, browser_page, node_packages, run_node  # noqa: F401  (fixtures)

from headrace.services import RunningService
from headrace.testing.plugin import Size

# Asserts of the suites explain themselves as those of test files do.
pytest.register_assert_rewrite("tests.suites")

# How long Hypothesis takes to draw values says how busy the machine is, and nothing of the code.
settings.register_profile("headrace", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

# A script's job in the background ignores Ctrl-C, and the commands that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`."""
    parser.addoption(
        "--full", action="store_true", help="run at the sizes written in docs/behaviours, not at small ones"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that are marked `full` to `make test-full`."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if not item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Hand out files by home, where a file stays with one worker (`--dist loadfile`)."""
    from tests.distribution import HomeScheduling

    return HomeScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


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
