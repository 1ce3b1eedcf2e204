"""Replays of new code over what an engine has stored, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import EngineSetting, embedded_only
from tests.engine.models import Account, Deposit, Deposited, Withdraw, Withdrawn, bank_engine

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.engine import Engine, EngineReplay, Reject, replay_some
from headrace.journal import Journal
from headrace.store import Store, open_store

pytestmark = embedded_only


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """The store beside the log."""
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    opened = await open_store(f"embedded:{tmp_path / 'store'}", settings=settings)
    yield opened
    await opened.close()


def later_bank(name: str, *, limit: int = 100, factor: int = 1) -> Engine[Account]:
    """Return the bank in another version of its program: with a limit for withdrawals, or with other sums."""
    bank: Engine[Account] = Engine(name, state=Account, partitions=1, keep_commands=True)

    @bank.command
    def deposit(account: Account | None, command: Deposit) -> Deposited:
        return Deposited(command.amount)

    @bank.command
    def withdraw(account: Account | None, command: Withdraw) -> Withdrawn | Reject:
        if command.amount > limit:
            return Reject("limit")
        return Withdrawn(command.amount)

    @bank.event
    def applied(account: Account | None, event: Deposited | Withdrawn) -> Account:
        amount = event.amount * factor if isinstance(event, Deposited) else -event.amount
        return Account((account.balance if account else 0) + amount)

    return bank


async def replayed(setting: EngineSetting, store: Store, engine: Engine[Any], *ids: str) -> EngineReplay:
    journal = Journal(setting.log, store, engine.journal_topic or "", cache=None, read_only=True)
    return await replay_some(setting.log, journal, engine, ids)


async def kept_bank(setting: EngineSetting) -> str:
    """Let a bank that keeps commands do something, and return its name."""
    bank = bank_engine(setting.name(), keep_commands=True)
    node = await setting.owner(bank)
    await node.send("a", Deposit(50), command_id="x")
    await node.send("a", Withdraw(20))
    await node.send("a", Withdraw(7))
    await node.send("b", Deposit(1))
    return bank.name


async def test_the_code_that_wrote_a_journal_makes_the_same_of_it(setting: EngineSetting, store: Store) -> None:
    """Events, states and decisions are what was stored, and the journal keeps every command that led to events."""
    name = await kept_bank(setting)
    same = await replayed(setting, store, bank_engine(name, keep_commands=True), "a", "b")
    assert (same.is_same, same.aggregates, same.events, same.commands, same.counts) == (True, 2, 4, 4, {})
    records = await setting.records(name)
    header = msgspec.json.decode(dict(records[0].headers)["journal.action"] or b"")
    kept = header["append"]["metadata"]["data"]["command"]
    assert kept.pop("now_ms") > 0
    assert kept == {"type": "Deposit", "data": {"amount": 50}, "id": "x"}


async def test_decisions_that_change_are_reported(setting: EngineSetting, store: Store) -> None:
    """A command that was done and would be rejected now is named, with what it led to and what it would lead to."""
    name = await kept_bank(setting)
    found = await replayed(setting, store, later_bank(name, limit=10), "a", "b")
    assert (found.is_same, found.counts) == (False, {"decision": 1})
    (difference,) = found.first["decision"]
    assert (difference.id, difference.seq_nr, difference.about) == ("a", 2, "command Withdraw")
    assert difference.stored == [{"type": "Withdrawn", "data": {"amount": 20}}]
    assert difference.now == {"rejected": "limit"}
    assert str(difference).startswith("decision: a, event 2: command Withdraw: ")


async def test_states_that_change_are_reported(setting: EngineSetting, store: Store) -> None:
    """An event handler that makes another state of the same events shows in the states that are stored."""
    name = await kept_bank(setting)
    found = await replayed(setting, store, later_bank(name, factor=2), "a", "b")
    assert found.counts == {"state": 2}
    assert found.first["state"][0].stored == {"version": 3, "state": {"balance": 23}}
    assert found.first["state"][0].now == {"version": 3, "state": {"balance": 73}}


async def test_upcasts_are_listed_and_what_can_not_be_read_is_a_difference(
    setting: EngineSetting, store: Store
) -> None:
    """An event that is upcast to the same state is no difference; one that can't be read is, and ends its aggregate."""
    name = await kept_bank(setting)
    upcasting = later_bank(name)
    upcasting.upcast("Withdrawn")(lambda data: {"amount": data["amount"]})
    found = await replayed(setting, store, upcasting, "a", "b")
    assert (found.is_same, found.counts) == (True, {"upcast": 2})
    assert found.first["upcast"][0].now == [{"type": "Withdrawn", "data": {"amount": 20}, "version": 2}]
    broken = later_bank(name)
    broken.upcast("Withdrawn")(lambda data: {"amount": data["sum"]})
    found = await replayed(setting, store, broken, "a", "b")
    assert (found.is_same, found.counts, found.events) == (False, {"event": 1}, 4)
    assert "version 1 of Withdrawn (event 2 of 'a')" in found.first["event"][0].about


async def test_a_journal_without_commands_is_replayed_without_decisions(setting: EngineSetting, store: Store) -> None:
    """Commands are kept only where the engine is told to; states are compared in any case."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(50))
    found = await replayed(setting, store, later_bank(bank.name), "a")
    assert (found.is_same, found.events, found.commands) == (True, 1, 0)


async def test_code_that_makes_events_which_can_not_be_written_is_reported(
    setting: EngineSetting, store: Store
) -> None:
    """A decision or an upcaster whose event has wrong fields is one difference; the other aggregates are replayed."""
    name = await kept_bank(setting)
    careless: Engine[Account] = Engine(name, state=Account, partitions=1, keep_commands=True)

    @careless.command
    def deposit(account: Account | None, command: Deposit) -> Deposited:
        return Deposited(command.amount if command.amount == 1 else "many")  # type: ignore[arg-type]

    @careless.command
    def withdraw(account: Account | None, command: Withdraw) -> Withdrawn:
        return Withdrawn(command.amount)

    @careless.event
    def applied(account: Account | None, event: Deposited | Withdrawn) -> Account:
        amount = 0 if isinstance(event.amount, str) else event.amount
        return Account((account.balance if account else 0) + (amount if isinstance(event, Deposited) else -amount))

    found = await replayed(setting, store, careless, "a", "b")
    assert (found.aggregates, found.commands, found.counts) == (2, 4, {"decision": 1})
    assert "can't be written" in found.first["decision"][0].now[0]["failed"]
    careless.upcast("Withdrawn")(lambda data: Withdrawn("many"))  # type: ignore[arg-type]
    found = await replayed(setting, store, careless, "a", "b")
    assert (found.aggregates, found.counts["upcast"], found.counts["state"]) == (2, 2, 1)
