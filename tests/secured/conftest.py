"""Servers that want a login and speak TLS, once for all tests of a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.secured.servers import Secured, secured_servers


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start Kafka and Cassandra."""
    with secured_servers(tmp_path_factory.mktemp("secured")) as servers:
        yield servers


@pytest.fixture
def topic() -> str:
    """Return a name that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"
