"""Kafka takes the exam of all logs."""

from __future__ import annotations

import pytest

from headrace.services import RunningService
from headrace.testing.conformance import LogConformance

pytestmark = pytest.mark.servers


class TestKafkaLog(LogConformance):
    """Every test of the conformance suite, on one real broker."""

    @pytest.fixture
    def address(self, kafka: RunningService) -> str:
        """Return the broker of this test run."""
        return f"kafka://{kafka.address}"
