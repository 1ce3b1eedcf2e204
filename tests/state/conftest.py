"""What the tests of states stand on: a log of either tier, a clock that can be set, partitions with a writer."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config import EmbeddedLogSettings, LogSettings
from headrace.log import Log, open_log
from headrace.log.embedded import open_log as open_embedded
from headrace.state import KeyValueStore, ProducerWriter, StatePartition, StateSpec
from headrace.state.memory import MemoryStore
from headrace.state.rocksdb import RocksDbStore
from headrace.testing.clock import SettableClock


class Setting:
    """A log, a clock that this process's states go by, and what they are opened with."""

    def __init__(self, log: Log, clock: SettableClock, folder: Path) -> None:
        self.log = log
        self.clock = clock
        self.folder = folder
        self.opened: list[StatePartition] = []

    def spec(self, name: str = "things", **declared: Any) -> StateSpec[Any, Any]:
        """Declare a state with a topic of its own; text to text unless told."""
        topic = f"s-{name}-{uuid.uuid4().hex[:10]}"
        return StateSpec(**{"name": name, "topic": topic, "key": str, "value": str, **declared})

    async def open(
        self,
        *specs: StateSpec[Any, Any],
        store: str = "memory",
        node: str = "a",
        clock: SettableClock | None = None,
        number: int = 0,
    ) -> StatePartition:
        """Open a partition as a copy that has read everything."""

        async def open_store(spec: StateSpec[Any, Any]) -> KeyValueStore:
            return MemoryStore() if store == "memory" else RocksDbStore(self.folder / node / spec.name)

        partition = await StatePartition.open(
            self.log, specs, number, open_store=open_store, clock=clock or self.clock, ask_every_s=0.02
        )
        self.opened.append(partition)
        await partition.catch_up()
        return partition

    async def writer(self, *specs: StateSpec[Any, Any]) -> ProducerWriter:
        """Take the partition's id."""
        return ProducerWriter(await self.log.transactional(f"id-{specs[0].topic}-0"))

    async def owned(self, *specs: StateSpec[Any, Any], **options: Any) -> StatePartition:
        """Open partition 0 as its owner."""
        partition = await self.open(*specs, **options)
        writer = await self.writer(*specs)
        await partition.catch_up()
        partition.own(writer)
        return partition

    async def close(self) -> None:
        for partition in self.opened:
            await partition.close()
        await self.log.close()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Setting]:
    """Either tier, the clock half a minute behind the machine's."""
    if request.param == "kafka":
        log = await open_log(f"kafka://{request.getfixturevalue('kafka').address}")
    else:
        log = await open_log(f"embedded:{tmp_path / 'log'}")
    setting = Setting(log, SettableClock(time.time_ns() // 1_000_000 - 30_000), tmp_path / "nodes")
    yield setting
    await setting.close()


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Setting]:
    """The embedded tier, whose log goes by the same clock: retention and compaction can be told when it is time."""
    clock = SettableClock()
    settings = LogSettings(embedded=EmbeddedLogSettings(fsync=False))
    log = await open_embedded(f"embedded:{tmp_path / 'log'}", settings, clock=clock)
    setting = Setting(log, clock, tmp_path / "nodes")
    yield setting
    await setting.close()
