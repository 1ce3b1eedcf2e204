"""How commands are handled: at once where nothing has to be waited for, in a task of their own otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import EngineSetting, embedded_only
from tests.engine.models import Deposit, Deposited, Withdraw, bank_engine

from headrace.app import connect
from headrace.config import EmbeddedLogSettings, HeadraceSettings, LogSettings
from headrace.engine import Engine, Failed
from headrace.errors import CommandFailed, OutcomeUnknown, Unavailable
from headrace.testing.conformance.log_setting import eventually


def _engine(name: str, handler: Any) -> Engine[int]:
    engine: Engine[int] = Engine(name, state=int, partitions=1)
    engine.command(handler)

    @engine.event
    def deposited(count: int | None, event: Deposited) -> int:
        return (count or 0) + event.amount

    return engine


@embedded_only
async def test_a_plain_function_may_return_something_to_await(setting: EngineSetting) -> None:
    """N6: the aggregate's next command waits for it, other aggregates go on, and an error of it fails its command."""
    go_on = asyncio.Event()

    async def decided(amount: int) -> Deposited:
        if amount == 1:
            await go_on.wait()
        if amount == 13:
            raise ValueError("unlucky")
        return Deposited(amount)

    def deposit(count: int | None, command: Deposit) -> Awaitable[Deposited]:
        return decided(command.amount)

    node = await setting.owner(_engine(setting.name(), deposit))
    assert (await node.send("a", Deposit(2))).state == 2
    first, second = (asyncio.create_task(node.send("a", Deposit(amount))) for amount in (1, 3))
    assert (await node.send("b", Deposit(4))).state == 4
    assert not first.done()
    assert not second.done()
    go_on.set()
    assert [(await each).state for each in (first, second)] == [3, 6]
    failed = await node.send("a", Deposit(13))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, CommandFailed)
    assert (await node.send("a", Deposit(1))).state == 7


@embedded_only
async def test_many_commands_of_one_aggregate_leave_time_for_others(setting: EngineSetting) -> None:
    """N9: they are handled in order, a hundred at a time, and the event loop turns in between."""
    node = await setting.owner(bank_engine(setting.name()))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += len(node.partition._queue.open.outcomes) > 0

    counting = asyncio.create_task(count_turns())
    sent = [asyncio.create_task(node.send("a", Deposit(1))) for _ in range(500)]
    assert [(await each).version for each in sent] == list(range(1, 501))
    counting.cancel()
    assert turns > 1


@embedded_only
async def test_a_caller_that_leaves_does_not_hold_up_those_behind_it(setting: EngineSetting) -> None:
    """N35: its command is taken out if it waits, and stays in its batch if it was handled."""
    node = await setting.owner(bank_engine(setting.name()))
    await node.send("a", Deposit(1))
    left = [asyncio.create_task(node.send("a", Deposit(10))) for _ in range(3)]
    await asyncio.sleep(0)
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    balance = (await node.send("a", Withdraw(1))).state.balance
    assert balance in {0, 10, 20, 30}

    async def is_empty() -> bool:
        return not node.partition._queue._lanes

    await eventually(is_empty, every_s=0.005, what="the lanes to be gone")
    assert (await node.send("a", Deposit(1))).state.balance == balance + 1


async def test_a_caller_is_told_at_its_deadline_whether_its_command_was_begun(tmp_path: Path) -> None:
    """N35: also through a node's router, which alone could only tell that nobody knows."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def deposit(count: int | None, command: Deposit) -> Deposited:
        begun.set()
        await go_on.wait()
        return Deposited(command.amount)

    engine = _engine("slow", deposit)
    settings = HeadraceSettings(log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
    async with connect(f"embedded:{tmp_path}", settings=settings) as hr, hr.node(engine):
        slow = hr.engine(engine).aggregate("a")
        await slow.read()  # the partition is owned, so that nothing is sent twice
        handled = asyncio.create_task(slow.send(Deposit(1), timeout_s=0.5))
        await begun.wait()
        with pytest.raises(Unavailable) as waited:
            await slow.send(Deposit(1), timeout_s=0.2)
        assert waited.value.outcome_known
        with pytest.raises(OutcomeUnknown):
            await handled
        go_on.set()
