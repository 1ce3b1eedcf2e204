"""Owners that are killed under load: what was acknowledged is in the journal once, and the state is its fold."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from tests.engine.models import Account, Deposit, bank_engine
from tests.engine.node_process import EnginePlace

from headrace.app import Headrace, connect
from headrace.engine import Aggregate, Engine, Success, audit_engine
from headrace.errors import Unavailable
from headrace.testing.plugin import Size
from headrace.testing.processes import ChildProcess, running_function

_PARTITIONS = 2


@pytest.mark.timeout(600)
async def test_an_owner_that_is_killed_under_load_loses_and_doubles_nothing(place: EnginePlace, size: Size) -> None:
    """N23, N42: kill -9 of the owner: each acknowledged command is there once, in order, and the state is the fold."""
    bank = bank_engine(place.name, partitions=_PARTITIONS)
    clients, commands = size(10, 100), size(20, 100)
    acknowledged: dict[str, list[int]] = {}
    async with contextlib.AsyncExitStack() as held, connect(settings=place.settings("caller")) as hr:
        names = (f"n{n}" for n in itertools.count())
        children: list[ChildProcess] = []
        async with hr.node():
            for kill in range(size(1, 20)):
                started = [_start(held, place, next(names)) for _ in range(2 - len(children))]
                for child in started:
                    await asyncio.to_thread(child.wait_for_line, "^serves", 60)
                children += started
                work = [
                    asyncio.create_task(_client(hr, bank, f"acc-{kill}-{n}", commands, acknowledged))
                    for n in range(clients)
                ]
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED, timeout=0.2)
                children.pop(0).kill()
                await asyncio.gather(*work)
            for id_, versions in acknowledged.items():
                await _check(hr, bank, id_, versions)
            audit = await audit_engine(hr.log, hr.journal(bank.name, read_only=True), bank)
            assert (audit.aggregates, list(audit.differences)) == (len(acknowledged), [])


def _start(held: contextlib.AsyncExitStack, place: EnginePlace, node: str) -> ChildProcess:
    return held.enter_context(running_function("tests.engine.node_process:serve_bank", *place, node, _PARTITIONS))


async def _client(
    hr: Headrace, bank: Engine[Account], id_: str, commands: int, acknowledged: dict[str, list[int]]
) -> None:
    """Send commands one after the other, each until it is acknowledged."""
    account = hr.engine(bank).aggregate(id_)
    versions = acknowledged.setdefault(id_, [])
    for number in range(commands):
        versions.append((await _sent(account, f"{id_}-{number}")).version)


async def _sent(account: Aggregate[Account], command_id: str) -> Success[Account]:
    while True:
        try:
            done = await account.send(Deposit(1), command_id=command_id, timeout_s=20)
        except Unavailable:
            continue  # with its id it can be sent again
        assert isinstance(done, Success)
        return done


async def _check(hr: Headrace, bank: Engine[Account], id_: str, versions: list[int]) -> None:
    assert versions == list(range(1, len(versions) + 1)), id_
    events = [event async for event in hr.journal(bank.name, read_only=True).read(id_)]
    assert [event.seq_nr for event in events] == versions
    read = await hr.engine(bank).aggregate(id_).read()
    assert read.state == bank.fold(bank.events.of_payload(event.payload) for event in events)
    assert read.version == len(versions)
