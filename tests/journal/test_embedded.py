"""Journals on the embedded tier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.suites.journal import JournalConformance
from tests.suites.journal_matrix import Case, JournalMatrix, all_cases, pairwise

from headrace.testing.plugin import Size


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


class TestEmbeddedJournal(Embedded, JournalConformance):
    """All that journals promise."""


class TestEmbeddedMatrix(Embedded, JournalMatrix):
    """The whole matrix at full size; else every pair of its columns."""

    @pytest.fixture
    def cases(self, size: Size) -> Sequence[Case]:
        """Return the cases to run."""
        cases = all_cases()
        return cases if size(0, 1) else pairwise(cases, most=420)
