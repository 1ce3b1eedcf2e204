"""The audit of an engine in one process: state and version of each aggregate are those that its journal makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import EngineSetting, embedded_only
from tests.engine.models import Close, Deposit, Note, Withdraw, bank_engine, counter_engine
from tests.suites.journal_faults import WatchedLog
from tests.suites.journal_setting import replicate

from headrace.config import EmbeddedStoreSettings, StoreSettings
from headrace.engine import (
    AggregateDifference,
    AggregateRecord,
    AggregateValues,
    Engine,
    EngineAuditor,
    Suspect,
    audit_engine,
)
from headrace.errors import BadArgument
from headrace.journal import Journal
from headrace.model import NewRecord, StoredEvent
from headrace.store import Store, open_store

pytestmark = embedded_only


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """The store beside the log."""
    settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    opened = await open_store(f"embedded:{tmp_path / 'store'}", settings=settings)
    yield opened
    await opened.close()


def journal_of(setting: EngineSetting, store: Store, engine: Engine[Any]) -> Journal:
    """Return the engine's journal, to be read."""
    return Journal(setting.log, store, engine.journal_topic or "", cache=None, read_only=True)


async def put(setting: EngineSetting, engine: Engine[Any], id_: str, value: bytes | None) -> None:
    """Write a record to the state topic behind the engine's back."""
    setting.is_spoiled = True
    await setting.log.append([NewRecord(engine.state_topic, id_.encode(), value, partition=0)])


@pytest.mark.parametrize("none_states", ["keep", "purge"])
async def test_the_audit_of_an_engine_at_work_is_clean(setting: EngineSetting, store: Store, none_states: str) -> None:
    """N42: open, closed, purged and rejected ones, in the log and in the store, agree with their journals."""
    bank = bank_engine(setting.name(), none_states=none_states)
    node = await setting.owner(bank)
    for id_ in "abc":
        await node.send(id_, Deposit(5), command_id="x")
    await node.send("b", Close(), command_id="y")
    await replicate(setting.log, store, bank.name)
    await node.send("c", Note("no change"))
    await node.send("nobody", Withdraw(5), command_id="z")
    audit = await audit_engine(setting.log, journal_of(setting, store, bank), bank)
    assert (audit.is_clean, audit.aggregates, list(audit.differences)) == (True, 4, [])
    one = await audit_engine(setting.log, journal_of(setting, store, bank), bank, ids=["c"])
    assert (one.is_clean, one.aggregates) == (True, 1)


async def test_the_audit_names_what_differs(setting: EngineSetting, store: Store) -> None:
    """N42: another state, another version, no record, a damaged one: each with what is stored and what should be."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    for id_ in ("damaged", "fine", "lost", "state", "version"):
        await node.send(id_, Deposit(5))
    values = AggregateValues(bank.state_codec())
    record = AggregateRecord(1, 1, b'{"balance":5}')
    await put(setting, bank, "damaged", b"\xff")
    await put(setting, bank, "lost", None)
    await put(setting, bank, "state", values.encode(msgspec.structs.replace(record, state=b'{"balance":6}')))
    await put(setting, bank, "version", values.encode(msgspec.structs.replace(record, version=2)))
    await put(setting, bank, "invented", values.encode(record))
    audit = await audit_engine(setting.log, journal_of(setting, store, bank), bank)
    assert (audit.is_clean, audit.aggregates, audit.found) == (False, 6, 5)
    found = {each.id: each for each in audit.differences}
    assert {id_: each.kind for id_, each in found.items()} == {
        "damaged": "unreadable record",
        "invented": "version",
        "lost": "missing",
        "state": "state",
        "version": "version",
    }
    assert (found["state"].stored_state, found["state"].folded_state) == ({"balance": 6}, {"balance": 5})
    assert (found["version"].stored_version, found["version"].folded_version) == (2, 1)
    assert str(found["lost"]) == "lost: stored is nothing; the journal makes version 1, {'balance': 5}"


async def test_the_audit_names_a_journal_that_can_not_be_folded(setting: EngineSetting, store: Store) -> None:
    """N42: an event that the code does not know any more is a difference, and names the event."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(5))
    newer: Engine[Any] = Engine(bank.name, state=dict, partitions=1)
    audit = await audit_engine(setting.log, journal_of(setting, store, bank), newer)
    (difference,) = audit.differences
    assert difference.kind == "unreadable journal"
    assert "event 1 of 'a', Deposited" in difference.problem


