"""Pytest fixtures: real servers, each started once per test run and only when a test asks for it.

Attached and with fresh data: they die with the test run, whatever ends it. The value is a RunningService.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.services import RunningService, start

__all__ = ["kafka"]


@pytest.fixture(scope="session")
def kafka() -> Iterator[RunningService]:
    """One Kafka broker."""
    with start("kafka") as service:
        yield service
