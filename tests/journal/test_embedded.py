"""Journals on the embedded tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.conformance.journal_matrix import JournalMatrix


class Embedded:
    """A folder for the log and the store."""

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def store_address(self, log_address: str) -> str:
        """Return the same folder."""
        return log_address


class TestMatrix(Embedded, JournalMatrix):
    """The whole matrix."""