class BusyJournal:
    """A journal whose engine goes on between the look at a state and the look at the journal."""

    def __init__(self, journal: Journal, node: Any, times: int) -> None:
        self._journal = journal
        self._node = node
        self._times = times

    def ids(self) -> AsyncIterator[str]:
        return self._journal.ids()

    async def read_many(self, ids: Collection[str]) -> AsyncIterator[tuple[str, AsyncIterator[StoredEvent]]]:
        for id_ in ids if self._times else ():
            self._times -= 1
            await self._node.send(id_, Deposit(1))
        async for id_, events in self._journal.read_many(ids):
            yield id_, events


async def test_an_engine_that_goes_on_during_the_audit_is_no_difference(setting: EngineSetting, store: Store) -> None:
    """N42: a state that was read before later events is compared at its own version, and looked at again."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(5))
    busy = BusyJournal(journal_of(setting, store, bank), node, 3)
    assert (await audit_engine(setting.log, busy, bank)).is_clean
    values = AggregateValues(bank.state_codec())
    await put(setting, bank, "a", values.encode(AggregateRecord(1, 3, b'{"balance":9}')))
    busy = BusyJournal(journal_of(setting, store, bank), node, 0)
    (difference,) = (await audit_engine(setting.log, busy, bank)).differences
    assert (difference.kind, difference.folded_version) == ("version", 2)


async def test_what_one_pass_found_is_confirmed_or_dropped(setting: EngineSetting, store: Store) -> None:
    """N42: of the suspects of a pass beside an engine at work, those that are right by now are no differences."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    for id_ in ("ahead", "lost", "moved"):
        await node.send(id_, Deposit(5))
    await put(setting, bank, "lost", None)
    values = AggregateValues(bank.state_codec())
    auditor = EngineAuditor(setting.log, journal_of(setting, store, bank), bank, values)
    stored = await auditor.stored(("ahead", "lost", "moved"))
    kept = {id_: stored.get(id_) for id_ in ("ahead", "lost", "moved")}
    await node.send("moved", Deposit(1))
    suspects = {
        "ahead": Suspect(kept["ahead"], AggregateDifference(id="ahead", kind="version", stored_version=1)),
        "lost": Suspect(kept["lost"], AggregateDifference(id="lost", kind="missing", folded_version=1)),
        "moved": Suspect(kept["moved"], AggregateDifference(id="moved", kind="version", folded_version=2)),
    }
    assert [each.id for each in await auditor.confirmed(suspects)] == ["lost"]


async def test_the_audit_reads_the_head_of_the_log_once_for_all_aggregates(
    setting: EngineSetting, store: Store
) -> None:
    """N42: its cost grows with the events that are not replicated, and not with their product with the aggregates."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    for _ in range(3):
        await asyncio.gather(*(node.send(f"a-{n}", Deposit(1)) for n in range(60)))
    log = WatchedLog(setting.log)
    journal = Journal(log, store, bank.journal_topic or "", cache=None, read_only=True)
    for id_ in ("a-7", "a-8"):
        await put(setting, bank, id_, None)
    audit = await audit_engine(log, journal, bank)
    assert (audit.aggregates, [each.id for each in audit.differences]) == (60, ["a-7", "a-8"])
    # The state, the ids, the events; then the state and the events again for those that differ.
    assert log.delivered < 6 * (180 + 180)


async def test_an_engine_without_a_journal_can_not_be_audited(setting: EngineSetting, store: Store) -> None:
    """Its state follows from nothing that is stored."""
    counter = counter_engine(setting.name())
    with pytest.raises(BadArgument, match="it has no journal"):
        await audit_engine(setting.log, journal_of(setting, store, bank_engine()), counter)
