"""The owner's exam on the embedded log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.owner_exam import OwnerExam


class TestOwnerEmbedded(OwnerExam):
    """All of it."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        """A folder of the test's own."""
        return f"embedded:{tmp_path / 'log'}"
