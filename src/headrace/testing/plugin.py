"""The pytest plugin: real servers as session fixtures, started once a run and only when a test asks for them.

Installed with the package (entry point `pytest11`); `--full` runs the tests marked `full` at the sizes that
docs/behaviours writes down.
"""

from __future__ import annotations

import pytest

from headrace.testing.services import *  # noqa: F403  (fixtures)

__all__ = ["pytest_addoption", "pytest_configure", "size"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`."""
    parser.getgroup("headrace").addoption(
        "--full", action="store_true", help="run at the sizes written in the behaviours, not at small ones"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the plugin's marker."""
    config.addinivalue_line("markers", "servers: needs real servers, which the fixtures start from packages")


class Size:
    """Chooses between a small size and the written one."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full = is_full

    def __call__(self, small: int, full: int) -> int:
        """Return the size to run at."""
        return full if self.is_full else small


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    """Return `size(small, full)`: the first in `make test`, the second in `make test-full`."""
    return Size(is_full=bool(pytestconfig.getoption("--full")))
