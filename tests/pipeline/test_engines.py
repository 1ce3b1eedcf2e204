"""Command engines on Spark: audit, rebuild and replay of all aggregates."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.engine.declared import bank
from tests.engine.models import Account, Close, Deposit
from tests.pipeline.tier import Tier

from headrace.app import connect
from headrace.config import ClusterSettings, EmbeddedLogSettings, HeadraceSettings, LogSettings
from headrace.engine import AggregateState, engine_phase
from headrace.errors import RebuildRefused, WrongEngineTopic
from headrace.log import Log
from headrace.model import NewRecord, partition_of
from headrace.pipeline import audit_states, rebuild_states, replay_journals
from headrace.store import Store

BANK = "tests.engine.declared:bank"
IDS = ("a", "b", "c", "d")


class BankOnTier:
    """The bank on a tier, in a cluster of its own."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.settings = HeadraceSettings(
            log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)),
            cluster=ClusterSettings(name=f"c{uuid.uuid4().hex[:8]}", node_id="n"),
        )

    def deposited(self, amount: int, command_id: str) -> list[AggregateState[Account]]:
        """Serve the bank for a moment, pay the same into all accounts, close one, and return what is committed."""

        async def serve() -> list[AggregateState[Account]]:
            endpoints = self.tier.endpoints
            async with connect(endpoints.log, store=endpoints.store, settings=self.settings) as hr, hr.node(bank):
                accounts = [hr.engine(bank).aggregate(id_) for id_ in IDS]
                for account in accounts:
                    await account.send(Deposit(amount), command_id=command_id)
                await accounts[1].send(Close(), command_id="close")
                return [await account.read() for account in accounts]

        return asyncio.run(serve())

    def put(self, id_: str, value: bytes | None) -> None:
        """Write a record to the state topic behind the engine's back."""

        async def put(log: Log, _: Store) -> None:
            partition = partition_of(id_.encode(), bank.partitions)
            await log.append([NewRecord(bank.state_topic, id_.encode(), value, partition=partition)])

        self.tier.on(put)

    def lose_state(self) -> None:
        """Delete the state topic."""

        async def lose(log: Log, _: Store) -> None:
            await log.admin.delete(bank.state_topic)

        self.tier.on(lose)

    def phase(self) -> str:
        async def ask(log: Log, _: Store) -> str:
            return await engine_phase(log, self.settings.cluster.name, bank.name)

        return self.tier.on(ask)


@pytest.mark.timeout(300)
def test_all_states_are_compared_rebuilt_and_replayed(tier: Tier) -> None:
    """N25, N42: an audit names what is wrong, a rebuild that died is run again, and the engine goes on."""
    at, spark, endpoints = BankOnTier(tier), tier.spark, tier.endpoints
    before = at.deposited(10, "first")
    assert [(each.state, each.version) for each in before] == [
        (Account(10), 1),
        (None, 2),
        (Account(10), 1),
        (Account(10), 1),
    ]
    at.put("a", None)
    at.put("c", b"\xff")
    wrong = audit_states(spark, endpoints, BANK, limit=1)
    assert (wrong.found, wrong.aggregates, [each.kind for each in wrong.differences]) == (2, 4, ["missing"])
    replay = replay_journals(spark, endpoints, BANK)
    assert (replay.is_same, replay.events, replay.commands, replay.counts) == (False, 5, 5, {"state": 2})
    at.lose_state()
    with pytest.raises(WrongEngineTopic, match="headrace engine rebuild"):
        at.deposited(1, "second")
    with pytest.raises(RebuildRefused, match=r"event 1 of '.', Deposited, can't be applied"):
        rebuild_states(spark, endpoints, "tests.engine.declared:forgetful_bank", settings=at.settings)
    assert at.phase() == "serving"
    tier.arm("engine.rebuild")
    with pytest.raises(Exception, match=r"(?i)crash|worker|exit|failed"):
        rebuild_states(spark, endpoints, BANK, settings=at.settings)
    assert at.phase() == "rebuilding"
    assert rebuild_states(spark, endpoints, BANK, settings=at.settings).aggregates == 4
    assert (at.phase(), audit_states(spark, endpoints, BANK).is_clean) == ("serving", True)
    again = at.deposited(10, "first")
    assert [(each.state, each.version) for each in again] == [(each.state, each.version) for each in before]
