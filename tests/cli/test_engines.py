"""`headrace engine` on one machine, without Spark: one aggregate at a time."""

from __future__ import annotations

import asyncio
import json

from tests.cli.conftest import Command
from tests.engine.declared import bank
from tests.engine.models import Deposit

from headrace.app import connect
from headrace.config import EmbeddedLogSettings, HeadraceSettings, LogSettings
from headrace.model import NewRecord, TopicPartition, partition_of

BANK = "tests.engine.declared:bank"
FOLDER = "embedded:./bank"
QUICK = HeadraceSettings(log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))


async def _served() -> None:
    async with connect(FOLDER, settings=QUICK) as hr, hr.node(bank):
        account = hr.engine(bank).aggregate("acc-1")
        await account.send(Deposit(100), command_id="x")
        await account.send(Deposit(5))


async def _spoiled() -> None:
    """Remove the state of an account behind the engine's back."""
    async with connect(FOLDER, settings=QUICK) as hr:
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


def test_one_aggregate_is_rebuilt_and_replayed(command: Command) -> None:
    """N25: the state comes from the journal again, the engine is served again, and its code makes the same of it."""
    asyncio.run(_served())
    asyncio.run(_spoiled())
    assert command("engine", "pause", BANK, "--log", FOLDER).exit_code == 0
    rebuilt = command("engine", "rebuild", BANK, "--id", "acc-1", "--yes", "--log", FOLDER, "--json")
    assert json.loads(rebuilt.stdout) == {"engine": "declared-bank", "aggregates": 1}
    resumed = command("engine", "resume", BANK, "--log", FOLDER, "--json")
    assert json.loads(resumed.stdout) == {"engine": "declared-bank", "phase": "serving"}
    assert command("engine", "audit", BANK, "--id", "acc-1", "--log", FOLDER).exit_code == 0
    replayed = command("engine", "replay", BANK, "--id", "acc-1", "--log", FOLDER)
    assert (replayed.exit_code, "2 events and 2 commands of 1 aggregates" in replayed.stdout) == (0, True)
    asyncio.run(_spoiled())
    differs = command("engine", "replay", BANK, "--id", "acc-1", "--log", FOLDER, "--json")
    facts = json.loads(differs.stdout)
    assert (differs.exit_code, facts["same"], facts["counts"]) == (1, False, {"state": 1})


def test_an_engine_that_is_not_there_is_refused(command: Command) -> None:
    """The error says how an engine is named."""
    refused = command("engine", "audit", "tests.engine.declared:nothing", "--id", "a", "--log", FOLDER)
    assert refused.exit_code != 0
    assert "name an Engine as module:name" in str(refused.exception)
