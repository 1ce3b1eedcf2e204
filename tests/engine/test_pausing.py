"""Engines that are paused: nobody serves them, callers wait, and a rebuild beside living nodes is safe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.engine.models import Account, Deposit, bank_engine
from tests.engine.node_process import settings_of

from headrace.app import Headrace, connect
from headrace.engine import (
    Engine,
    audit_engine,
    begin_rebuild,
    change_engine_phase,
    end_rebuild,
    engine_phase,
    rebuild_some,
)
from headrace.errors import RebuildRefused, TimedOut, WrongStateTopic
from headrace.model import NewRecord
from headrace.testing.conformance.log_setting import eventually


@contextlib.asynccontextmanager
async def _node(folder: Path, engine: Engine[Account]) -> AsyncIterator[Headrace]:
    async with connect(f"embedded:{folder}", settings=settings_of("n1")) as hr, hr.node(engine):
        yield hr


async def _rebuild(hr: Headrace, bank: Engine[Account], *ids: str) -> int:
    journal = hr.journal("bank", read_only=True)
    return await rebuild_some(hr.log, hr.store.settings, journal, bank, hr.settings, ids)


async def test_callers_of_a_paused_engine_wait(tmp_path: Path) -> None:
    """Nobody owns its partitions; a command is not done until the engine is resumed, and is done then."""
    bank = bank_engine()
    async with _node(tmp_path, bank) as hr:
        node, cluster = hr._node, hr.settings.cluster.name
        assert node is not None
        account = hr.engine(bank).aggregate("a")
        await account.send(Deposit(1))
        assert await change_engine_phase(hr.log, cluster, bank, "paused") == "serving"

        async def is_withdrawn() -> bool:
            return not node.owned

        await eventually(is_withdrawn, every_s=0.01, what="the withdrawal")
        with pytest.raises(TimedOut, match="which is paused or being rebuilt"):
            await account.send(Deposit(1), timeout_s=0.05)
        waiting = asyncio.create_task(account.send(Deposit(1), timeout_s=30))
        assert await change_engine_phase(hr.log, cluster, bank, "serving") == "paused"
        assert (await waiting).version == 2


async def test_an_aggregate_is_rebuilt_beside_a_living_node(tmp_path: Path) -> None:
    """N25: the node gives the partition up, what it had in memory counts no more, and it serves again by itself."""
    bank = bank_engine()
    async with _node(tmp_path, bank) as hr:
        account = hr.engine(bank).aggregate("a")
        await account.send(Deposit(5), command_id="x")
        await hr.log.append([NewRecord(bank.state_topic, b"a", b"\xff", partition=0)])
        sent = asyncio.create_task(account.send(Deposit(1), timeout_s=30))
        assert await _rebuild(hr, bank, "a") == 1
        await sent
        assert (await account.send(Deposit(5), command_id="x")).is_repeated
        assert (await account.read()).state == Account(6)
        assert (await audit_engine(hr.log, hr.journal("bank", read_only=True), bank)).is_clean


async def test_a_rebuild_of_all_is_run_to_its_end(tmp_path: Path) -> None:
    """N25: an engine whose rebuild died half-way is not served, nor resumed, nor rebuilt in part; a new run ends it."""
    bank = bank_engine()
    async with _node(tmp_path, bank) as hr:
        await hr.engine(bank).aggregate("a").send(Deposit(5))
        cluster = hr.settings.cluster.name
        first = await begin_rebuild(hr.log, hr.store.settings, bank, hr.settings)
        for change in (change_engine_phase(hr.log, cluster, bank, "serving"), _rebuild(hr, bank, "a")):
            with pytest.raises(RebuildRefused, match="has not come to its end"):
                await change
        second = await begin_rebuild(hr.log, hr.store.settings, bank, hr.settings)
        assert second.fenced[0] > first.fenced[0]
        await end_rebuild(hr.log, bank, hr.settings)
        assert await engine_phase(hr.log, cluster, "bank") == "serving"
        assert (await hr.engine(bank).aggregate("a").send(Deposit(1), timeout_s=30)).version == 2


async def test_one_aggregate_of_a_lost_partition_is_not_rebuilt_alone(tmp_path: Path) -> None:
    """N25: with one record the partition would seem to be all there, and its other aggregates new."""
    bank = bank_engine()
    async with _node(tmp_path, bank) as hr:
        await hr.engine(bank).aggregate("a").send(Deposit(5))
    async with connect(f"embedded:{tmp_path}", settings=settings_of("n1")) as hr:
        await hr.log.admin.delete(bank.state_topic)
        with pytest.raises(RebuildRefused, match="without --id"):
            await _rebuild(hr, bank, "a")
        assert await engine_phase(hr.log, hr.settings.cluster.name, "bank") == "serving"


async def test_a_rebuild_that_can_not_begin_does_not_stop_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N25: a declaration that does not fit the topics, or an owner that can't be fenced: it is served as before."""
    bank = bank_engine()
    async with _node(tmp_path, bank) as hr:
        account, cluster = hr.engine(bank).aggregate("a"), hr.settings.cluster.name
        await account.send(Deposit(1))
        with pytest.raises(WrongStateTopic):
            await begin_rebuild(hr.log, hr.store.settings, bank_engine(partitions=2), hr.settings)
        assert await engine_phase(hr.log, cluster, "bank") == "serving"

        async def never(*_: object, **__: object) -> int:
            raise TimedOut("taking a partition over", 0.1)

        monkeypatch.setattr("headrace.engine.rebuild_runs.fence_partition", never)
        with pytest.raises(TimedOut):
            await begin_rebuild(hr.log, hr.store.settings, bank, hr.settings)
        assert await engine_phase(hr.log, cluster, "bank") == "serving"
        assert (await account.send(Deposit(1), timeout_s=30)).version == 2
