"""The fixtures of the registry's tests: an address, opened registries, schemas to register."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from headrace.log import Log, open_log
from headrace.serde import Registry, Schema, open_registry

__all__ = ["OpenAnother", "RegistrySetting", "new_subject", "record"]

OpenAnother = Callable[[], Awaitable[Registry]]


@pytest.mark.asyncio
class RegistrySetting:
    """The fixtures. A backend overrides `address`, and `log_address` if it lives in a log."""

    @pytest.fixture
    def address(self) -> str:
        """Return where the registry is."""
        raise NotImplementedError("override the fixture `address`")

    @pytest.fixture
    def log_address(self) -> str | None:
        """Return where the log is that holds the registry, if one does."""
        return None

    @pytest_asyncio.fixture
    async def another(self, address: str, log_address: str | None) -> AsyncIterator[OpenAnother]:
        """Open further clients of the same registry, as other nodes would; closed at the end."""
        opened: list[Registry] = []
        logs: list[Log] = []

        async def open_another() -> Registry:
            log = None
            if log_address is not None:
                log = await open_log(log_address)
                logs.append(log)
            opened.append(await open_registry(address, log=log))
            return opened[-1]

        yield open_another
        for node in opened:
            await node.close()
        for log in logs:
            await log.close()

    @pytest_asyncio.fixture
    async def node(self, another: OpenAnother) -> Registry:
        """Open the registry under test."""
        return await another()


def new_subject() -> str:
    """Return an unused subject."""
    return f"s-{uuid.uuid4().hex[:12]}-value"


def record(name: str = "Account", /, **fields: Any) -> Schema:  # noqa: ANN401
    """Return a record schema; a field is its type, or a pair of type and default."""
    listed = []
    for field, kind in fields.items():
        pair = {"type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else {"type": kind}
        listed.append({"name": field, **pair})
    return Schema({"type": "record", "name": name, "fields": listed})
