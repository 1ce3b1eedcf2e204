"""What the cluster's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has this process' sys.path, on which pytest does not put the tests."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
