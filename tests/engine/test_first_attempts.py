"""What a client knows about the first attempts of its commands, by which forgotten ids are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.models import Deposit, bank_engine

from headrace.engine import Engine, EngineClient, EngineLimits, client, hosting
from headrace.errors import CommandTooLate, OutcomeUnknown
from headrace.testing.engines import EngineHarness

REMEMBERED = 2


@pytest.fixture
def bank() -> Engine[Any]:
    return bank_engine(limits=EngineLimits(command_ids=REMEMBERED))


async def test_two_first_attempts_at_once_are_one(bank: Engine[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """N33: the second was begun before the first was sent, and sent when the id was forgotten: it is refused."""
    async with EngineHarness(bank) as harness:
        account, read = harness.aggregate("a"), EngineClient.read
        released = asyncio.Event()

        async def read_late(*args: Any, **options: Any) -> Any:
            await released.wait()
            return await read(*args, **options)

        monkeypatch.setattr(EngineClient, "read", read_late)
        second = asyncio.create_task(account.send(Deposit(10), command_id="d-1"))
        await asyncio.sleep(0)
        monkeypatch.setattr(EngineClient, "read", read)
        for n in range(1, REMEMBERED + 2):
            await account.send(Deposit(10), command_id=f"d-{n}")
        released.set()
        with pytest.raises(CommandTooLate):
            await second
        assert (await account.read()).version == REMEMBERED + 1


async def test_what_may_have_been_done_is_remembered_longest(
    bank: Engine[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N33: a caller repeats what had no answer, however many others were answered since."""
    monkeypatch.setattr(client, "_FIRST_ATTEMPTS", REMEMBERED)
    async with EngineHarness(bank) as harness:
        account, send = harness.aggregate("a"), hosting._EngineRoute.send

        async def send_and_lose(*args: Any, **options: Any) -> Any:
            await send(*args, **options)
            raise OutcomeUnknown("bank", "a", "the answer is lost")

        monkeypatch.setattr(hosting._EngineRoute, "send", send_and_lose)
        with pytest.raises(OutcomeUnknown):
            await account.send(Deposit(10), command_id="first")
        monkeypatch.setattr(hosting._EngineRoute, "send", send)
        for n in range(2 * REMEMBERED + 1):
            await account.send(Deposit(10), command_id=f"d-{n}")
        with pytest.raises(CommandTooLate):
            await account.send(Deposit(10), command_id="first")
        assert (await account.read()).version == 2 * REMEMBERED + 2
