"""Every registry takes the exam of all registries: in memory, in a folder, in both logs, behind HTTP."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.serde import Registry, open_registry
from headrace.services import RunningService
from headrace.testing.conformance import RegistryConformance
from headrace.testing.conformance.registry_setting import OpenAnother


class TestMemoryRegistry(RegistryConformance):
    """In memory there is one node."""

    @pytest_asyncio.fixture
    async def another(self) -> AsyncIterator[OpenAnother]:
        only = await open_registry("memory:")

        async def open_another() -> Registry:
            return only

        yield open_another


class TestFolderRegistry(RegistryConformance):
    """Each test on a folder of its own."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"folder:{tmp_path / 'schemas'}"


class TestRegistryInTheEmbeddedLog(RegistryConformance):
    """Each test on a log of its own; every node opens the folder again."""

    @pytest.fixture
    def address(self) -> str:
        return "log:headrace-schemas"

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        return f"embedded:{tmp_path / 'log'}"


@pytest.mark.servers
class TestRegistryInKafka(RegistryConformance):
    """Each test on a topic of its own."""

    @pytest.fixture
    def address(self) -> str:
        return f"log:schemas-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def log_address(self, kafka: RunningService) -> str:
        return f"kafka://{kafka.address}"


@pytest.mark.servers
class TestConfluentRegistry(RegistryConformance):
    """A real registry that speaks Confluent's protocol."""

    @pytest.fixture
    def address(self, registry: RunningService) -> str:
        return registry.url
