"""Servers that want a login and speak TLS, once for all tests of a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.secured.servers import Secured, secured_servers

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes on two cores, unless all is asked for."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.path.parent == HERE and item.get_closest_marker("full")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start Kafka and Cassandra."""
    with secured_servers(tmp_path_factory.mktemp("secured")) as servers:
        yield servers


@pytest.fixture
def topic() -> str:
    """Return a name that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"
