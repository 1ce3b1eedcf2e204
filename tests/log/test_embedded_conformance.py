"""The embedded log takes the exam of all logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.conformance import LogConformance


class TestEmbeddedLog(LogConformance):
    """Every test of the conformance suite, on a folder of its own."""

    wake_up_s = 0.02

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path / 'log'}"
