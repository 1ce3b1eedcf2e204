"""The owner's exam on a real broker."""

from __future__ import annotations

import pytest
from tests.cluster.owner_exam import OwnerExam

from headrace.services import RunningService


@pytest.mark.servers
class TestOwnerKafka(OwnerExam):
    """All of it."""

    @pytest.fixture
    def address(self, kafka: RunningService) -> str:
        """The run's broker."""
        return f"kafka://{kafka.address}"
