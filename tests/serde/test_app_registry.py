"""The registry of an application: `hr.registry`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.config import HeadraceSettings
from headrace.errors import UnknownBackend, UnknownSubject
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.serde import Serde, avro, subject_of


@avro(namespace="shop")
@dataclasses.dataclass
class Price:
    amount: int


def settings(**registry: Any) -> HeadraceSettings:
    return HeadraceSettings.model_validate({"registry": registry, "log": {"embedded": {"fsync": False}}})


async def test_an_application_has_its_registry(tmp_path: Path) -> None:
    """V5: `hr.registry` is the one that the settings name, by default in the log, and another program sees it."""
    where = f"embedded:{tmp_path}"
    async with headrace.connect(where, settings=settings()) as hr:
        await hr.log.admin.create("prices", partitions=1, config=TopicConfig())
        prices: Serde[Price] = Serde(hr.registry, subject_of("prices"), Price)
        await hr.log.append([NewRecord("prices", b"a", await prices.encode(Price(5)))])
    async with headrace.connect(where, settings=settings()) as other:
        found: Serde[Price] = Serde(other.registry, subject_of("prices"), Price)
        async for batch in other.log.read(TopicPartition("prices", 0), 0, 1):
            assert [await found.decode(record.value) for record in batch.records] == [Price(5)]
        assert "headrace-schemas" in await other.log.admin.topics()


async def test_looking_makes_no_topic(tmp_path: Path) -> None:
    """V5: a registry in the log that nobody wrote to is empty, and asking it leaves nothing behind."""
    async with headrace.connect(f"embedded:{tmp_path}", settings=settings()) as hr:
        assert await hr.registry.subjects() == []
        with pytest.raises(UnknownSubject):
            await hr.registry.versions("prices-value")
        assert await hr.log.admin.topics() == []


async def test_the_settings_name_another_registry(tmp_path: Path) -> None:
    """V5: a folder instead of the log; an address that nobody knows is told, and nothing stays open."""
    address = f"folder:{tmp_path / 'schemas'}"
    async with headrace.connect(f"embedded:{tmp_path}", settings=settings(address=address)) as hr:
        await Serde[Price](hr.registry, "s", Price).encode(Price(1))
        assert await hr.log.admin.topics() == []
    assert (tmp_path / "schemas").is_dir()
    with pytest.raises(UnknownBackend, match="nobody"):
        async with headrace.connect(f"embedded:{tmp_path}", settings=settings(address="nobody:knows")):
            pass
