"""`headrace engine` on one machine, without Spark: one aggregate at a time."""

from __future__ import annotations

import asyncio
import json

from tests.cli.conftest import Command
from tests.engine.declared import bank
from tests.engine.models import Deposit

from headrace.app import connect
from headrace.model import NewRecord, TopicPartition, partition_of

BANK = "tests.engine.declared:bank"
FOLDER = "embedded:./bank"


async def _served() -> None:
    async with connect(FOLDER) as hr, hr.node(bank):
        account = hr.engine(bank).aggregate("acc-1")
        await account.send(Deposit(100), command_id="x")
        await account.send(Deposit(5))


async def _spoiled() -> None:
    """Remove the state of an account behind the engine's back."""
    async with connect(FOLDER) as hr:
        at = TopicPartition(bank.state_topic, partition_of(b"acc-1", bank.partitions))
        await hr.log.append([NewRecord(at.topic, b"acc-1", None, partition=at.partition)])


def test_one_aggregate_is_compared_with_its_journal(command: Command) -> None:
    """N42: the exit code is 0 if it is right, and 1 if it is not; then both versions and states are shown."""
    asyncio.run(_served())
    right = command("engine", "audit", BANK, "--id", "acc-1", "--log", FOLDER)
    assert (right.exit_code, "every state is the fold of its journal" in right.stdout) == (0, True)
    asyncio.run(_spoiled())
    wrong = command("engine", "audit", BANK, "--id", "acc-1", "--log", FOLDER, "--json")
    assert wrong.exit_code == 1
    facts = json.loads(wrong.stdout)
    (difference,) = facts.pop("differences")
    assert facts == {"engine": "declared-bank", "aggregates": 1, "clean": False, "found": 1}
    assert (difference["kind"], difference["folded_version"]) == ("missing", 2)
    assert difference["folded_state"] == {"balance": 105}
