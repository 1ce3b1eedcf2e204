"""The pytest plugin: Headrace in a folder of the test's own, and real servers, started only when a test asks for them.

Installed with the package (entry point `pytest11`), so it is part of every run of pytest in that environment: all its
names begin with `headrace_`, it adds no option, and it imports what it needs when a fixture is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.testing.services import *  # noqa: F403  (fixtures)

if TYPE_CHECKING:
    from headrace.app import Headrace

__all__ = ["Size", "headrace_address"]


class Size:
    """Chooses between a small size and the size that the promised behaviours name."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full = is_full

    def __call__(self, small: int, full: int) -> int:
        """Return the size to run at."""
        return full if self.is_full else small


@pytest.fixture
def headrace_address(tmp_path: Path) -> str:
    """Return the address of an embedded log and store in a folder of the test's own, for `headrace.connect`."""
    return f"embedded:{tmp_path / 'headrace'}"


try:
    import pytest_asyncio
except ImportError:  # asynchronous fixtures need it; it comes with headrace[testing]
    pass
else:

    @pytest_asyncio.fixture
    async def headrace_embedded(headrace_address: str) -> AsyncIterator[Headrace]:
        """Return Headrace, connected to a folder of the test's own."""
        from headrace.app import connect

        async with connect(headrace_address) as hr:
            yield hr

    __all__ += ["headrace_embedded"]
