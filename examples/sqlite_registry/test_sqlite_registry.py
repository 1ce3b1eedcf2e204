"""The registry in a SQLite file takes the exam of all registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BadArgument, OperationFailed, UnknownSubject
from headrace.serde import open_registry
from headrace.testing.conformance import RegistryConformance


class TestSqliteRegistry(RegistryConformance):
    """Each test on a file of its own; every node opens it again."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        """Return what `open_registry` is given."""
        return f"sqlite:{tmp_path / 'schemas.db'}"


@pytest.mark.asyncio
async def test_an_address_without_a_path_is_refused() -> None:
    """The message shows what an address looks like."""
    with pytest.raises(BadArgument, match=r"sqlite:\./schemas\.db"):
        await open_registry("sqlite:")


@pytest.mark.asyncio
async def test_errors_of_the_driver_are_errors_of_headrace(tmp_path: Path) -> None:
    """A file that is no database is OperationFailed, with the path."""
    file = tmp_path / "schemas.db"
    file.write_text("this is no database " * 100)
    with pytest.raises(OperationFailed, match=r"schemas\.db failed: file is not a database"):
        await open_registry(f"sqlite:{file}")


@pytest.mark.asyncio
async def test_an_error_inside_a_transaction_leaves_nothing_behind(tmp_path: Path) -> None:
    """What is not there is named, and the file is free for the next call."""
    registry = await open_registry(f"sqlite:{tmp_path / 'schemas.db'}")
    with pytest.raises(UnknownSubject, match="orders-value"):
        await registry.versions("orders-value")
    assert await registry.subjects() == []
